"""The table of commands: what it says is what the modules say, and showing help imports none of the heavy libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.commands import COMMANDS, PLUGINS, CommandRow, LazyGroup, PendingCommand, load, load_plugin
from gpuyard.cli.main import app, every_command

HEAVY = {
    "openstack", "keystoneauth1", "requests", "urllib3", "sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn",
    "jinja2", "prometheus_client", "ruamel", "rich",
}  # fmt: skip


LAB = "gpuyard_lab.cli"


def imported_by(statement: str) -> set[str]:
    """Names of the modules that a process has after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_the_help_line_of_a_row_is_the_commands_own(row: CommandRow) -> None:
    command = load(row)
    assert (command.name, command.help.partition("\n\n")[0].replace("\n", " ")) == (row.name, row.help)


def test_the_help_line_of_the_lab_is_its_commands_own() -> None:
    (lab,) = entry_points(group=PLUGINS)
    assert lab.dist
    command = load_plugin(lab)
    assert (lab.dist.name, command.name, command.help) == ("gpuyard-lab", "lab", lab.dist.metadata["Summary"])


def test_help_imports_the_module_of_no_command() -> None:
    modules = imported_by(
        "from typer.testing import CliRunner; from gpuyard.cli.main import app\n"
        "assert '  lab  ' in CliRunner().invoke(app, ['--help']).output.partition('Commands:')[2]"
    )
    assert not {name.partition(".")[0] for name in modules} & (HEAVY | {"pydantic"})
    assert not modules & {LAB, *(row.target.partition(":")[0] for row in COMMANDS)}


def test_no_module_of_a_command_imports_what_its_commands_call() -> None:
    modules = imported_by("from gpuyard.cli.main import every_command; every_command()")
    assert modules >= {LAB, *(row.target.partition(":")[0] for row in COMMANDS)}
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


def plugin(folder: Path, name: str, source: str) -> dict[str, str]:
    """Install a distribution that adds a command; the environment of a program that finds it."""
    (folder / f"{name}_plugin.py").write_text(source)
    metadata = folder / f"{name}_plugin-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.2\nSummary: Of others.\n"
    )
    (metadata / "entry_points.txt").write_text(f"[{PLUGINS}]\n{name} = {name}_plugin:command\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def gpuyard(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuyard.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_distribution_adds_a_command(tmp_path: Path) -> None:
    environment = plugin(tmp_path, "hello", "def command(name: str) -> None:\n    print(f'hello, {name}')\n")
    assert "  hello    Of others.\n" in gpuyard(environment, "--help").stdout
    assert gpuyard(environment, "hello", "ada").stdout == "hello, ada\n"


def test_none_takes_the_place_of_a_command_of_gpuyard(tmp_path: Path) -> None:
    environment = plugin(tmp_path, "host", "def command() -> None:\n    print('of others')\n")
    assert "Of others." not in gpuyard(environment, "--help").stdout
    assert "hypervisor" in gpuyard(environment, "host", "--help").stdout


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import missing_package", "ModuleNotFoundError: No module named 'missing_package'"),
        ("x = 1", "AttributeError: module 'broken_plugin' has no attribute 'command'"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
    ],
)
def test_a_broken_one_breaks_its_own_command_alone(tmp_path: Path, source: str, error: str) -> None:
    environment = plugin(tmp_path, "broken", f"{source}\n")
    listed = gpuyard(environment, "--help")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "  broken   Of others.\n" in listed.stdout
    assert gpuyard(environment, "lab", "--help").returncode == 0
    called = gpuyard(environment, "broken")
    assert called.returncode == 1
    assert called.stderr.startswith(
        f"gpuyard: `gpuyard broken` comes with broken-plugin 1.2, which cannot be loaded: {error}; install it again"
    )
    assert "Traceback" not in called.stderr


def test_without_the_lab_its_command_says_how_to_install_it() -> None:
    program = (
        "import importlib.metadata\nimportlib.metadata.entry_points = lambda **group: ()\n"
        "from gpuyard.cli.main import run; run()"
    )
    listed, called, other = (
        subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        for words in (["--help"], ["lab", "up"], ["laboratory"])
    )
    assert "\n  db " in listed.stdout
    assert "\n  lab " not in listed.stdout
    assert (called.returncode, other.returncode) == (2, 2)
    assert called.stderr.startswith(
        "gpuyard: `gpuyard lab` comes with gpuyard-lab; install that: pip install . ./lab in"
    )
    assert "No such command" in other.stderr
