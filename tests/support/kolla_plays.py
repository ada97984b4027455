"""The released kolla-ansible with the plays replaced that need a container engine, and nothing else.

Its own command line reads the arguments, checks the files and starts Ansible on the rendered inventory and variables,
whose output and exit codes are its own; kolla-genpwd, ansible-inventory and post-deploy are untouched. The seam is
``--playbook``: bootstrap-servers, prechecks and deploy run plays that put down a docker which knows names only. Below
ROOT they leave on each host what the real ones leave, as far as 'gpuyard deploy' asks for it.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpuyard.deployment.judges import CONTAINERS
from tests.support.kolla import Kolla

GROUPS = {name: name.replace("_", "-") for name in CONTAINERS["control"]} | {"nova_compute": "compute"}
"""Container -> the group of Kolla's inventory on which its role starts it."""
CONTAINERS_FILE, READY_FILE = "var/lib/plays/containers", "var/lib/plays/ready"

BOOTSTRAP = r"""
- hosts: baremetal
  gather_facts: false
  tasks:
    - name: Install a container engine
      ansible.builtin.raw: |
        set -e
        root="@ROOT@"
        mkdir -p "$root/usr/local/bin" "$root/var/lib/plays" "$root/run"
        if [ -e "$root/usr/local/bin/docker" ]; then exit 0; fi
        touch "$root/var/lib/plays/containers" "$root/run/reboot-required"
        printf '%s\n' '#!/bin/sh' '[ "$1" = ps ] || exit 1' \
          'exec cat "$(dirname "$0")/../../../var/lib/plays/containers"' > "$root/usr/local/bin/docker.new"
        chmod 755 "$root/usr/local/bin/docker.new"
        mv "$root/usr/local/bin/docker.new" "$root/usr/local/bin/docker"
"""
PRECHECKS = r"""
- hosts: baremetal
  gather_facts: false
  tasks:
    - name: Each host has its variables
      ansible.builtin.assert:
        that:
          - kolla_base_distro == "debian"
          - openstack_release == "2026.1"
          - kolla_internal_vip_address == "192.0.2.250"
          - network_interface == "@INTERFACE@"
          - neutron_external_interface == "@EXTERNAL@"
          - keystone_admin_password | length > 20
    - name: Each host has an engine
      ansible.builtin.raw: '"@ROOT@/usr/local/bin/docker" ps'
    - name: A file in the way fails
      ansible.builtin.raw: test ! -e "@ROOT@/var/lib/plays/refuse"
"""
HOLD = """
- hosts: localhost
  gather_facts: false
  connection: local
  tasks:
    - name: Wait where a test wants to kill
      ansible.builtin.raw: while test -e @HOLD@; do touch @HOLD@.reached; sleep 0.2; done
"""
START = """
- hosts: @GROUP@
  gather_facts: false
  tasks:
    - name: Start @NAME@
      ansible.builtin.raw: |
        file="@ROOT@/var/lib/plays/containers"
        grep -qx @NAME@ "$file" || echo @NAME@ >> "$file"
"""
READY = """
- hosts: baremetal
  gather_facts: false
  tasks:
    - name: Come to an end
      ansible.builtin.raw: touch "@ROOT@/var/lib/plays/ready"
"""
PROGRAM = """\
#!/bin/sh
case "$1" in
  bootstrap-servers|prechecks|deploy) exec {real} "$@" --playbook {folder}/$1.yml ;;
  install-deps)
    rm -rf {collection}  # as ansible-galaxy does
    mkdir -p {collection}
    printf '%s\\n' 'namespace: openstack' 'name: kolla' 'version: 1.0.0' >{collection}/galaxy.yml
    ;;
  *) exec {real} "$@" ;;
esac
"""


@dataclass(frozen=True)
class PlayedKolla:
    """It, in a folder of its own."""

    folder: Path
    kolla: Kolla

    @property
    def program(self) -> Path:
        return self.folder / "bin/kolla-ansible"

    @property
    def hold(self) -> Path:
        """While this file is there, deploy stands still between the control plane and the hypervisors."""
        return self.folder / "hold"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.kolla.environment(),
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_PYTHON_INTERPRETER": str(self.kolla.folder / "bin/python"),  # for what runs on this machine
        }


def with_plays_replaced(
    kolla: Kolla, folder: Path, root: str, interface: str = "eno1", external: str = "eno2"
) -> PlayedKolla:
    """`root`: what the remote shell takes for the root of each host; empty for the real one. The interfaces are those
    that prechecks asks for."""
    (folder / "bin").mkdir(parents=True)
    (folder / "plays").mkdir()
    for name in (
        "ansible-inventory",
        "ansible-config",
        "ansible-galaxy",
        "ansible-playbook",
        "ansible",
        "kolla-genpwd",
    ):
        os.symlink(kolla.folder / "bin" / name, folder / "bin" / name)
    os.symlink(kolla.folder / "share", folder / "share")
    made = PlayedKolla(folder, kolla)
    starts = [START.replace("@GROUP@", group).replace("@NAME@", name) for name, group in GROUPS.items()]
    plays = {
        "bootstrap-servers": BOOTSTRAP,
        "prechecks": PRECHECKS,
        "deploy": "".join([*starts[:-1], HOLD, starts[-1], READY]),
    }
    words = {"ROOT": root, "HOLD": shlex.quote(str(made.hold)), "INTERFACE": interface, "EXTERNAL": external}
    for name, text in plays.items():
        for word, value in words.items():
            text = text.replace(f"@{word}@", value)
        (folder / f"plays/{name}.yml").write_text(f"---{text}")
    collection = folder / "collections/ansible_collections/openstack/kolla"
    places = {"real": kolla.program, "folder": folder / "plays", "collection": collection}
    made.program.write_text(PROGRAM.format(**{name: shlex.quote(str(place)) for name, place in places.items()}))
    made.program.chmod(0o755)
    return made
