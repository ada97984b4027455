"""What is kept of runners: jobs, runners, what happened to them, and what GitHub told us."""

from gpuyard.runners.store.store import RunnerStore

__all__ = ["RunnerStore"]
