"""The table of gpuyard's commands, and the group that imports the module of a command only when that is called.

So `gpuyard --help` and completion read this table alone, and no command waits for what the others import. A test holds
each help line against the module's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


@dataclass(frozen=True)
class CommandRow:
    """One command or group of commands below `gpuyard`."""

    name: str
    target: str
    """``module:attribute``: a Typer, or the function of a single command."""
    help: str
    """The first paragraph of its help."""


COMMANDS = (
    CommandRow(
        "serve",
        "gpuyard.cli.serve:serve",
        "Serve the GPU map, the calendar, the API and the metrics, and keep bookings and cloud together.",
    ),
    CommandRow("host", "gpuyard.cli.host:app", "Look at a hypervisor's GPUs, and prepare it to give them to VMs."),
    CommandRow("site", "gpuyard.cli.site:app", "The site as code: check, plan, apply, watch, deploy."),
    CommandRow(
        "deploy",
        "gpuyard.deployment.cli.deployment:app",
        "From bare machines to a cloud: hosts, Kolla, and the site, step by step.",
    ),
    CommandRow(
        "image", "gpuyard.images.cli.image:app", "Build images of servers, check them, and bring them to Glance."
    ),
    CommandRow("gateway", "gpuyard.deployment.cli.gateway:app", "A public machine in front of a cloud behind a VPN."),
    CommandRow("gpu", "gpuyard.cli.gpu:app", "See every GPU of the site, and who has it."),
    CommandRow("flavor", "gpuyard.diagnosis.cli.flavor:app", "See which servers a project could start now."),
    CommandRow("booking", "gpuyard.bookings.cli.booking:app", "Book GPUs, and look after bookings."),
    CommandRow(
        "runner", "gpuyard.runners.cli.runner:app", "Runners for GitHub jobs: GPU servers that run one job each."
    ),
    CommandRow("usage", "gpuyard.usage.cli.usage:app", "What GPUs were used for, and what is left of budgets."),
    CommandRow(
        "db",
        "gpuyard.cli.db:app",
        "Back up, restore, upgrade and check the database of a site, on the machine that serves it.",
    ),
    CommandRow("lab", "gpuyard.cli.lab:app", "A real OpenStack with recorded hosts, on this machine."),
)


class UnloadedCommand(TyperCommand):
    """A row of the table in place of its command: enough for help, completion and suggestions."""

    def __init__(self, row: CommandRow) -> None:
        super().__init__(row.name, help=row.help, rich_markup_mode=None)
        self.row = row


class CommandTable(TyperGroup):
    """The group `gpuyard`. Its commands are rows until one is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({row.name: UnloadedCommand(row) for row in COMMANDS})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, loaded(command.row) if isinstance(command, UnloadedCommand) else command, rest

    def load_all(self) -> CommandTable:
        """Import the module of every command."""
        self.commands.update({row.name: loaded(row) for row in COMMANDS})
        return self


def loaded(row: CommandRow) -> Any:
    """The command or group of a row, imported."""
    module, _, attribute = row.target.partition(":")
    found = getattr(import_module(module), attribute)
    above = typer.Typer(rich_markup_mode=None)  # plain help comes twice as fast
    if isinstance(found, typer.Typer):
        above.add_typer(found, name=row.name)
    else:
        above.command(row.name)(found)
    return get_group(above).commands[row.name]
