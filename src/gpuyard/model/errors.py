"""The errors that gpuyard raises on purpose; each carries the exit code that the command line ends with."""

from __future__ import annotations


class GpuyardError(Exception):
    """Something went wrong that the reader of the message can act on: it names the object and says what to do."""

    exit_code = 1


class UsageError(GpuyardError):
    """The command or its input is wrong; nothing was read from or written to a host or a cloud."""

    exit_code = 2


class BlockedError(GpuyardError):
    """What was asked is understood and refused: drift, a blocked host, a name that belongs to somebody else."""

    exit_code = 3


class SilentCellError(BlockedError):
    """A cell of Nova does not answer, so nothing is known of a server or a host that is asked for."""


HOW_TO_INSTALL_LAB = (
    "pip install . ./lab in a checkout of gpuyard, or pip install WHEEL LAB_WHEEL with the files of both wheels"
)
"""The lab is a distribution of its own, gpuyard-lab."""


def how_to_install(part: str) -> str:
    """The command that adds a part of gpuyard: ``server``, ``images``, ``postgresql``, ``openstackclient``."""
    return (
        f"pip install '.[{part}]' in a checkout of gpuyard, or pip install 'WHEEL[{part}]' with the file of its wheel"
    )


class ForbiddenError(BlockedError):
    """Not for this person to do. `code`: ``no_role`` when a role in the project is missing, else ``forbidden``."""

    def __init__(self, message: str, code: str = "forbidden") -> None:
        super().__init__(message)
        self.code = code
