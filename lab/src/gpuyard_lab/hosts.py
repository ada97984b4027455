"""Plays the hosts of a lab: one process observes the tree of each as its `gpuyard host watch` would, and reports to the
portal.

Only the trees are made up (host_trees.py); the code that observes and sends is the one that runs on hypervisors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpuyard.host.kernel_log import KernelLog
from gpuyard.host.portal_client import PortalReportClient
from gpuyard.host.tree import open_tree
from gpuyard.host.watch_loop import Watcher
from gpuyard.model.errors import GpuyardError
from gpuyard.site.load import LoadedSite
from gpuyard_lab import processes
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import private_folder, write_json, write_private
from gpuyard_lab.host_trees import plant
from gpuyard_lab.settings import Lab, remembered
from gpuyard_lab.status import UP, ServiceStatus, memory_mib

HOSTS = "hosts"
LOOK_S = 2.0
"""Seconds between observations of one host; a hypervisor's watch takes longer, and nobody waits for it."""
QEMU = "11.0.0"
"""The version of QEMU that the lab's hosts report."""


@dataclass(frozen=True)
class PlayedHost:
    name: str
    root: Path

    @property
    def token_file(self) -> Path:
        return self.root.with_name(f"{self.root.name}.token")


def start_hosts(lab: Lab, loaded: LoadedSite, portal_url: str, token_of: Callable[[str], str]) -> int:
    """Play the hosts of a site that follows the health of its GPUs, against the portal that serves it. Returns how many
    there are. Broken GPUs stay broken; a host that was recorded anew is planted anew. `token_of` makes a token with
    which a host reports its GPUs."""
    if loaded.site.health is None:
        processes.end(lab.state, HOSTS)
        return 0
    hosts = [_planted(lab, loaded, name) for name in loaded.site.hosts]
    record = {"url": portal_url, "hosts": [host.name for host in hosts]}
    if HOSTS in processes.leaders(processes.find(lab.state)) and _record(lab) == record:
        return len(hosts)
    processes.end(lab.state, HOSTS)
    for host in hosts:
        write_private(host.token_file, token_of(host.name) + "\n")
    write_json(_file(lab), record)
    command = [sys.executable, "-P", "-m", "gpuyard_lab.hosts", "--url", portal_url, str(lab.hosts)]
    processes.start(lab.state, HOSTS, command, processes.clean_environment(), lab.log_of(HOSTS))
    return len(hosts)


def look_at_hosts(state: Path) -> ServiceStatus | None:
    """Return the row of the played hosts in the status of a lab; None for a lab whose hosts are not played."""
    lab = remembered(state)
    if lab is None or not _file(lab).exists():
        return None
    lab_processes = processes.find(state)
    process = processes.leaders(lab_processes).get(HOSTS)
    if process is None:
        return ServiceStatus(HOSTS, str(lab.hosts), None, None, "down")
    return ServiceStatus(HOSTS, str(lab.hosts), process.pid, memory_mib(HOSTS, lab_processes), UP)


def root_of(lab: Lab, host: str) -> Path:
    """Return the folder of a host's tree. Raises LabError when none is played."""
    root = lab.hosts / host
    host_names = sorted(path.name for path in lab.hosts.iterdir() if path.is_dir()) if lab.hosts.is_dir() else []
    if not host:
        raise LabError("name a GPU of the lab as HOST/ADDRESS, as 'gpuyard gpu list' shows them")
    if host not in host_names:
        hint = f"there is {', '.join(host_names)}" if host_names else "its site has no 'health', or it was never up"
        raise LabError(f"no host {host!r} is played in the lab in {lab.state}; {hint}")
    return root


def _planted(lab: Lab, loaded: LoadedSite, name: str) -> PlayedHost:
    recording = (loaded.path.parent / loaded.site.hosts[name].recording).read_text(encoding="utf-8")
    gpus = [gpu.address for gpu in loaded.compiled.whole_gpus if gpu.host == name and not gpu.blocked]
    host = PlayedHost(name, private_folder(lab.hosts) / name)
    stamp = host.root.with_name(f"{name}.stamp")
    digest = hashlib.sha256(f"{gpus}{recording}".encode()).hexdigest()
    if not (stamp.exists() and stamp.read_text(encoding="ascii") == digest):
        plant(host.root, name, recording, gpus)
        write_private(stamp, digest)
    return host


def _file(lab: Lab) -> Path:
    return lab.state / "hosts.json"


def _record(lab: Lab) -> object:
    try:
        return json.loads(_file(lab).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class Played:
    """A played host, which observes itself and reports to the portal."""

    def __init__(self, host: PlayedHost, url: str) -> None:
        self.name = host.name
        self._session = PortalReportClient(url, str(host.token_file))
        self._watcher = Watcher(open_tree(str(host.root)), KernelLog(lambda: None), lambda: QEMU, host.name)
        self._told = ""

    def step(self, number: int, now: str) -> None:
        """Observe and report once. A problem is printed once, until it changes."""
        try:
            self._session.post(
                f"/v1/hosts/{quote(self.name, safe='')}/looks", self._watcher.look(number, now).as_dict()
            )
            self._watcher.arrived()
            self._told = ""
        except GpuyardError as error:
            if str(error) != self._told:
                self._told = str(error)
                print(f"{self.name}: {error}", file=sys.stderr, flush=True)


def play(hosts: Sequence[Played]) -> None:
    """Step all hosts, for ever."""
    while True:
        for host in hosts:
            number = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
            host.step(number, time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()))
        time.sleep(LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpuyard_lab.hosts")
    parser.add_argument("--url", required=True)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    roots = sorted(path for path in options.folder.iterdir() if path.is_dir())
    play([Played(PlayedHost(root.name, root), options.url) for root in roots])


if __name__ == "__main__":
    main()
