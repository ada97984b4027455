"""``gpuyard image`` as the lab's admin types it."""

from __future__ import annotations

from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard_lab.clients import ADMIN_CLOUD


def image_command(*words: str) -> str:
    """Its output. Raises what it ends with."""
    done = CliRunner().invoke(app, ["image", *words, "--os-cloud", ADMIN_CLOUD])
    if done.exception is not None:
        raise done.exception
    return done.output
