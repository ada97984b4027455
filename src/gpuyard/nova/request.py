"""Reads a flavor as Nova does: what a server of it asks of Placement, of Nova's filters and of limits.

The rules are those of Nova 34 (``nova/scheduler/utils.py`` ResourceRequest, ``nova/pci/request.py`` and
``nova/virt/hardware.py`` numa_get_constraints), for a server that boots from an image without properties.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.alias import Alias
from gpuyard.nova.alias_spec import ALIAS_SPEC, asked_aliases

AGGREGATE_SCOPE = "aggregate_instance_extra_specs"
GROUP_KEY = re.compile(r"^(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)$")
PINNED = "PCPU"
SHARED = "VCPU"

# Extra specs that have Nova require a trait of the host: value -> trait.
IMPLIED_TRAITS = {
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:pci_numa_affinity_policy": {"socket": "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"},
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT"},
}
# Extra specs that decide about hosts in ways that cannot be seen from outside, or that gpuyard does not follow.
NOT_FOLLOWED = re.compile(
    r"^(capabilities:.*|accel:device_profile|hw:(tpm_.*|mem_encryption|mem_encryption_model|pmem|maxphysaddr_bits"
    r"|virtio_packed_ring|ephemeral_encryption.*|sound_model|cpu_thread_policy|cpu_dedicated_mask))$"
)


@dataclass(frozen=True)
class NovaFlavor:
    """A flavor as Nova has it. RAM and swap in MiB, disks in GiB."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int = 0
    swap: int = 0
    public: bool = True
    disabled: bool = False
    projects: frozenset[str] = frozenset()
    """Ids of the projects with access, for a private flavor."""
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True)
class DeviceNeed:
    """One PCI device that a flavor asks for; an alias with a count of 2 is two of these."""

    alias: str
    resource_class: str
    traits: frozenset[str] = frozenset()
    device_type: str | None = None

    def __str__(self) -> str:
        return self.resource_class + (f" with trait {', '.join(sorted(self.traits))}" if self.traits else "")


@dataclass(frozen=True)
class OwnGroup:
    """A group of resources that the flavor wants from one provider: ``resources1:CUSTOM_X=1``."""

    suffix: str
    amounts: Mapping[str, int]
    traits: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Request:
    """A flavor as Nova reads it."""

    amounts: Mapping[str, int]
    """Resource class -> amount that the host itself must have; ``PCPU`` may be had as ``VCPU`` instead."""
    traits: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    groups: tuple[OwnGroup, ...] = ()
    devices: tuple[DeviceNeed, ...] = ()
    unplaced: tuple[DeviceNeed, ...] = ()
    """Devices that Placement is not asked for: only PciPassthroughFilter decides about them."""
    group_policy: str | None = None
    numa: str = ""
    """The extra spec for which Nova wants a NUMA topology; empty when none does."""
    numa_nodes: int = 0
    aggregate_specs: Mapping[str, str] = field(default_factory=dict)
    """Extra specs that AggregateInstanceExtraSpecsFilter, where it is on, compares with the metadata of aggregates."""
    not_followed: tuple[str, ...] = ()
    """Extra specs that restrict hosts in ways that gpuyard does not follow."""
    problems: tuple[Finding, ...] = ()
    """Reasons why Nova refuses the flavor itself."""

    @property
    def all_traits(self) -> frozenset[str]:
        """Required traits of all groups, with which isolated aggregates are compared."""
        return self.traits.union(*(g.traits for g in self.groups), *(d.traits for d in self.devices))

    def counted(self, devices: bool) -> dict[str, int]:
        """Return limit name -> what one server adds; `devices`: whether this release of Nova counts PCI devices."""
        total = {"servers": 1}
        parts = [self.amounts, *(g.amounts for g in self.groups)]
        parts += [{d.resource_class: 1} for d in self.devices if devices or not d.alias]
        for part in parts:
            for name, amount in part.items():
                total[f"class:{name}"] = total.get(f"class:{name}", 0) + amount
        return total

    def with_devices(self, classes: Collection[str]) -> Request:
        """Return the same where these classes are of devices, as those of vGPUs: each unit is one, which no alias
        names."""
        names = [name for name, amount in self.amounts.items() if name in classes for _ in range(amount)]
        rest = {name: amount for name, amount in self.amounts.items() if name not in classes}
        return replace(self, amounts=rest, devices=(*self.devices, *(DeviceNeed("", name) for name in names)))

    def without_devices(self) -> Request:
        """Return the same where Nova does not ask Placement for devices (``pci_in_placement`` is off)."""
        return replace(self, devices=(), unplaced=self.devices)

    def queries(self) -> list[dict[str, str]]:
        """Return the parameters of Nova's ``GET /allocation_candidates``: one query, or two where pinned CPUs are
        asked."""
        queries = [self._query(self.amounts)]
        if PINNED in self.amounts:  # Nova falls back to shared CPUs, for hosts that were never told of pinned ones
            queries.append(self._query({SHARED if k == PINNED else k: v for k, v in self.amounts.items()}))
        return queries

    def _query(self, amounts: Mapping[str, int]) -> dict[str, str]:
        query = {"limit": "1000", "root_required": "!COMPUTE_STATUS_DISABLED"}
        query |= _group_query("", amounts, self.traits, self.forbidden)
        for group in self.groups:
            query |= _group_query(group.suffix, group.amounts, group.traits, group.forbidden)
        for index, need in enumerate(self.devices):
            query |= _group_query(f"_DEVICE{index}", {need.resource_class: 1}, need.traits, frozenset())
        policy = self.group_policy
        if policy is None and len(self.groups) + len(self.devices) > 1 and len(self.groups) <= 1:
            policy = "none"
        return query | ({"group_policy": policy} if policy else {})


def _group_query(
    suffix: str, amounts: Mapping[str, int], traits: frozenset[str], forbidden: frozenset[str]
) -> dict[str, str]:
    query = {}
    if amounts:
        query[f"resources{suffix}"] = ",".join(f"{name}:{amount}" for name, amount in sorted(amounts.items()))
    if traits or forbidden:
        query[f"required{suffix}"] = ",".join([*sorted(traits), *(f"!{name}" for name in sorted(forbidden))])
    return query


def request_of(flavor: NovaFlavor, aliases: Mapping[str, Alias]) -> Request:
    """Return what a server of this flavor asks for."""
    specs = flavor.extra_specs
    own = _own_groups(specs)
    amounts, traits, forbidden = own.pop("", ({}, set(), set()))
    named = {name for group in own.values() for name in group[0]} | amounts.keys()
    pinned = specs.get("hw:cpu_policy") == "dedicated"
    if not named & {SHARED, PINNED}:
        emulator = pinned and specs.get("hw:emulator_threads_policy") == "isolate"
        amounts[PINNED if pinned else SHARED] = flavor.vcpus + emulator
    if "MEMORY_MB" not in named:
        amounts["MEMORY_MB"] = flavor.ram
    if "DISK_GB" not in named:
        amounts["DISK_GB"] = flavor.disk + flavor.ephemeral + -(-flavor.swap // 1024)
    for key, by_value in IMPLIED_TRAITS.items():
        if specs.get(key) in by_value:
            traits.add(by_value[specs[key]])
    devices, problems = _devices(specs, aliases)
    numa, nodes = _numa(specs, named)
    return Request(
        amounts={name: amount for name, amount in amounts.items() if amount},
        traits=frozenset(traits),
        forbidden=frozenset(forbidden),
        groups=tuple(
            OwnGroup(suffix, {k: v for k, v in group[0].items() if v}, frozenset(group[1]), frozenset(group[2]))
            for suffix, group in sorted(own.items())
        ),
        devices=devices,
        group_policy=specs.get("group_policy") if specs.get("group_policy") in ("none", "isolate") else None,
        numa=numa,
        numa_nodes=nodes,
        aggregate_specs=_aggregate_specs(specs),
        not_followed=tuple(sorted(f"{key}={value}" for key, value in specs.items() if NOT_FOLLOWED.match(key))),
        problems=problems,
    )


_Group = tuple[dict[str, int], set[str], set[str]]


def _own_groups(specs: Mapping[str, str]) -> dict[str, _Group]:
    """Suffix -> amounts, required traits, forbidden traits. Nova skips an amount that is no number; so does this."""
    groups: dict[str, _Group] = {"": ({}, set(), set())}
    for key, value in specs.items():
        match = GROUP_KEY.match(key)
        if not match:
            continue
        prefix, suffix, name = match.groups()
        group = groups.setdefault(suffix or "", ({}, set(), set()))
        if prefix == "resources" and re.fullmatch(r"\d+", value.strip()):
            group[0][name] = int(value)
        elif prefix == "trait" and value in ("required", "forbidden"):
            (group[1] if value == "required" else group[2]).add(name)
    return groups


def _devices(
    specs: Mapping[str, str], aliases: Mapping[str, Alias]
) -> tuple[tuple[DeviceNeed, ...], tuple[Finding, ...]]:
    if ALIAS_SPEC not in specs:
        return (), ()
    text = specs[ALIAS_SPEC]
    requested = asked_aliases(text)
    if requested is None:
        message = f"{ALIAS_SPEC} is {text!r}, which is not ALIAS:COUNT[,ALIAS:COUNT]; Nova answers 500"
        return (), (_problem("alias-malformed", message, "set the property to ALIAS:COUNT"),)
    needs: list[DeviceNeed] = []
    problems: list[Finding] = []
    for name, count in requested:
        if name not in aliases:
            known_aliases = ", ".join(aliases) or "none"
            message = f"{ALIAS_SPEC} asks for alias {name!r}, which the site does not have (it has {known_aliases}); "
            fix = f"use an alias of the site in the flavor, or give every Nova service a [pci]alias {name!r}"
            message += "Nova answers 400 where its API does not know it either"
            problems.append(_problem("alias-unknown", message, fix))
        else:
            alias = aliases[name]
            needs += [DeviceNeed(name, alias.resource_class, alias.traits, alias.device_type)] * count
    return tuple(needs), tuple(problems)


def _problem(code: str, reason: str, remedy: str) -> Finding:
    return Finding(code, Severity.ERROR, "", reason, remedy)


def _numa(specs: Mapping[str, str], named: Iterable[str]) -> tuple[str, int]:
    """What has Nova want a NUMA topology, and with how many nodes."""
    nodes = specs.get("hw:numa_nodes", "")
    number = int(nodes) if nodes.isdigit() else 0
    for key, value in (
        ("hw:numa_nodes", nodes if number else ""),
        ("hw:cpu_policy", specs.get("hw:cpu_policy", "") if specs.get("hw:cpu_policy") != "shared" else ""),
        ("hw:mem_page_size", specs.get("hw:mem_page_size", "")),
        ("hw:pmem", specs.get("hw:pmem", "")),
    ):
        if value:
            return f"{key}={value}", max(number, 1)
    return ("resources:PCPU", max(number, 1)) if PINNED in named else ("", 0)


def _aggregate_specs(specs: Mapping[str, str]) -> dict[str, str]:
    """Keys of the filter's own scope, and those without any scope."""
    aggregate_specs = {}
    for key, value in specs.items():
        scope, colon, rest = key.partition(":")
        if not colon:
            aggregate_specs[key] = value
        elif scope == AGGREGATE_SCOPE:
            aggregate_specs[rest] = value
    return aggregate_specs
