"""Turns aliases into pools: one for each alias that asks for GPUs, with the models and hosts that it reaches now.

Aliases are taken in the order given. A model belongs to the first alias that reaches it; a later alias that reaches a
model of another pool gets none. Without any alias for GPUs there is a pool for each model that is offered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gpuyard.diagnosis.adopt.config import HandMade, comes_with_gpu
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias import Alias
from gpuyard.nova.device_spec import truth
from gpuyard.nova.offers import Offer, asks, same_ids
from gpuyard.nova.release import RELEASES

POOL_NAME = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
ALIAS_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
LONGEST = 40
RESERVED = ("-peer", "-count")
"""Endings that the compiler gives to classes of its own."""


class Kind(Enum):
    """The kind of devices that an alias asks for, as far as the recordings show it."""

    POOL = "pool"
    COMPANION = "companion"
    """A function that comes with a GPU: its audio or USB."""
    DEVICE = "device"
    """A device that is no GPU and does not come with one."""
    LOST = "lost"
    """GPUs that no pool can stand for, or nothing at all."""


@dataclass(frozen=True)
class Use:
    """The pool that an alias has become, or why it has none."""

    kind: Kind
    pool: str = ""
    reason: str = ""
    """Why there is no pool for it."""


@dataclass(frozen=True)
class AdoptedPool:
    """A pool of the site that is to be written."""

    name: str
    alias: str
    """The alias that flavors ask for; empty when nobody does, and the pool has a name only."""
    models: tuple[str, ...]
    hosts: tuple[str, ...] | None
    """None: all."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    comment: str = ""

    @property
    def key(self) -> str:
        """The key of a pool, the same from one attempt to the next."""
        return self.alias or self.name

    @property
    def document(self) -> dict[str, Any]:
        """The pool as it is written in the site file."""
        alias = {"alias": self.alias} if self.alias not in ("", self.name) else {}
        hosts = {"hosts": list(self.hosts)} if self.hosts is not None else {}
        return {**alias, "models": list(self.models), **hosts, **self.settings}


@dataclass(frozen=True)
class Pools:
    """All pools, and the use of every alias."""

    items: tuple[AdoptedPool, ...]
    uses: Mapping[str, Use]
    cautions: tuple[str, ...] = ()


class _Builder:
    def __init__(
        self,
        inventories: Mapping[str, Inventory],
        config: HandMade,
        offered: Sequence[Offer],
        stage: str,
        release: str,
        banned: Mapping[str, str],
    ) -> None:
        self._inventories = inventories
        self._config = config
        self._offered = offered
        self._stage = stage
        self._release = release
        self._banned = banned
        self._items: list[AdoptedPool] = []
        self._taken: dict[str, str] = {}
        self._uses: dict[str, Use] = {}
        self._cautions: list[str] = []

    def build(self, order: Sequence[str]) -> Pools:
        for name in order:
            self._uses[name] = self._use(name, self._config.aliases[name])
        if not self._items:
            self._by_model()
        return Pools(tuple(self._items), self._uses, tuple(self._cautions))

    def _use(self, name: str, lines: tuple[Alias, ...]) -> Use:
        in_placement = self._config.in_placement
        reached = [offer for offer in self._offered if any(asks(line, offer, in_placement) for line in lines)]
        gpus = [offer for offer in reached if _is_gpu(offer.function)]
        if not gpus:
            if reached:
                return Use(Kind.COMPANION if self._with_gpus(reached) else Kind.DEVICE)
            return self._unreached(name, lines)
        models = _models(gpu.function for gpu in gpus)
        free = [model for model in models if model not in self._taken]
        if not free:
            taken = self._taken[models[0]]
            return Use(Kind.LOST, reason=f"its GPUs ({models[0]}) are those of pool {taken} already")
        if len(free) < len(models):
            first = next(model for model in models if model in self._taken)
            return Use(Kind.LOST, reason=f"some of its GPUs ({first}) are those of pool {self._taken[first]} already")
        if not ALIAS_NAME.match(name):
            return Use(Kind.LOST, reason="a site's aliases have letters, digits, _ and - only")
        return self._pool(name, lines, models, gpus)

    def _pool(self, name: str, lines: tuple[Alias, ...], models: Sequence[str], gpus: Sequence[Offer]) -> Use:
        if name in self._banned:
            return Use(Kind.LOST, reason=self._banned[name])
        pool = pool_name(name, models[0], [item.name for item in self._items])
        hosts, comment = self._hosts(models, gpus)
        settings = self._settings(pool, lines, gpus)
        names = " and ".join(dict.fromkeys(gpu.function.model for gpu in gpus))
        self._items.append(
            AdoptedPool(pool, name, tuple(models), hosts, settings, f"{names}.{' ' + comment if comment else ''}")
        )
        self._taken |= dict.fromkeys(models, pool)
        return Use(Kind.POOL, pool)

    def _hosts(self, models: Collection[str], gpus: Iterable[Offer]) -> tuple[tuple[str, ...] | None, str]:
        """The hosts that the alias reaches, where others have such GPUs too."""
        reached = {gpu.host for gpu in gpus}
        others = [
            host
            for host, inventory in self._inventories.items()
            if host not in reached and any(gpu.ids in models for gpu in inventory.gpus)
        ]
        if not others:
            return None, ""
        return (
            tuple(host for host in self._inventories if host in reached),
            f"{', '.join(others)}: such GPUs too, which Nova does not give to this alias now.",
        )

    def _settings(self, pool: str, lines: Sequence[Alias], gpus: Sequence[Offer]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if "numa_policy" in lines[0].raw:
            settings["numa"] = lines[0].numa_policy
        raws = [gpu.entry.raw for gpu in gpus if gpu.entry is not None]
        managed = {truth(raw.get("managed", True)) for raw in raws}
        release = RELEASES[self._release]
        if managed == {False} and release.managed:
            settings["managed"] = False
        if (
            release.managed
            and all(truth(line.raw.get("live_migratable")) for line in lines)
            and _all_true(raws, "live_migratable")
        ):
            settings["live_migratable"] = True
        if _all_true(raws, "one_time_use") and self._stage != "off" and release.one_time_use:
            settings["one_time_use"] = True
        for tag, values in (
            ("managed", managed),
            ("live_migratable", {truth(raw.get("live_migratable", False)) for raw in raws}),
            ("one_time_use", {truth(raw.get("one_time_use", False)) for raw in raws}),
        ):
            if len(values) > 1:
                self._cautions.append(
                    f"pool {pool}: '{tag}' is not the same for all its GPUs; a pool has one value: decide, and write it"
                )
        return settings

    def _with_gpus(self, reached: Iterable[Offer]) -> bool:
        """Return whether each of them shares its card or its IOMMU group with a GPU."""
        return all(comes_with_gpu(offer.function, self._inventories[offer.host]) for offer in reached)

    def _unreached(self, name: str, lines: Sequence[Alias]) -> Use:
        ids = ", ".join(f"{line.raw.get('vendor_id', '*')}:{line.raw.get('product_id', '*')}" for line in lines)
        same = [
            (host, function)
            for host, inventory in self._inventories.items()
            for function in inventory.functions
            if any(same_ids(line, function) for line in lines)
        ]
        if not same:
            return Use(Kind.LOST, reason=f"no recording has a device {ids}")
        host, function = same[0]
        offered = [offer for offer in self._offered if (offer.host, offer.function) in same]
        if not offered:
            return Use(Kind.LOST, reason=f"no device_spec offers a device {ids} (as {host} {function.short_address})")
        return Use(
            Kind.LOST,
            reason=f"it asks for another type, class or trait than {offered[0]} has ({function.device_type.value})",
        )

    def _by_model(self) -> None:
        """Without any alias for GPUs: a pool for each model that is offered."""
        gpus = [offer.function for offer in self._offered if _is_gpu(offer.function)]
        for model in _models(gpus):
            example = next(gpu for gpu in gpus if gpu.ids == model)
            name = pool_name(example.model, model, [item.name for item in self._items])
            if name not in self._banned:
                comment = f"{example.model}. No alias asks for it yet."
                self._items.append(AdoptedPool(name, "", (model,), None, {}, comment))


def adopted_pools(
    inventories: Mapping[str, Inventory],
    config: HandMade,
    offered: Sequence[Offer],
    stage: str,
    release: str,
    order: Sequence[str],
    banned: Mapping[str, str],
) -> Pools:
    """Return the pools; `order` names all aliases, those first that shall get their GPUs if two ask for the same ones.
    `banned` are keys of pools that the compiler refused, with the reason."""
    return _Builder(inventories, config, offered, stage, release, banned).build(order)


def pool_name(text: str, model: str, used: Collection[str]) -> str:
    """Return an unused name for a pool, made of an alias or a model's name: ``GP102_VGA`` -> ``gp102-vga``."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: LONGEST - 4].strip("-")
    name = name or "gpu-" + model.replace(":", "-")
    if name.endswith(RESERVED):
        name += "s"
    number, free = 2, name
    while free in used:
        free = f"{name}-{number}"
        number += 1
    return free


def _is_gpu(function: PciFunction) -> bool:
    return function.is_gpu and function.physical_function is None


def _models(functions: Iterable[PciFunction]) -> list[str]:
    return list(dict.fromkeys(function.ids for function in functions))


def _all_true(raws: Sequence[Mapping[str, Any]], tag: str) -> bool:
    return bool(raws) and all(truth(raw.get(tag)) for raw in raws)
