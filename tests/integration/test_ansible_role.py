"""The Ansible role, played by the real ansible-playbook on a machine's sys, proc and etc in a folder.

The folder has no tools that make boot files, so that no command runs; drivers change at the next boot only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuyard.host import bundle
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, Sysfs
from tests.unit.host.test_scan import materialise

ROLES = Path(__file__).parents[2] / "ansible/roles"
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
PLAY = """\
- hosts: all
  gather_facts: false
  roles:
    - gpuyard_host
"""
LATER = '{"gpuyard_host_arguments": ["--no-live"]}'


@dataclass(frozen=True)
class Played:
    text: str
    changed: int
    failed: int


@dataclass(frozen=True)
class Site:
    """A host to play on."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def play(self, *options: str) -> Played:
        variables = f"gpuyard_host_zipapp={self.folder}/gpuyard-host.pyz gpuyard_host_root={self.root}"
        command = [
            str(PLAYBOOK),
            "-i",
            "gpu1,gpu2,gpu3,",
            "-l",
            "gpu1",
            "-c",
            "local",
            f"{self.folder}/play.yml",
            "-e",
            variables,
        ]
        settings = {
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_ROLES_PATH": str(ROLES),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(self.temporary),
        }
        done = subprocess.run([*command, *options], capture_output=True, text=True, env={**os.environ, **settings})
        text = done.stdout + done.stderr
        recap = re.search(r"changed=(\d+).*failed=(\d+)", text)
        assert recap, text
        return Played(text, int(recap[1]), int(recap[2]))

    def files(self) -> dict[str, str]:
        """Everything in etc and var, which is where gpuyard may write."""
        paths = [path for name in ("etc", "var") for path in (self.root / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_text() for path in paths}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if not PLAYBOOK.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{PLAYBOOK} is not there")
    site = Site(tmp_path)
    site.temporary.mkdir()
    bundle.write(tmp_path / "gpuyard-host.pyz")
    (tmp_path / "play.yml").write_text(PLAY)
    yield site
    assert not list(site.temporary.glob("gpuyard-*")), "the zipapp was left on the host"


def machine(driver: str = "nouveau") -> Sysfs:
    """An AMD machine with a Titan Xp, its IOMMU on."""
    sysfs = Sysfs().function("01:00.0", TITAN_XP, "0300", 13, driver=driver, boot_vga="0")
    sysfs.function("01:00.1", TITAN_XP_AUDIO, "0403", 13, driver=driver)
    sysfs.put("sys/class/iommu/ivhd0", {})
    sysfs.put("proc/cpuinfo", "model name\t: AMD EPYC 7352\nflags\t\t: svm")
    sysfs.put("proc/cmdline", "quiet")
    sysfs.put("proc/sys/kernel/osrelease", "6.1.0")
    sysfs.put("lib/modules/6.1.0/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko:")
    sysfs.put("etc/hostname", "gpu1")
    return sysfs


@pytest.mark.slow
def test_prepare_twice_and_undo(site: Site) -> None:
    materialise(machine().nodes, site.root)
    before = site.files()
    planned = site.play("--check", "--diff", "-e", LATER)
    assert (planned.changed, planned.failed) == (1, 0), planned.text
    assert "+0000:01:00.0 10de:1b02 vfio-pci" in planned.text
    assert site.files() == before
    applied = site.play("--diff", "-e", LATER)
    assert (applied.changed, applied.failed) == (1, 0), applied.text
    assert "+0000:01:00.0 10de:1b02 vfio-pci" in applied.text
    assert "0000:01:00.0 with vfio-pci" in applied.text.partition("Say what waits for a reboot")[2]
    assert "0000:01:00.0 10de:1b02 vfio-pci\n" in site.files()["etc/gpuyard/passthrough"]
    again = site.play("-e", LATER)
    assert (again.changed, again.failed) == (0, 0), again.text
    assert "Verify the host" in again.text
    assert "skipping" in again.text.partition("TASK [gpuyard_host : Verify the host]")[2]
    applied_files = site.files()
    shown = site.play("--check", "--diff", "-e", "gpuyard_host_undo=true")
    assert (shown.changed, shown.failed) == (1, 0), shown.text
    assert "-0000:01:00.0 10de:1b02 vfio-pci" in shown.text
    assert site.files() == applied_files
    undone = site.play("-e", "gpuyard_host_undo=true", "-e", "gpuyard_host_reboot=false")
    assert (undone.changed, undone.failed) == (1, 0), undone.text
    assert site.files() == before


def test_a_reboot_is_asked_of_ansible_when_one_is_needed_and_allowed(site: Site) -> None:
    """Ansible itself refuses to reboot the machine that it runs on, before it does anything else."""
    materialise(machine().nodes, site.root)
    played = site.play("-e", LATER, "-e", "gpuyard_host_reboot=true")
    assert (played.changed, played.failed) == (1, 1), played.text
    assert "would reboot the control node" in played.text


@pytest.mark.slow
def test_the_services_are_installed(site: Site) -> None:
    """Not started: this folder is no running machine."""
    materialise(machine().nodes, site.root)
    url, tokens = "gpuyard_host_watch_url=https://gpus.example.org", "gpuyard_host_watch_token=gyh_secret"
    watch = ["-e", LATER, "-e", f"{url} {tokens} gpuyard_host_scrub_token=gys_secret"]
    played = site.play("--diff", *watch)
    assert played.failed == 0, played.text
    assert "_secret" not in played.text
    assert (site.root / "etc/gpuyard/watch.token").stat().st_mode & 0o777 == 0o600
    files = site.files()
    assert files["etc/gpuyard/watch.token"] == "gyh_secret\n"
    unit = files["etc/systemd/system/gpuyard-watch.service"]
    assert "watch --token-file ${CREDENTIALS_DIRECTORY}/token --url https://gpus.example.org --host gpu1" in unit
    assert files["etc/gpuyard/scrub.token"] == "gys_secret\n"
    assert (site.root / "etc/gpuyard/scrub.token").stat().st_mode & 0o777 == 0o600
    assert " scrub --token-file ${CREDENTIALS_DIRECTORY}/token" in files["etc/systemd/system/gpuyard-scrub.service"]
    zipapp = site.root / "usr/local/lib/gpuyard/gpuyard-host.pyz"
    assert zipapp.read_bytes() == (site.folder / "gpuyard-host.pyz").read_bytes()
    assert site.play(*watch).changed == 0


@pytest.mark.slow
def test_what_cannot_be_verified_fails(site: Site) -> None:
    """Nothing waits for a reboot here, but this machine has no such VFIO group."""
    materialise(machine("vfio-pci").nodes, site.root)
    played = site.play()
    assert (played.changed, played.failed) == (1, 1), played.text
    assert "Prove that VMs can have the GPUs" in played.text
    assert "/dev/vfio" in played.text


@pytest.mark.slow
def test_a_refusal_is_the_reason_of_the_failure(site: Site) -> None:
    materialise(machine().nodes, site.root)
    arguments = '{"gpuyard_host_arguments": ["--only", "09:00.0"]}'
    for options in ([], ["--check"]):
        played = site.play("-e", arguments, *options)
        assert (played.changed, played.failed) == (0, 1), played.text
        assert "there is no GPU at 0000:09:00.0, to be given away" in played.text


def test_a_zipapp_that_does_not_run_fails_with_its_words(site: Site) -> None:
    materialise(machine().nodes, site.root)
    (site.folder / "gpuyard-host.pyz").write_text("import sys\nsys.exit('this is no zipapp')\n")
    played = site.play()
    assert (played.changed, played.failed) == (0, 1), played.text
    assert "gpuyard ended with 1: this is no zipapp" in played.text


def test_a_variable_of_a_wrong_kind_is_named(site: Site) -> None:
    played = site.play("-e", '{"gpuyard_host_reboot": "perhaps"}')
    assert played.failed == 1
    assert "gpuyard_host_reboot" in played.text


def test_after_a_first_host_that_fails_no_other_one_begins(site: Site) -> None:
    """With the playbook that the page shows."""
    page = (ROLES.parents[1] / "docs/how-to/many-hosts.md").read_text()
    shown = (
        page.partition("```yaml\n")[2]
        .partition("```")[0]
        .replace("hosts: compute", "hosts: all\n  gather_facts: false")
    )
    (site.folder / "play.yml").write_text(shown.replace("gpuyard_host_zipapp: ", "gpuyard_host_note: "))
    materialise(Sysfs().nodes, site.root)
    played = site.play("-l", "all", "-e", "gpuyard_host_zipapp=/nowhere", "-e", "ansible_become=false")
    assert played.failed == 1, played.text
    recap = played.text.partition("PLAY RECAP")[2]
    assert "gpu1" in recap
    assert "gpu2" not in recap
