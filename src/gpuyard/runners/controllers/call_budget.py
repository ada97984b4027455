"""How many calls to GitHub some work may make."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CallBudget:
    """Handed from one piece of work to the next. Whoever calls says so before the call, which may fail and counts all
    the same."""

    left: int

    def spend(self, calls: int = 1) -> None:
        self.left = max(0, self.left - calls)

    def has(self, calls: int = 1) -> bool:
        return self.left >= calls
