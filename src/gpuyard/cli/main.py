"""``gpuyard``: puts the command groups together and turns errors into messages and exit codes.

Command modules import what they call inside the command, so that ``gpuyard --help`` does not wait for OpenStack's
client, the web server and the rest.
"""

from __future__ import annotations

import os
import sys

import typer

from gpuyard import __version__
from gpuyard.bookings.cli import booking
from gpuyard.cli import db, gpu, host, lab, serve, site
from gpuyard.deployment.cli import deployment, gateway
from gpuyard.diagnosis.cli import flavor
from gpuyard.images.cli import image
from gpuyard.model.errors import GpuyardError, UsageError, how_to_install
from gpuyard.model.text import printable_lines
from gpuyard.runners.cli import runner
from gpuyard.server.credentials import adopt
from gpuyard.usage.cli import usage

INTERRUPTED = 130
PARTS = {"nova": "lab", "keystone": "lab", "placement": "lab", "osc_lib": "openstackclient", "psycopg": "postgresql"}
"""Packages that come with an optional part of gpuyard; all others come with its server."""

app = typer.Typer(
    name="gpuyard",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help comes twice as fast
)
app.add_typer(host.app, name="host")
app.add_typer(site.app, name="site")
app.add_typer(deployment.app, name="deploy")
app.add_typer(image.app, name="image")
app.add_typer(gateway.app, name="gateway")
app.add_typer(gpu.app, name="gpu")
app.add_typer(flavor.app, name="flavor")
app.add_typer(booking.app, name="booking")
app.add_typer(runner.app, name="runner")
app.add_typer(usage.app, name="usage")
app.add_typer(db.app, name="db")
app.add_typer(lab.app, name="lab")
app.command("serve")(serve.serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gpuyard {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Turn machines with GPUs into a GPU cloud on OpenStack, and run it.

    Exit codes: 0 ok, 1 error, 2 usage, 3 drift or blocked.
    """
    adopt(os.environ)  # before the options of the command are read


def run() -> None:
    """The entry point. What gpuyard raises on purpose ends as one message; anything else is a bug and shows itself."""
    try:
        app()
    except GpuyardError as error:
        print(f"gpuyard: {printable_lines(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("gpuyard"):
            raise
        print(f"gpuyard: {not_installed(error.name)}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def not_installed(package: str) -> str:
    """What to do when a package is missing, which is so where only a part of gpuyard was installed."""
    part = PARTS.get(package.partition(".")[0], "server")
    return (
        f"this command needs the Python package {package}, which comes with gpuyard's {part} part; install that: "
        + how_to_install(part)
    )


if __name__ == "__main__":
    run()
