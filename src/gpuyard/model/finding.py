"""What gpuyard finds when it looks at something: a file, a host, a cloud."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, Iterable, List, Mapping, Sequence


class Severity(str, Enum):
    """Worst first."""

    ALARM = "alarm"
    """Servers are in danger, or get what is not theirs."""
    ERROR = "error"
    """It does not work, or is not as it was asked for."""
    WARNING = "warning"
    """It works, and will surprise."""
    UNKNOWN = "unknown"
    """It cannot be seen from here."""
    NOTE = "note"
    """Worth knowing; nothing needs to be done."""
    OK = "ok"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def rank(self) -> int:
        """To sort by: 0 is the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Rule:
    """One kind of finding of a linter. Its id does not change."""

    id: str
    severity: Severity
    """The usual one; a finding that is less sure of itself has a lower one."""
    sentence: str


@dataclass(frozen=True)
class Finding:
    """One thing that is so, and what to do about it."""

    code: str
    """What kind of finding it is, ``device-spec-refused``: a stable word for scripts, metrics and the manual."""
    severity: Severity
    object: str
    """What it is about: a place in a file, a device, a host; empty where all findings are about the same thing."""
    reason: str
    """What is so."""
    remedy: str = ""
    """What to do about it; empty when nothing needs to be done."""
    payload: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What only findings of this kind have, by name."""

    def as_dict(self) -> Dict[str, Any]:
        """For JSON, the same from every command; `from_dict` reads it."""
        return {**vars(self), "severity": self.severity.value, "payload": dict(self.payload)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Raises KeyError, TypeError or ValueError for what `as_dict` did not make."""
        return cls(**{**data, "severity": Severity(data["severity"])})

    def lines(self, more: Sequence[str] = ()) -> List[str]:
        """For people: what is so, what `more` of the payload says, and what to do.

        A finding about an object is a line as compilers write them; one of a ladder of checks has its code in front.
        """
        if self.object:
            first, indent = f"{self.object}: {self.severity}: {self.reason} [{self.code}]", " " * 4
        else:
            first, indent = f"{self.severity!s:8} {self.code:17} {self.reason}", " " * 27
        found = [first]
        found += [f"{indent}{name}: {self.payload[name]}" for name in more if self.payload.get(name)]
        return [*found, f"{indent}-> {self.remedy}"] if self.remedy else found


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity that counts for all of them; ``OK`` of none."""
    return min((finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK)
