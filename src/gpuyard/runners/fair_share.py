"""Whose turn it is: what repositories have used counts less with time, and who has used least of its share goes first.

Pure.
"""

from __future__ import annotations


def factor(hours: float, share: int, all_hours: float, all_shares: int) -> float:
    """From 1 (has used nothing) over 0.5 (has used just its share of what all have used) down to 0: the higher goes
    first. For showing: the order follows from ``hours / share`` alone."""
    if all_hours <= 0:
        return 1.0
    return float(2 ** -((hours / all_hours) / (share / all_shares)))
