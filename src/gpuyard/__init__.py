"""gpuyard turns machines with GPUs into a GPU cloud on OpenStack, and runs it."""

from functools import cache


@cache
def installed_version() -> str:
    """Of the installed package."""
    from importlib import metadata  # here: it takes as long as the rest of a command's help

    try:
        return metadata.version("gpuyard")
    except metadata.PackageNotFoundError:  # in the one file that goes to hosts
        return "0"
