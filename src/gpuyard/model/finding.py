"""Findings: results of judging a file, a host or a cloud, each with code, severity, object, reason and remedy."""

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
    """The usual severity; a finding that is less certain has a lower one."""
    sentence: str


@dataclass(frozen=True)
class Finding:
    """One result, and what to do about it."""

    code: str
    """The kind of finding, ``device-spec-refused``: a stable word for scripts, metrics and the manual."""
    severity: Severity
    object: str
    """Its object: a place in a file, a device, a host; empty where all findings are about the same thing."""
    reason: str
    """The fact that was found."""
    remedy: str = ""
    """What to do about it; empty when nothing needs to be done."""
    payload: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further data by name, which only findings of this kind have."""

    def as_dict(self) -> Dict[str, Any]:
        """Return it for JSON, the same from every command; `from_dict` reads it."""
        return {**vars(self), "severity": self.severity.value, "payload": dict(self.payload)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Parse what `as_dict` made. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**data, "severity": Severity(data["severity"])})

    def lines(self, more: Sequence[str] = ()) -> List[str]:
        """Return it for people: the reason, the entries `more` of the payload, and the remedy.

        A finding about an object is a line as compilers write them; one of a ladder of checks has its code in front.
        """
        if self.object:
            first, indent = f"{self.object}: {self.severity}: {self.reason} [{self.code}]", " " * 4
        else:
            first, indent = f"{self.severity!s:8} {self.code:17} {self.reason}", " " * 27
        lines = [first]
        lines += [f"{indent}{name}: {self.payload[name]}" for name in more if self.payload.get(name)]
        return [*lines, f"{indent}-> {self.remedy}"] if self.remedy else lines


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity of all; ``OK`` of none."""
    return min((finding.severity for finding in findings), key=lambda severity: severity.rank, default=Severity.OK)
