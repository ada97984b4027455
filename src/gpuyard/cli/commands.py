"""The table of gpuyard's commands, and the group that imports the module of a command only when that is called.

So `gpuyard --help` and completion read this table alone, and no command waits for what the others import. A test holds
each help line against the module's own.

Other distributions add commands with entry points of the group `gpuyard.commands`, each a Typer or a function, as
gpuyard-lab adds `gpuyard lab`. They are looked up when all commands are listed, or one is called that the table does
not have; their help line is the summary of their distribution, so that nothing of theirs is imported for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import getdoc
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_name, get_group, solve_typer_info_help
from typer.models import CommandInfo

from gpuyard.model.errors import HOW_TO_INSTALL_LAB, GpuyardError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGINS = "gpuyard.commands"
"""The group of entry points by which other distributions add commands."""
LAB = "lab"
"""The command of gpuyard-lab, which the documentation shows; who calls it without that is told how to get it."""


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
    """The group `gpuyard`: the rows of the table, and the commands of other distributions."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.has_plugins = False
        for row in COMMANDS:
            self.add_command(PendingCommand(row.name, row.help, partial(load, row)))

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        self.add_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None where there is none. Raises UsageError for the lab's, where that is missing."""
        if cmd_name not in self.commands:
            self.add_plugins()
            if cmd_name == LAB and cmd_name not in self.commands:
                raise UsageError(f"`gpuyard lab` comes with gpuyard-lab; install that: {HOW_TO_INSTALL_LAB}")
        return super().get_command(ctx, cmd_name)

    def make_all(self) -> LazyGroup:
        """Make every command below."""
        self.add_plugins()
        return super().make_all()

    def add_plugins(self) -> None:
        """Add the commands of other distributions, once. None of them takes the place of one that is there."""
        if self.has_plugins:
            return
        from importlib.metadata import entry_points  # here: it takes as long as the rest of a command's help

        self.has_plugins = True
        for plugin in entry_points(group=PLUGINS):
            if plugin.name not in self.commands:
                summary = plugin.dist.metadata["Summary"] if plugin.dist else None
                self.add_command(PendingCommand(plugin.name, summary, partial(load_plugin, plugin)))


def load(row: CommandRow) -> Any:
    """Import the command or group of a row."""
    module, _, attribute = row.target.partition(":")
    return command_for(row.name, getattr(import_module(module), attribute))


def load_plugin(plugin: EntryPoint) -> Any:
    """Import the command or group of another distribution. Raises GpuyardError, which names it, when it is broken."""
    try:
        return command_for(plugin.name, plugin.load())
    except Exception as error:  # whatever its modules do when they are imported
        distribution = f"{plugin.dist.name} {plugin.dist.version}" if plugin.dist else plugin.value
        raise GpuyardError(
            f"`gpuyard {plugin.name}` comes with {distribution}, which cannot be loaded: "
            f"{type(error).__name__}: {error}; install it again, of the same version as gpuyard"
        ) from error


def command_for(name: str, target: Any) -> Any:
    """The group of a Typer, or the command of a function."""
    if isinstance(target, typer.Typer):
        return group_of(target, name)
    return command_of(CommandInfo(name, callback=target))


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
