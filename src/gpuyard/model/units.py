"""Assigns units of a shared device to servers. Placement knows how many are taken, and not which."""

from __future__ import annotations

from typing import Collection, Dict, List, Mapping, Sequence
from uuid import UUID, uuid5

HOLDS = UUID("5c1f4b1e-7a53-4d0c-9c55-3b9f5d6f0b47")


def hold_of(name: str) -> str:
    """Return the id of the consumer that keeps a unit out of scheduling: the same at every start, so that after a crash
    it is known again. `name`: `Gpu.provider_name`."""
    return str(uuid5(HOLDS, name))


def seats(
    units: Sequence[str], taken: Mapping[str, int], held_units: Collection[str], before: Mapping[str, str]
) -> Dict[str, str]:
    """Return unit -> the consumer that has it, for the units of one device.

    `taken`: consumer -> how many it has; earlier consumers are seated first. `held_units`: units that are held, which
    no consumer gets as long as there are others. `before`: the last assignment: a consumer that still has as many
    stays there.
    """
    assigned: Dict[str, str] = {}
    left = dict(taken)
    for unit in units:
        who = before.get(unit, "")
        if left.get(who, 0) > 0 and unit not in held_units:
            assigned[unit] = who
            left[who] -= 1
    rest: List[str] = sorted((unit for unit in units if unit not in assigned), key=lambda unit: unit in held_units)
    waiting = [who for who, number in left.items() for _ in range(number)]
    return {**assigned, **dict(zip(rest, waiting))}
