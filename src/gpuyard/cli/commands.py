"""The table of gpuyard's commands, and the group that imports the module of a command only when that is called.

So `gpuyard --help` and completion read this table alone, and no command waits for what the others import. A test holds
each help line against the module's own.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_name, get_group, solve_typer_info_help
from typer.models import CommandInfo


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


class PendingCommand(TyperCommand):
    """A command that is not made yet: its name and help, which are enough for the help of its group, for completion
    and for suggestions, and how to make it."""

    def __init__(self, name: str, help: str | None, make: Callable[[], Any], hidden: bool = False) -> None:
        super().__init__(name, help=help, hidden=hidden, rich_markup_mode=None)
        self.make = make


class LazyGroup(TyperGroup):
    """A group of commands that are made when they are called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call, made."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.make() if isinstance(command, PendingCommand) else command, rest

    def make_all(self) -> LazyGroup:
        """Make every command below."""
        for name, command in self.commands.items():
            made = command.make() if isinstance(command, PendingCommand) else command
            self.commands[name] = made.make_all() if isinstance(made, LazyGroup) else made
        return self


class CommandTable(LazyGroup):
    """The group `gpuyard`: the rows of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for row in COMMANDS:
            self.add_command(PendingCommand(row.name, row.help, partial(load, row)))


def load(row: CommandRow) -> Any:
    """Import the command or group of a row."""
    module, _, attribute = row.target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return group_of(found, row.name)
    return command_of(CommandInfo(row.name, callback=found))


def group_of(app: typer.Typer, name: str) -> LazyGroup:
    """The group of a Typer, whose commands are made when they are called. Typer would make all of them, with their
    options, whichever is called."""
    shell = copy(app)
    shell.registered_commands, shell.registered_groups = [], []
    above = typer.Typer(rich_markup_mode=None)
    above.add_typer(shell, name=name, cls=LazyGroup)
    group = get_group(above).commands[name]
    assert isinstance(group, LazyGroup)
    for info in app.registered_commands:
        help = info.help or getdoc(info.callback)
        group.add_command(PendingCommand(_name(info), help, partial(command_of, info), info.hidden))
    for below in app.registered_groups:
        assert below.name
        assert below.typer_instance
        help = solve_typer_info_help(below)
        group.add_command(PendingCommand(below.name, help, partial(group_of, below.typer_instance, below.name)))
    return group


def command_of(info: CommandInfo) -> Any:
    """One command, with its options."""
    above = typer.Typer(rich_markup_mode=None)  # plain help comes twice as fast
    above.registered_commands.append(info)
    return get_group(above).commands[_name(info)]


def _name(info: CommandInfo) -> str:
    assert info.callback
    return info.name or get_command_name(info.callback.__name__)
