"""Stand-in for a guest that accepts GPUs: plays its server from its user data and its host's files about the GPUs.

It writes to its console what ``health/guest/accept.sh`` writes there. Only the driver is made up: a GPU that was broken
with 'gpuyard lab gpu break' fails here as it would there, since the same files are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gpuyard.guest.cloud_config import FOLDER
from gpuyard.health.acceptance_guest import PREFIX
from gpuyard.host.scan import DEVICES
from gpuyard_lab.github.guest import UserDataUnreadError, content_of

BOOT, CHECK = timedelta(seconds=2), timedelta(seconds=1)
DRIVER = "stand-in"
NO_ANSWER = b"\xff\xff\xff\xff"


@dataclass(frozen=True)
class AcceptOrders:
    """The settings that a guest finds in its user data."""

    nonce: str
    gpus: int
    ids: frozenset[str]


def accept_orders(user_data: str) -> AcceptOrders:
    """Read the settings as cloud-init and the script do. Raises UserDataUnreadError for other user data."""
    try:
        document = YAML(typ="safe", pure=True).load(user_data)
        files = {entry["path"]: content_of(entry) for entry in document["write_files"]}
        if ["sh", f"{FOLDER}/accept"] not in document["runcmd"] or f"{FOLDER}/accept" not in files:
            raise UserDataUnreadError("no acceptance")
        settings = dict(line.split("=", 1) for line in files[f"{FOLDER}/settings"].splitlines())
        return AcceptOrders(settings["NONCE"], int(settings["GPUS"]), frozenset(settings["IDS"].strip("'").split()))
    except (YAMLError, KeyError, TypeError, ValueError) as error:
        raise UserDataUnreadError(f"not an acceptance's: {type(error).__name__}") from None


class AcceptGuest:
    """The guest of one server, with the GPUs of `places`: (folder of its host, PCI address there)."""

    def __init__(
        self, user_data: str, now: datetime, places: Sequence[tuple[Path, str]], write: Callable[[str], None],
        boot: timedelta = BOOT, check: timedelta = CHECK,
    ) -> None:  # fmt: skip
        """Raises UserDataUnreadError when the server is no acceptance's."""
        self.orders = accept_orders(user_data)
        self.off = False
        self._places, self._write = places, write
        self._steps = [(now + boot, self._begin), (now + boot + check, self._check)]

    def step(self, now: datetime) -> None:
        while self._steps and now >= self._steps[0][0]:
            self._steps.pop(0)[1]()

    def _say(self, text: str) -> None:
        self._write(f"\n{PREFIX}{self.orders.nonce} {text}\n")

    def _begin(self) -> None:
        self._write("cloud-init[412]: Cloud-init v. 22.4.2 running 'modules:final'\n")
        self._say("begun")

    def _check(self) -> None:
        self._say(self._verdict())
        self._say("over")

    def _verdict(self) -> str:
        present = [(root, address) for root, address in self._places if self._ids_of(root, address) in self.orders.ids]
        if len(present) != self.orders.gpus:
            expected = " ".join(sorted(self.orders.ids))
            return f"failed {len(present)} of {self.orders.gpus} GPUs ({expected}) are on the machine's PCI bus"
        for root, address in present:
            if _file(root, address, "config")[:4] == NO_ANSWER:
                return f"failed {address} does not answer: its config space reads 0xff"
        self._say(f"driver {DRIVER}")
        shown = "; ".join(f"stand-in at 00000000:{5 + number:02x}:00.0" for number in range(len(present)))
        return f"ok {len(present)} {shown}"

    def _ids_of(self, root: Path, address: str) -> str:
        """``vendor:product``, as sysfs says; of one that is missing nothing."""
        ids = (_file(root, address, name).decode(errors="replace").strip() for name in ("vendor", "device"))
        return ":".join(hex_id.removeprefix("0x") for hex_id in ids)


def places_of(place: Mapping[str, object], hosts: Path) -> list[tuple[Path, str]]:
    """Return the places of a server's GPUs, from the hypervisor's record of the server. `hosts`: the folder with the
    trees of the lab's hosts."""
    host, gpus = str(place["host"]), place["gpus"]
    assert isinstance(gpus, list)
    return [(hosts / host, str(address)) for address in gpus]


def _file(root: Path, address: str, name: str) -> bytes:
    try:
        return (root / DEVICES / address / name).read_bytes()
    except OSError:
        return b""
