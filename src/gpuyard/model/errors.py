"""Errors that gpuyard raises on purpose; each carries the exit code that the command line ends with."""

from __future__ import annotations


class GpuyardError(Exception):
    """Raised for a failure that the reader of the message can act on: it names the object and says what to do."""

    exit_code = 1


class UsageError(GpuyardError):
    """Raised for a wrong command or input."""

    exit_code = 2


class BlockedError(GpuyardError):
    """Raised for a request that is understood and refused: drift, a blocked host, a name that belongs to somebody
    else."""

    exit_code = 3


class SilentCellError(BlockedError):
    """Raised when a cell of Nova does not answer, so nothing is known of the server or host in question."""


HOW_TO_INSTALL_LAB = (
    "pip install . ./lab in a checkout of gpuyard, or pip install WHEEL LAB_WHEEL with the files of both wheels"
)
"""The commands that install the lab, which is a distribution of its own, gpuyard-lab."""


def how_to_install(part: str) -> str:
    """Return the command that adds a part of gpuyard: ``server``, ``images``, ``postgresql``, ``openstackclient``."""
    return (
        f"pip install '.[{part}]' in a checkout of gpuyard, or pip install 'WHEEL[{part}]' with the file of its wheel"
    )


class ForbiddenError(BlockedError):
    """Raised when a person lacks the right. `code`: ``no_role`` when a role in the project is missing, else
    ``forbidden``."""

    def __init__(self, message: str, code: str = "forbidden") -> None:
        super().__init__(message)
        self.code = code
