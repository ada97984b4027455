"""A cloud in memory as people see it in their own names; tests/contract/personal_cloud.py tries the same on it and on a
real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import (
    PersonalFlavor,
    PersonalImage,
    PersonalNetwork,
    PersonalServer,
    ServerAction,
    ServerAddress,
    ServerOrder,
    TokenExpiredError,
)
from tests.support.ledgers import NOON
from tests.support.people import InMemoryPeople

FLAVOR = PersonalFlavor("f-t4", "t4.15cores90GB", 15, 92160, 40)
UBUNTU = PersonalImage("i-ubuntu", "ubuntu-24.04-580", "580", 20, 2048, "ubuntu")
PLAIN = PersonalImage("i-plain", "debian-12", "", 3, 512, "debian")
LAN, OUTSIDE = PersonalNetwork("n-lan", "lan", False, True), PersonalNetwork("n-public", "public", True, False)
AFTER = {
    ServerAction.START: "ACTIVE",
    ServerAction.STOP: "SHUTOFF",
    ServerAction.REBOOT: "ACTIVE",
    ServerAction.HARD_REBOOT: "ACTIVE",
    ServerAction.SHELVE: "SHELVED_OFFLOADED",
    ServerAction.UNSHELVE: "ACTIVE",
    ServerAction.REBUILD: "ACTIVE",
}


@dataclass
class InMemoryPersonalClouds:
    """Opens the same cloud for every token that Keystone knows."""

    people: InMemoryPeople
    cloud: InMemoryPersonalCloud = field(default_factory=lambda: InMemoryPersonalCloud())
    opened: list[tuple[str, str]] = field(default_factory=list)
    """(token, project's id)."""

    def open(self, token: str, project_id: str) -> InMemoryPersonalCloud:
        if self.people.token(token) is None:
            raise TokenExpiredError("it is worth nothing any more")
        self.opened.append((token, project_id))
        return self.cloud


@dataclass
class InMemoryPersonalCloud:
    """What a test may change while the portal runs. Servers are ACTIVE at once."""

    all_images: list[PersonalImage] = field(default_factory=lambda: [PLAIN, UBUNTU])
    all_networks: list[PersonalNetwork] = field(default_factory=lambda: [LAN, OUTSIDE])
    all_flavors: list[PersonalFlavor] = field(default_factory=lambda: [FLAVOR])
    public_keys: dict[str, str] = field(default_factory=dict)
    servers_by_id: dict[str, PersonalServer] = field(default_factory=dict)
    orders: list[ServerOrder] = field(default_factory=list)
    refusal: CloudError | None = None
    """What Nova answers to the next order."""
    ssh_admitted: bool = False

    def images(self) -> Sequence[PersonalImage]:
        return self.all_images

    def networks(self) -> Sequence[PersonalNetwork]:
        return self.all_networks

    def key_names(self) -> Sequence[str]:
        return sorted(self.public_keys)

    def flavors(self) -> Sequence[PersonalFlavor]:
        return self.all_flavors

    def add_key(self, name: str, public_key: str) -> None:
        if name in self.public_keys:
            raise CloudError("taken", 409, f"Key pair '{name}' already exists.")
        self.public_keys[name] = public_key

    def delete_key(self, name: str) -> None:
        self.public_keys.pop(name, None)

    def servers(self, user_id: str) -> Sequence[PersonalServer]:
        return list(self.servers_by_id.values())

    def image_user(self, image_id: str) -> str:
        return next((image.user for image in self.all_images if image.id == image_id), "")

    def started(self, form: str) -> str:
        ids = [_id(number) for number, order in enumerate(self.orders, 1) if order.form == form]
        return next((id for id in ids if id in self.servers_by_id), "")

    def start(self, order: ServerOrder) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.orders.append(order)
        id = _id(len(self.orders))
        addresses = [ServerAddress("10.0.0.5", "lan", False)] if order.network else []
        self.servers_by_id[id] = PersonalServer(
            id,
            order.name,
            "ACTIVE",
            "",
            NOON,
            FLAVOR.name,
            order.image,
            order.key,
            "u-ada",
            addresses,
            "",
            ("default",),
        )
        return id

    def server(self, server_id: str) -> PersonalServer | None:
        return self.servers_by_id.get(server_id)

    def console_log(self, server_id: str) -> str:
        return "Linux version 6.8\x1b[31m\nlogin:"

    def console(self, server_id: str) -> str:
        return "https://console.example.org/?token=once"

    def act(self, server_id: str, action: ServerAction) -> None:
        if action is ServerAction.DELETE:
            self.servers_by_id.pop(server_id, None)
        else:
            self.servers_by_id[server_id] = replace(self.servers_by_id[server_id], status=AFTER[action])

    def add_floating_ip(self, server_id: str) -> None:
        server = self.servers_by_id[server_id]
        if not server.addresses:
            raise CloudError("no port", 409, "The server has no network port yet.")
        self.servers_by_id[server_id] = replace(
            server, addresses=[*server.addresses, ServerAddress("192.0.2.7", "lan", True)]
        )

    def admits_ssh(self, server_id: str) -> bool:
        return self.ssh_admitted or not self.servers_by_id[server_id].addresses

    def admit_ssh(self, server_id: str) -> None:
        self.ssh_admitted = True


def _id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"
