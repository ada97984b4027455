"""Table of the override files that kolla-ansible merges into each service's configuration, in their order.

Each later file that exists replaces all values of the keys that it has. Read in kolla-ansible 20 to 22, whose roles
have the same order; a test reads it again from the released roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuyard.nova.options import ALIAS, DEVICE_SPEC, names_of

GLOBAL = "global.conf"


@dataclass(frozen=True)
class Role:
    """A role of kolla-ansible: its services that have the file, and the files below node_custom_config, in order."""

    name: str
    services: tuple[str, ...]
    layers: tuple[str, ...]


ROLES = (
    Role(
        "nova",
        ("nova-api", "nova-metadata", "nova-scheduler", "nova-super-conductor"),
        (GLOBAL, "nova.conf", "nova/{service}.conf", "nova/{host}/nova.conf"),
    ),
    Role(
        "nova-cell",
        (
            "nova-compute",
            "nova-compute-ironic",
            "nova-conductor",
            "nova-novncproxy",
            "nova-serialproxy",
            "nova-spicehtml5proxy",
        ),
        (GLOBAL, "nova.conf", "nova/{service}.conf", "nova/{host}/nova.conf", "nova/{host}/{service}.conf"),
    ),
    Role(
        "placement",
        ("placement-api",),
        (GLOBAL, "placement.conf", "placement/{service}.conf", "placement/{host}/placement.conf"),
    ),
)

OLD_NAMES = {
    **{option: names_of(option)[1:] for option in (DEVICE_SPEC, ALIAS)},
    ("DEFAULT", "executor_thread_pool_size"): (("DEFAULT", "rpc_thread_pool_size"),),
}
"""Option -> older names that Nova reads too."""


def override(service: str, host: str | None) -> str:
    """Return the file for the options of a service: the narrowest one that no other service reads."""
    if service == "placement":
        return "placement.conf"
    name = f"{service}.conf"
    if host is not None:
        return f"nova/{host}/{name}"
    return name if service == "nova" else f"nova/{name}"


def chains(hosts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the files that are merged, in order, for each service on each of these hosts."""
    for host in sorted(hosts):
        for role in ROLES:
            for service in role.services:
                yield tuple(layer.format(service=service, host=host) for layer in role.layers)


def neighbours(path: str, hosts: Iterable[str]) -> dict[str, bool]:
    """Return files that are merged with this one -> whether they come later, and so hide its keys."""
    later_by_path: dict[str, bool] = {}
    for chain in chains({*hosts, ""}):
        if path in chain:
            position = chain.index(path)
            later_by_path.update(
                {neighbour: index > position for index, neighbour in enumerate(chain) if index != position}
            )
    return later_by_path
