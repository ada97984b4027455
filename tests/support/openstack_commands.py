"""Commands of ``openstack gpu ...``, without the program around them."""

from __future__ import annotations

import io
import warnings
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.portal import open_session

with warnings.catch_warnings():  # it warns about itself when it is imported
    warnings.simplefilter("ignore")
    from osc_lib.command.command import Command

    COMMANDS = {
        entry.name.replace("_", " "): entry.load()
        for entry in entry_points(group="openstack.gpu.v1")
        if entry.value.startswith("gpuyard.")
    }


def take(who: str, name: str, *words: str) -> Any:
    """What a command gives to be printed: (columns, values); for one without that, what it prints."""
    stdout = io.StringIO()
    manager = SimpleNamespace(gpu=Client(open_session(who)))
    app = SimpleNamespace(client_manager=manager, stdout=stdout, stderr=io.StringIO())
    command = COMMANDS[name](app, None)
    result = command.take_action(command.get_parser(f"openstack {name}").parse_args(words))
    return stdout.getvalue() if result is None else result


def one(who: str, name: str, *words: str) -> dict[str, Any]:
    columns, values = take(who, name, *words)
    return dict(zip(columns, values, strict=True))


__all__ = ["COMMANDS", "Command", "one", "take"]
