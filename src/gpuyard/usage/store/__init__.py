"""The tables of history: intervals, and their sums by day, month and hour."""

from gpuyard.usage.store.store import HistoryStore, Which
from gpuyard.usage.store.sums import SumStore

__all__ = ["HistoryStore", "SumStore", "Which"]
