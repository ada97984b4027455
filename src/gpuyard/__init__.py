"""gpuyard turns machines with GPUs into a GPU cloud on OpenStack, and runs it."""

__version__ = "0.1.0"
