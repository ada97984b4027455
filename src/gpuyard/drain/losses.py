"""Describes what a server loses when it moves, in words for its owner. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.drain.facts import GuestServer


def losses(server: GuestServer, way: str) -> tuple[str, ...]:
    """Return what a server loses on the way. `way`: a value of `MoveWay`."""
    return tuple(_WAYS[way](server))


def _live(server: GuestServer) -> Iterable[str]:
    longer = ", the longer the more memory its GPUs have" if server.asks or server.gpus else ""
    yield f"stands still for some seconds at the end{longer}"


def _migrate(server: GuestServer) -> Iterable[str]:
    if server.status == "SHUTOFF":
        yield "is off, and stays off"
    else:
        copied = "" if not _local(server) else f" while {_local(server)} GiB of disk are copied"
        memory = ", and what its GPUs have in memory," if server.asks or server.gpus else ""
        yield f"is down{copied}, and boots again: programs that run{memory} are lost"
    yield "keeps its disks, volumes, addresses and ports"
    yield from _other_gpus(server)


def _shelve(server: GuestServer) -> Iterable[str]:
    if server.status == "SHELVED":
        yield "gives its GPUs back, and has others when its owner unshelves it, wherever there are some then"
    else:
        when = "until its owner unshelves it, wherever there is a GPU then"
        yield f"is off {when}: programs and what its GPUs have are lost"
    if not server.from_volume and server.status == "SHELVED":
        yield "its root disk is made of the image that shelving made"
    elif not server.from_volume:
        yield "its root disk becomes an image, and is made of that again"
    yield from (f"its {what} is lost" for what in _beside_root(server))
    yield "keeps its volumes, addresses and ports"


def _evacuate(server: GuestServer) -> Iterable[str]:
    yield "was lost with its host, and boots anew elsewhere" if server.status != "SHUTOFF" else "is off, and stays off"
    if server.from_volume:
        yield "keeps its root disk, which is a volume"
    elif server.flavor.disk:
        yield (
            f"its root disk of {server.flavor.disk} GiB is lost, unless the hosts share storage: it is made of its "
            "image anew"
        )
    yield from (f"its {what} is lost, unless the hosts share storage" for what in _beside_root(server))
    yield "keeps its volumes, addresses and ports"
    yield from _other_gpus(server)


def _beside_root(server: GuestServer) -> Iterable[str]:
    if server.flavor.ephemeral:
        yield f"ephemeral disk of {server.flavor.ephemeral} GiB"
    if server.flavor.swap:
        yield f"swap of {server.flavor.swap} MiB"


def _local(server: GuestServer) -> int:
    return (0 if server.from_volume else server.flavor.disk) + server.flavor.ephemeral


def _other_gpus(server: GuestServer) -> Iterable[str]:
    if server.gpus:
        yield "has other GPUs of the same kind then, at other PCI addresses of the host; the server sees no difference"


_WAYS = {"live-migrate": _live, "migrate": _migrate, "shelve": _shelve, "evacuate": _evacuate}
