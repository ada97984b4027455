"""Reads recordings of hosts, and finds the names that Nova has for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuyard.host.recording import replay_file
from gpuyard.model.errors import UsageError
from gpuyard.model.host import Inventory


@dataclass(frozen=True)
class Recorded:
    """A recorded host."""

    host: str
    path: Path
    inventory: Inventory


def read_recordings(named: Iterable[tuple[str | None, Path]], hosts: Collection[str] | None) -> list[Recorded]:
    """Read recordings, each with the name of its host, or None for the name that it was recorded under.

    `hosts` are those of the nova-compute services; None where no cloud was asked. Raises UsageError for a file that is
    no recording, one without a name or of a host that is not among them, and two of one host.
    """
    recordings: dict[str, Recorded] = {}
    for name, path in named:
        inventory = replay_file(path)
        host_name = name or inventory.host_name
        if not host_name:
            raise UsageError(f"{path}: the recording has no host name; give it one: --recording HOST={path}")
        host = service_name(host_name, hosts or ())
        if hosts is not None and host not in hosts:
            have = ", ".join(sorted(hosts)[:8]) + (", ..." if len(hosts) > 8 else "")
            raise UsageError(
                f"{path}: the cloud has no nova-compute service {host_name!r}; it has {have or 'none'}; name the "
                f"recording's host: --recording HOST={path}"
            )
        if host in recordings:
            raise UsageError(f"{path}: {recordings[host].path} is a recording of {host} too; leave one of them out")
        recordings[host] = Recorded(host, path, inventory)
    return list(recordings.values())


def service_name(name: str, hosts: Collection[str]) -> str:
    """Return the nova-compute service that a name means, with or without its domain; the name itself when there is
    none."""
    if name in hosts:
        return name
    same = [host for host in hosts if host.split(".")[0].lower() == name.split(".")[0].lower()]
    return same[0] if len(same) == 1 else name
