"""``gpuyard``: the program's entry point, which turns errors into messages and exit codes.

Its commands are in the table of `commands.py`, which imports the module of a command when that is called. Command
modules import what they call inside the command, so that its help does not wait for OpenStack's client, the web server
and the rest.
"""

from __future__ import annotations

import os
import sys

import typer
from typer.main import get_command

from gpuyard import installed_version
from gpuyard.cli.commands import CommandTable, LazyGroup
from gpuyard.model.errors import GpuyardError, UsageError, how_to_install
from gpuyard.model.text import printable_lines
from gpuyard.server.credentials import adopt

INTERRUPTED = 130
PARTS = {"osc_lib": "openstackclient", "psycopg": "postgresql"}
"""Packages that come with an optional part of gpuyard; all others come with its server."""

app = typer.Typer(
    name="gpuyard",
    cls=CommandTable,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help comes twice as fast
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"gpuyard {installed_version()}")
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


def every_command() -> LazyGroup:
    """The whole program as one tree, with every command made: for the reference, and for tests."""
    table = get_command(app)
    assert isinstance(table, LazyGroup)
    return table.make_all()


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
