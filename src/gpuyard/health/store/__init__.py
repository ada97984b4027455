"""What is kept of how GPUs are: their states and records, what was observed, maintenances of hosts, and the tokens of
those who say so."""

from gpuyard.health.store.maintenances import MaintenanceStore
from gpuyard.health.store.store import HealthStore

__all__ = ["HealthStore", "MaintenanceStore"]
