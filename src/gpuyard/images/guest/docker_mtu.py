#!/usr/bin/python3
"""Gives Docker's networks the MTU of the server's own network, before each start of Docker.

Networks of a cloud often carry less than 1500 bytes: Neutron takes 50 for VXLAN, 58 for Geneve. The server learns its
MTU by DHCP or from its config drive; Docker takes 1500 all the same, and then large packets to containers get lost: a
download hangs after its first bytes.

Writes /etc/docker/daemon.json: `mtu` for the default bridge, and `default-network-opts` for networks that are made
later, such as those of a GitHub job's service containers, where this Docker knows that key (24.0 and later; an older
one would not start with it). A value that somebody else has written stays. Docker starts in any case: a failure is
printed to its journal and changes nothing.

Runs in servers: the standard library of Python 3.9, and `ip`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DAEMON = Path("/etc/docker/daemon.json")
OURS = Path("/var/lib/gpuyard/docker-mtu.json")
"""What was written last: whatever differs from it is somebody else's."""
OPTION = "com.docker.network.driver.mtu"
LEAST = 576
"""What every IPv4 host takes; less is no MTU of a network."""


def main() -> None:
    try:
        mtu = mtu_of_default_route()
        if mtu is not None:
            write(DAEMON, OURS, mtu, knows_network_opts())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"gpuyard: Docker keeps the MTU that it has: {error}", file=sys.stderr)


def mtu_of_default_route() -> int | None:
    """The MTU of the interface by which the server reaches others; None without a default route."""
    for family in ("-4", "-6"):
        for route in json.loads(_ip(family, "-json", "route", "show", "default") or "[]"):
            links = json.loads(_ip("-json", "link", "show", "dev", route["dev"]) if "dev" in route else "[]")
            for link in links:
                if isinstance(link.get("mtu"), int) and link["mtu"] >= LEAST:
                    return int(link["mtu"])
    return None


def knows_network_opts() -> bool:
    """Whether this Docker has `default-network-opts`."""
    helped = subprocess.run(["dockerd", "--help"], capture_output=True, text=True, timeout=30, check=False)
    return "--default-network-opt " in helped.stdout


def write(daemon: Path, ours: Path, mtu: int, network_opts: bool) -> None:
    """Put the MTU into Docker's configuration, leaving everything that somebody else has written there.

    Raises ValueError when the file is no object of JSON, OSError when one cannot be written.
    """
    settings = _read(daemon)
    before = _read(ours)
    after: dict[str, object] = {"mtu": mtu}
    if network_opts:
        after["default-network-opts"] = {"bridge": {OPTION: str(mtu)}}
    others = {key: value for key, value in settings.items() if key not in before or value != before[key]}
    written = {key: value for key, value in after.items() if key not in others}
    _write(ours, written)  # first: after a power cut in between, what is not there yet is written at the next start
    _write(daemon, others | written)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=True).stdout


def _read(file: Path) -> dict[str, object]:
    try:
        settings = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    if not isinstance(settings, dict):
        raise ValueError(f"{file} is no object of JSON")
    return settings


def _write(file: Path, settings: dict[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(settings, indent=4) + "\n")
    os.replace(part, file)


if __name__ == "__main__":
    main()
