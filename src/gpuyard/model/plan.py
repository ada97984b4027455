"""Plans: the changes to make, as a list of steps that a person can read and refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping, Tuple


class StepVerb(str, Enum):
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"
    BIND = "bind"
    RELEASE = "release"
    RESTORE = "restore"
    RUN = "run"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Tuple[str, ...]:
    """Return one line per value that differs: ``ram: 8192 -> 16384``."""
    lines = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            lines.append(f"{key}: {new}" if old is None else f"{key}: {old} -> {'(none)' if new is None else new}")
    return tuple(lines)


@dataclass(frozen=True)
class Step:
    """One change to one object, decided by a planner; appliers decide nothing."""

    verb: StepVerb
    kind: str
    """The kind of object: ``file``, ``command``, ``group`` of a host."""
    name: str
    reason: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> Tuple[str, ...]:
        """One line per differing value."""
        return differences(self.before, self.after)

    def __str__(self) -> str:
        return f"{self.verb.value} {self.kind} {self.name}"


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they must be applied, and what prevents them."""

    steps: Tuple[Step, ...] = ()
    refusals: Tuple[str, ...] = ()
    """Reasons why the plan must not be applied at all; a plan with refusals changes nothing."""
    notes: Tuple[str, ...] = ()
    """Observations that the plan deliberately leaves alone."""
    reboot: Tuple[str, ...] = ()
    """Reasons why a host needs a reboot, once the steps are done."""

    @property
    def empty(self) -> bool:
        return not self.steps and not self.refusals

    @property
    def refused(self) -> str:
        """All refusals as one message."""
        return "\n".join(["the plan cannot be applied:", *(f"- {text}" for text in self.refusals)])
