"""The store of runners: jobs, runners, their timelines and logs, and what GitHub sent."""

from gpuyard.runners.store.store import RunnerStore

__all__ = ["RunnerStore"]
