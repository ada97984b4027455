"""Plans: what would change, as a list of steps that a person can read and refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping, Tuple


class Verb(str, Enum):
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"
    BIND = "bind"
    RELEASE = "release"
    RESTORE = "restore"
    RUN = "run"


@dataclass(frozen=True)
class Step:
    """One change to one object, decided by a planner; whoever carries it out decides nothing."""

    verb: Verb
    kind: str
    """What sort of object: ``flavor``, ``flavor access``, ``registered limit``, ``project limit`` of a cloud; ``file``,
    ``command``, ``group`` of a host."""
    name: str
    reason: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> Tuple[str, ...]:
        """One line per differing value: ``ram: 8192 -> 16384``."""
        lines = []
        for key in sorted({*self.before, *self.after}):
            old, new = self.before.get(key), self.after.get(key)
            if old == new:
                continue
            lines.append(f"{key}: {new}" if old is None else f"{key}: {old} -> {'(none)' if new is None else new}")
        return tuple(lines)

    def __str__(self) -> str:
        return f"{self.verb.value} {self.kind} {self.name}"


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they must be carried out, and what stands in the way."""

    steps: Tuple[Step, ...] = ()
    refusals: Tuple[str, ...] = ()
    """Reasons why the plan must not be applied at all; a plan with refusals changes nothing."""
    notes: Tuple[str, ...] = ()
    """What was seen and deliberately left alone."""
    reboot: Tuple[str, ...] = ()
    """What a host needs a reboot for, once the steps are done."""
    waits: Tuple[str, ...] = ()
    """What is wanted and cannot be done yet, each with what it waits for; a later plan has it as a step."""

    @property
    def empty(self) -> bool:
        return not self.steps and not self.refusals

    @property
    def refused(self) -> str:
        """All refusals as one message."""
        return "\n".join(["the plan cannot be applied:", *(f"- {text}" for text in self.refusals)])
