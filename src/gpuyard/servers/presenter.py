"""Prepares a server for its owner's page: what happens to it, and how to get in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from gpuyard.openstack.personal import PersonalServer, ServerAction, ServerAddress
from gpuyard.servers.keys import MADE_KEY

ACTIVE, BUILD, ERROR, SHUTOFF = "ACTIVE", "BUILD", "ERROR", "SHUTOFF"
SHELVED, OFFLOADED = "SHELVED", "SHELVED_OFFLOADED"
COLOURS = {ACTIVE: "free", BUILD: "held", ERROR: "blocked"}
"""Status -> state of a GPU on the map whose colour it has; others are as claimed."""
STAGES = {
    "scheduling": "Nova looks for a host with room for it.",
    "": "A host has been found, and prepares it.",
    "deleting": "It is being deleted.",
    "networking": "Its network is being prepared.",
    "block_device_mapping": "Its disk is being prepared.",
    "spawning": "The host copies the image and starts it.",
}
"""Task of a server in BUILD (nova/compute/task_states.py) -> what happens."""
ACTIONS = {
    ACTIVE: (ServerAction.REBOOT, ServerAction.HARD_REBOOT, ServerAction.STOP, ServerAction.SHELVE),
    SHUTOFF: (ServerAction.START, ServerAction.SHELVE),
    SHELVED: (ServerAction.UNSHELVE,),
    OFFLOADED: (ServerAction.UNSHELVE,),
    ERROR: (ServerAction.HARD_REBOOT,),
}
"""Status -> actions that Nova takes then, besides to delete and to rebuild."""
REBUILDABLE = (ACTIVE, SHUTOFF, ERROR)
"""States of a server that Nova rebuilds (`rebuild` in nova/compute/api.py)."""


@dataclass(frozen=True)
class ServerPage:
    server: PersonalServer
    colour: str
    stage: str
    """One sentence: what is happening to it, or the next step; empty where its status is enough."""
    ssh: str
    """The command that logs in; empty while there is no address."""
    actions: Sequence[ServerAction]
    may_rebuild: bool
    may_get_floating_ip: bool
    made_key: bool
    """True for a key that the portal has made, and shown once."""
    ssh_blocked: bool
    """True when no rule of its security groups lets ssh in."""


def server_page(server: PersonalServer, user: str, external: bool, admits_ssh: bool) -> ServerPage:
    """Return the page of a server. `user`: for ssh, as its image says; empty: unknown. `external`: whether there is a
    network for floating IPs."""
    ready = server.launched and not server.task
    floating = any(address.floating for address in server.addresses)
    return ServerPage(
        server=server,
        colour=colour_of(server),
        stage=_stage(server),
        ssh=_ssh(server, user) if server.status == ACTIVE else "",
        actions=ACTIONS.get(server.status, ()) if ready else (),
        may_rebuild=bool(server.image) and ready and server.status in REBUILDABLE,
        may_get_floating_ip=external and bool(server.addresses) and not floating,
        made_key=server.key.startswith(MADE_KEY),
        ssh_blocked=bool(server.addresses) and not admits_ssh,
    )


def colour_of(server: PersonalServer) -> str:
    """Return the state of a GPU on the map whose colour the server has."""
    return COLOURS.get(server.status, "claimed")


def _stage(server: PersonalServer) -> str:
    if server.status == BUILD:
        return STAGES.get(server.task, "It is being built.")
    if server.status == ERROR:
        return server.fault
    if server.status == SHELVED:
        return "It is off, and its host still keeps its GPU; Nova gives that back after a time that the site has set."
    if server.status == OFFLOADED:
        return "It has no GPU now; its disk is kept. Unshelve it to go on, when a GPU is free for you."
    if server.status == ACTIVE and not server.addresses:
        return "It is in no network: only its console leads in."
    return ""


def _ssh(server: PersonalServer, user: str) -> str:
    address = _way_in(server.addresses)
    if address is None:
        return ""
    identity = f" -i ~/.ssh/{quote(server.key)}" if server.key.startswith(MADE_KEY) else ""
    return f"ssh{identity} {user or 'USER'}@{address.ip}"


def _way_in(addresses: Sequence[ServerAddress]) -> ServerAddress | None:
    """Return the address to log in at: a floating one before others, IPv4 before IPv6."""
    return min(addresses, key=lambda address: (not address.floating, ":" in address.ip), default=None)
