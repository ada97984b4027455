"""Lists network interfaces of this machine with their addresses, as ``ip`` of iproute2 prints them.

sysfs has no addresses, and Ansible takes those that Kolla binds services to from the same program.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

from gpuyard.host.local_host import PATH
from gpuyard.host.needs import default_route_interfaces
from gpuyard.host.tree import Tree

LIST = ("ip", "-json", "address", "show")
SECONDS = 30
OWN_SCOPES = ("global", "site")
"""Not ``host`` (127.0.0.1) nor ``link`` (fe80::/10), which every interface has."""


@dataclass(frozen=True)
class HostInterface:
    """One network interface."""

    name: str
    addresses: Tuple[str, ...] = ()
    """By which others may reach the machine, in the order of ``ip``."""
    master: str = ""
    """The bond, bridge or switch that it is part of."""
    default_route: bool = False

    def as_dict(self) -> Dict[str, Any]:
        return {
            "name": self.name,
            "addresses": list(self.addresses),
            "master": self.master,
            "default_route": self.default_route,
        }

    @classmethod
    def from_dict(cls, values: Dict[str, Any]) -> HostInterface:
        """Raises KeyError, TypeError."""
        addresses = values["addresses"]
        if not isinstance(addresses, list):
            raise TypeError("addresses is no list")
        texts = tuple(str(address) for address in addresses)
        return cls(str(values["name"]), texts, str(values["master"]), values["default_route"] is True)


def observe_interfaces(tree: Tree, command: Sequence[str] = LIST) -> Tuple[Tuple[HostInterface, ...], str]:
    """The interfaces of this machine, and why they are not known; `tree` has the routes."""
    environment = {**os.environ, "PATH": f"{PATH}:{os.environ.get('PATH', '')}", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        return (), f"{command[0]} is not there; install iproute2, which Ansible needs as well"
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"{' '.join(command)}: {error}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return (), f"{' '.join(command)}: {lines[-1][:200] if lines else f'ended with {done.returncode}'}"
    try:
        return parse_interfaces(json.loads(done.stdout), default_route_interfaces(tree)), ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return (), f"{' '.join(command)} printed something that is not its list of interfaces"


def parse_interfaces(listed: Any, routes: Sequence[str]) -> Tuple[HostInterface, ...]:
    """What ``ip -json address show`` printed. `routes`: interfaces that default routes go out by. Raises KeyError,
    TypeError, AttributeError for anything else."""
    return tuple(
        HostInterface(
            name=str(entry["ifname"]),
            addresses=tuple(
                str(info["local"]) for info in entry.get("addr_info", ()) if info.get("scope") in OWN_SCOPES
            ),
            master=str(entry.get("master", "")),
            default_route=entry["ifname"] in routes,
        )
        for entry in listed
        if entry  # some versions print {} for an interface that they leave out
    )
