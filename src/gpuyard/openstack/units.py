"""Reads the units of GPUs that several servers share: how many of a device are free, taken and held, and by whom.

"Which providers could serve three of this class" is one call for any number of devices, so the free units of each
come from as many calls as the largest device has units. A device itself is asked only where some of its units are
neither free nor a server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpuyard.model.gpu import Gpu
from gpuyard.model.units import hold_of, seats
from gpuyard.model.world import Provider, Stock
from gpuyard.openstack.reader import Reader

Question = tuple[str, int]
"""A resource class and how many of it."""


@dataclass
class UnitsSeen:
    """The state of units, by their names, as in `Snapshot`."""

    providers: dict[str, Provider] = field(default_factory=dict)
    """Units that Placement has: their device's provider, under their own name."""
    allocatable: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    unexplained: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Closer:
    """What a device's provider itself says."""

    stock: Mapping[str, Stock]
    consumers: Mapping[str, Mapping[str, int]]


class Seated:
    """The servers that were last seen on units. All readers of one cloud in one process share it, so that they
    agree."""

    def __init__(self, holders: Mapping[str, str] = MappingProxyType({})) -> None:
        """`holders`: name of a unit's provider -> server, as of the last observation before this process began."""
        self.holders = holders


class UnitReader:
    """Reads the units of one site. A server stays where it was seen first."""

    def __init__(self, gpus: Iterable[Gpu], seated: Seated) -> None:
        self._devices: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if gpu.is_unit and not gpu.blocked:
                self._devices.setdefault(gpu.provider, []).append(gpu)
        self._seated = seated

    @property
    def devices(self) -> frozenset[str]:
        """Names of the providers of the devices that the units are of."""
        return frozenset(self._devices)

    @property
    def questions(self) -> frozenset[Question]:
        """Questions that Placement is to be asked about all providers."""
        most: dict[str, int] = {}
        for units in self._devices.values():
            name = units[0].resource_class
            most[name] = max(most.get(name, 0), len(units))
        return frozenset((name, number) for name, largest in most.items() for number in range(1, largest + 1))

    def see(
        self,
        cloud: Reader,
        providers: Mapping[str, Provider],
        able: Mapping[Question, frozenset[str]],
        held: Mapping[str, Mapping[str, int]],
    ) -> UnitsSeen:
        """Return the state of the units.

        `providers`: by name. `able`: names of the providers that could serve a question now. `held`: server -> id of
        a provider -> how many it has of it, the oldest server first.
        """
        present = {name: units for name, units in self._devices.items() if name in providers}
        taken = {name: _of_device(providers[name].id, held) for name in present}
        free = {name: _free(units, name, able) for name, units in present.items()}
        odd = [name for name, units in present.items() if len(units) > free[name] + sum(taken[name].values())]
        closer = cloud.each(lambda name: _ask(cloud, providers[name].id), odd)
        state = UnitsSeen()
        for name, units in present.items():
            if name in closer:
                self._closer(state, units, providers[name], taken[name], closer[name])
            else:
                self._seat(state, units, providers[name], taken[name], frozenset(), free[name])
        self._seated.holders = state.holders
        return state

    def _closer(
        self, state: UnitsSeen, units: Sequence[Gpu], provider: Provider, taken: Mapping[str, int], look: _Closer
    ) -> None:
        """What is neither free nor a server's: held by us, held by an operator, somebody else's, or not there."""
        stock = look.stock.get(units[0].resource_class)
        if stock is None:
            classes = ", ".join(sorted(look.stock)) or "nothing"
            for unit in units:
                state.providers[unit.provider_name] = replace(provider, name=unit.provider_name)
                state.unexplained[unit.provider_name] = (
                    f"Placement has it as {classes}, not as {unit.resource_class}: deploy the site's Nova options"
                )
            return
        amounts = {who: mine.get(units[0].resource_class, 0) for who, mine in look.consumers.items()}
        on_hold = frozenset(unit.provider_name for unit in units if hold_of(unit.provider_name) in amounts)
        holds = {hold_of(name) for name in on_hold}
        server_amounts = {who: amounts[who] for who in taken if who in amounts}
        others = {
            who: amount for who, amount in sorted(amounts.items()) if who not in holds and who not in server_amounts
        }
        free = stock.total - stock.reserved - sum(amounts.values())
        self._seat(state, units, provider, {**server_amounts, **others}, on_hold, free, stock.reserved)

    def _seat(
        self,
        state: UnitsSeen,
        units: Sequence[Gpu],
        provider: Provider,
        taken: Mapping[str, int],
        on_hold: frozenset[str],
        free: int,
        reserved: int = 0,
    ) -> None:
        """Say of each unit who has it; of the rest the first are free, then come those that somebody has reserved, and
        what is left then is not there."""
        names = [unit.provider_name for unit in units]
        holders = seats(names, taken, on_hold, self._seated.holders)
        held = [name for name in names if name in on_hold and name not in holders]
        rest = [name for name in names if name not in holders and name not in on_hold]
        state.holders |= holders
        state.reserved |= {*held, *rest[max(0, free) : max(0, free) + reserved]}
        state.allocatable |= {*rest[: max(0, free)]}
        present = {*holders, *held, *rest[: max(0, free) + reserved]}
        state.providers |= {name: replace(provider, name=name) for name in names if name in present}


def _of_device(provider: str, held: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {server: amounts[provider] for server, amounts in held.items() if amounts.get(provider)}


def _free(units: Sequence[Gpu], name: str, able: Mapping[Question, frozenset[str]]) -> int:
    """Of a device as many are free as could be given to somebody at once."""
    served = (number for number in range(len(units), 0, -1) if name in able[units[0].resource_class, number])
    return next(served, 0)


def _ask(cloud: Reader, provider: str) -> _Closer:
    return _Closer(cloud.stock(provider), cloud.consumers(provider))
