"""Parses ``[pci]device_spec`` as nova-compute does: why it refuses an entry, and which devices an entry matches.

The same as nova.pci.devspec of Nova 31 to 34, without a machine to look at; a test holds the two against each other.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.model.pci import PciFunction
from gpuyard.nova.config import Located, Rejection, View
from gpuyard.nova.gpu_models import may_be_gpu
from gpuyard.nova.ini import TEMPLATE_VALUE
from gpuyard.nova.json_text import JsonProblem, JsonValue, object_lines, read_json
from gpuyard.nova.options import DEVICE_SPEC, names_of

ONE_TIME_USE = "HW_PCI_ONE_TIME_USE"
"""Nova's trait for the devices that it reserves when a server gets them (nova 32.0.0 and later,
nova/compute/pci_placement_translator.py: `add_parent`; 31.0.0 has none)."""
MATCHERS = ("vendor_id", "product_id", "address", "devname")
TAGS = (
    "physical_network", "trusted", "remote_managed", "managed", "live_migratable", "resource_class", "traits",
    "one_time_use",
)  # fmt: skip
TRUTH = {"1": True, "t": True, "true": True, "on": True, "y": True, "yes": True}
UNTRUTH = {"0": False, "f": False, "false": False, "off": False, "n": False, "no": False}

ANY = "*"
PARTS = ("domain", "bus", "slot", "function")
LIMITS = (0xFFFF, 0xFF, 0x1F, 0x7)
WIDTHS = (4, 2, 2, 1)
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class DeviceSpecError(Exception):
    """Raised for an entry that Nova does not accept."""


@dataclass(frozen=True)
class Address:
    """The ``address`` of an entry: a glob, or regular expressions."""

    parts: tuple[str, str, str, str]
    regex: bool

    def matches(self, address: str) -> bool:
        fields = split_address(address)
        if fields is None:
            return False
        if self.regex:
            return all(_compiled(pattern).match(text) for pattern, text in zip(self.parts, fields, strict=True))
        return all(pattern in (ANY, text) for pattern, text in zip(self.parts, fields, strict=True))

    @property
    def single(self) -> bool:
        """Whether Nova takes it for one device, and so checks whether that is a physical function."""
        return all(HEX_DIGITS.issuperset(part) for part in self.parts)

    @property
    def everything(self) -> bool:
        """Whether it matches every address."""
        return all(self.free(index) for index in range(4))

    def free(self, index: int) -> bool:
        """Return whether the domain (0), bus, slot or function (3) can be anything."""
        pattern, width = self.parts[index], WIDTHS[index]
        if not self.regex:
            return pattern == ANY
        values = range(0, LIMITS[index] + 1, 1 if LIMITS[index] < 0xFFFF else 0xFFF)
        return all(_compiled(pattern).match(f"{value:0{width}x}") for value in values)

    def __str__(self) -> str:
        domain, bus, slot, function = self.parts
        return f"{domain}:{bus}:{slot}.{function}"


def split_address(address: str) -> tuple[str, ...] | None:
    """Return the four fields of an address; None for a domain that is too long for Nova (VMD)."""
    fields = tuple(re.split("[:.]", address))
    return fields if len(fields) == 4 and len(fields[0]) == 4 else None


def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():  # of sets in sets, which a later Python may read differently
        warnings.simplefilter("ignore")
        return re.compile(pattern)


@dataclass(frozen=True)
class Entry:
    """One object of device_spec that Nova accepts."""

    source: Located
    line: int
    raw: dict[str, Any]
    vendor: str
    product: str
    address: Address | None
    """The address; None with a devname."""

    @property
    def everything(self) -> bool:
        return self.vendor == ANY == self.product and self.address is not None and self.address.everything

    @property
    def unknown_keys(self) -> list[str]:
        return [key for key in self.raw if key not in (*MATCHERS, *TAGS)]

    def matches(self, function: PciFunction, physical: Iterable[str] = ()) -> bool:
        """Return whether Nova would offer the function; `physical` are the addresses of functions that can have VFs."""
        if self.vendor not in (ANY, function.vendor_id) or self.product not in (ANY, function.product_id):
            return False
        if self.address is None:
            return False
        parent = function.physical_function
        if parent and self.address.single and str(self.address) in physical and self.address.matches(parent):
            return True
        return self.address.matches(function.address)

    @property
    def for_gpus(self) -> bool:
        """Whether it can be for GPUs: neither a network's nor by ids or name that of another device."""
        return (
            self.address is not None and not self.raw.get("physical_network") and may_be_gpu(self.vendor, self.product)
        )

    def truth(self, tag: str) -> bool:
        return bool(truth(self.raw.get(tag)))

    def __str__(self) -> str:
        if self.address is None:
            return f"devname {self.raw.get('devname')}"
        ids = "" if self.vendor == ANY == self.product else f" {self.vendor}:{self.product}"
        return f"{'*' if self.address.everything else self.address}{ids}"


def truth(value: object) -> bool | None:
    """Parse a truth value as Nova does in JSON; None when it is not one."""
    if isinstance(value, bool):
        return value
    return {**TRUTH, **UNTRUTH}.get(str(value).strip().lower())


def matchers_of(raw: Mapping[str, Any]) -> tuple[str, str, Address | None]:
    """Return vendor, product and address of one object; the address is None with a devname.

    Raises DeviceSpecError with the reason why nova-compute would not start.
    """
    vendor, product = (_id(raw, key) for key in ("vendor_id", "product_id"))
    raw_address, devname = raw.get("address"), raw.get("devname")
    if raw_address and devname:
        raise DeviceSpecError("it has both address and devname")
    address = None if devname else _address(raw_address or "*:*:*.*")
    for tag in ("managed", "live_migratable", "one_time_use"):
        if raw.get(tag) is not None and truth(raw[tag]) is None:
            raise DeviceSpecError(f"{tag} is {raw[tag]!r}, which is not a truth value")
    return vendor, product, address


def _id(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key, ANY)
    if not isinstance(value, str):
        raise DeviceSpecError(f"{key} is {value!r}, not text in quotes")
    value = value.strip() if key == "vendor_id" else value
    return _hex(key, value, 0xFFFF, 4)


def _hex(name: str, value: str, limit: int, width: int) -> str:
    if value == ANY:
        return value
    try:
        number = int(value, 16)
    except ValueError:
        raise DeviceSpecError(f"{name} {value!r} is not a hexadecimal number") from None
    if number > limit:
        raise DeviceSpecError(f"{name} {value!r} is greater than {limit:X}")
    return f"{number:0{width}x}"


def _address(value: object) -> Address:
    if isinstance(value, str):
        return _glob(value)
    if not isinstance(value, dict):
        raise DeviceSpecError(f"address is {value!r}, neither text nor an object")
    parts = [value.get(part, ".*") for part in PARTS]
    try:
        for part in parts:
            _compiled(part)
    except (re.error, TypeError, OverflowError, RecursionError):
        raise DeviceSpecError(f"address {value!r} is not made of regular expressions") from None
    return Address((parts[0], parts[1], parts[2], parts[3]), regex=True)


def _glob(value: str) -> Address:
    front, _, function = value.partition(".")
    fields = front.split(":") if front else []
    if len(fields) > 3:
        raise DeviceSpecError(f"address {value!r} has too many colons")
    texts = [ANY] * (3 - len(fields)) + [field.strip() or ANY for field in fields]
    texts.append(function.strip() if function else ANY)
    checked = [
        _hex(f"the {part} of address {value!r},", text, limit, width)
        for part, text, limit, width in zip(PARTS, texts, LIMITS, WIDTHS, strict=True)
    ]
    return Address((checked[0], checked[1], checked[2], checked[3]), regex=False)


@dataclass(frozen=True)
class DeviceSpecs:
    """All entries of device_spec that one service reads."""

    entries: tuple[Entry, ...]
    refusals: tuple[Rejection, ...]
    repeated: tuple[tuple[Located, str], ...]
    """Settings with keys that occur twice in an object."""

    @property
    def set(self) -> bool:
        return bool(self.entries or self.refusals)


def settings_of(view: View) -> list[Located]:
    return view.under(names_of(DEVICE_SPEC))


def device_specs(view: View) -> DeviceSpecs:
    return view.once("device_specs", _device_specs)


def _device_specs(view: View) -> DeviceSpecs:
    entries: list[Entry] = []
    refusals: list[Rejection] = []
    repeated: list[tuple[Located, str]] = []
    for source in settings_of(view):
        if TEMPLATE_VALUE in source.value:
            continue
        value = read_json(source.value)
        if isinstance(value, JsonProblem):
            line = source.setting.line + value.line
            refusals.append(
                Rejection(source, line, f"{source.setting} is not JSON: {value.message}", value.fix, json=True)
            )
            continue
        repeated += [(source, key) for key in value.repeated]
        _read(source, value, entries, refusals)
    return DeviceSpecs(tuple(entries), tuple(refusals), tuple(repeated))


def _read(source: Located, value: JsonValue, entries: list[Entry], refusals: list[Rejection]) -> None:
    objects = value.data if isinstance(value.data, list) else [value.data]
    lines = list(object_lines(source.value))
    for index, raw in enumerate(objects):
        line = source.setting.line + (lines[index] if len(lines) == len(objects) else 0)
        if not isinstance(raw, dict):
            reason = f"{source.setting} has {raw!r} where an object belongs"
            refusals.append(Rejection(source, line, reason, 'write {"address": "...", ...}'))
            continue
        try:
            entries.append(Entry(source, line, raw, *matchers_of(raw)))
        except DeviceSpecError as error:
            fix = 'write ids and numbers as hexadecimal text in quotes, as in "10de" and "0000:27:00.0"'
            refusals.append(Rejection(source, line, f"{source.setting}: {error}", fix))
