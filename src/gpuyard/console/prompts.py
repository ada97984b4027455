"""Asks a person to confirm, and shows which site and cloud that is about."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def say_where(name: str, path: Path, cloud: str) -> None:
    """GPUYARD_SITE and OS_CLOUD of a shell that has been open for long may not be what its user thinks of."""
    print(f"Site {name} ({path}) on cloud {cloud}:", file=sys.stderr)


def confirmed(question: str) -> bool:
    """What a person answers. Raises UsageError when there is nobody to ask."""
    from gpuyard.model.errors import UsageError

    try:
        return typer.confirm(question)
    except typer.Abort:
        raise UsageError("nobody answered, so nothing was changed; --yes goes on without asking") from None


def require_confirmed(question: str) -> None:
    """Raises BlockedError when a person says no, and UsageError when there is nobody to ask."""
    from gpuyard.model.errors import BlockedError

    if not confirmed(question):
        raise BlockedError("nothing was changed")
