"""The database of health: states and records of GPUs, observations, maintenances of hosts, and tokens of hosts and
guests."""

from gpuyard.health.store.maintenances import MaintenanceStore
from gpuyard.health.store.store import HealthStore

__all__ = ["HealthStore", "MaintenanceStore"]
