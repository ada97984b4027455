"""The table of commands: what it says is what the modules say, and showing help imports none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpuyard.cli.commands import COMMANDS, CommandRow, LazyGroup, PendingCommand, load
from gpuyard.cli.main import app, every_command

HEAVY = {
    "openstack", "keystoneauth1", "requests", "urllib3", "sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn",
    "jinja2", "prometheus_client", "ruamel", "rich",
}  # fmt: skip


def imported_by(statement: str) -> set[str]:
    """Names of the modules that a process has after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_the_help_line_of_a_row_is_the_commands_own(row: CommandRow) -> None:
    command = load(row)
    assert (command.name, command.help.partition("\n\n")[0].replace("\n", " ")) == (row.name, row.help)


def test_help_imports_the_module_of_no_command() -> None:
    modules = imported_by(
        "from typer.testing import CliRunner; from gpuyard.cli.main import app\n"
        "assert 'Commands:' in CliRunner().invoke(app, ['--help']).output"
    )
    assert not {name.partition(".")[0] for name in modules} & (HEAVY | {"pydantic"})
    assert not modules & {row.target.partition(":")[0] for row in COMMANDS}


def test_no_module_of_a_command_imports_what_its_commands_call() -> None:
    modules = imported_by("from gpuyard.cli.main import every_command; every_command()")
    assert modules >= {row.target.partition(":")[0] for row in COMMANDS}
    assert not {name.partition(".")[0] for name in modules} & HEAVY


def test_a_group_makes_no_command_that_is_not_called() -> None:
    group = load(next(row for row in COMMANDS if row.name == "host"))
    assert all(isinstance(command, PendingCommand) for command in group.commands.values())
    _, called, rest = group.resolve_command(None, ["maintenance", "list"])
    assert isinstance(called, LazyGroup)
    assert isinstance(called.commands["list"], PendingCommand)
    assert rest == ["list"]


def test_a_hidden_command_stays_hidden() -> None:
    result = CliRunner().invoke(app, ["site", "--help"])
    assert "adopt" in result.output
    assert "import" not in result.output


def test_a_command_that_does_not_exist_is_met_with_one_that_does() -> None:
    result = CliRunner().invoke(app, ["bookings"])
    assert result.exit_code == 2
    assert "No such command 'bookings'. Did you mean 'booking'?" in result.output


def test_the_whole_program_can_be_had_at_once() -> None:
    assert "create" in every_command().commands["booking"].commands  # type: ignore[attr-defined]
