"""What is kept of who had which GPU: intervals, and their sums by day, month and hour."""

from gpuyard.history.store.store import HistoryStore, Which
from gpuyard.history.store.sums import SumStore

__all__ = ["HistoryStore", "SumStore", "Which"]
