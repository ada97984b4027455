"""Options that several commands share, with the environment variables that set them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SiteOption = Annotated[
    Path,
    typer.Option("--site", envvar="GPUYARD_SITE", metavar="FILE", help="The site file.", show_default="site.yaml"),
]
CloudOption = Annotated[
    str | None,
    typer.Option("--os-cloud", envvar="OS_CLOUD", metavar="CLOUD", help="The cloud of clouds.yaml to talk to."),
]
DEFAULT_SITE = Path("site.yaml")


DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="GPUYARD_DATABASE",
        metavar="URL",
        help="As of gpuyard serve: sqlite:///FILE or postgresql+psycopg://... A URL with a password belongs in the "
        "variable, not on the command line.",
        show_default="SITE.db in $STATE_DIRECTORY or $XDG_STATE_HOME/gpuyard",
    ),
]
