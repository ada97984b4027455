"""Budget of calls to GitHub for one run of some work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CallBudget:
    """The calls that are left, handed from one piece of work to the next. The caller spends before a call, which counts
    even if it fails."""

    left: int

    def spend(self, calls: int = 1) -> None:
        self.left = max(0, self.left - calls)

    def has(self, calls: int = 1) -> bool:
        return self.left >= calls
