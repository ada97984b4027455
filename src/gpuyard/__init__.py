"""gpuyard turns machines with GPUs into a GPU cloud on OpenStack, and runs it."""

from importlib import metadata

try:
    __version__ = metadata.version("gpuyard")
except metadata.PackageNotFoundError:  # in the one file that goes to hosts
    __version__ = "0"
