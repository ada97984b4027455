"""``python -m gpuyard_lab.github``: the stand-in as a process of its own."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuyard_lab.github.faults import STORM, FaultRates, Faults
from gpuyard_lab.github.forge import ForgeApp, ForgeSettings
from gpuyard_lab.github.server import ForgeServer
from gpuyard_lab.github.standin import StandIn
from gpuyard_lab.guests import LOOK_S, Guests

DEFAULT_PORT = 15080


def populate(standin: StandIn, world: dict[str, Any]) -> None:
    """Make the accounts, repositories and webhooks that a file describes. Raises KeyError, TypeError, ValueError where
    it is not right."""
    forge = standin.forge
    with forge.lock:
        if app := world.get("app"):
            forge.app = ForgeApp(int(app["id"]), str(app["public_key"]))
        forge.personal_tokens.update(world.get("tokens", {}))
        for name, about in world.get("accounts", {}).items():
            account = forge.add_account(name, organization=about.get("organization", True))
            account.members.update(about.get("members", {}))
            account.teams.update({slug: set(logins) for slug, logins in about.get("teams", {}).items()})
        for name, about in world.get("repositories", {}).items():
            repository = forge.add_repository(name, private=about.get("private", False))
            repository.files.update(about.get("files", {}))
            repository.permissions.update(about.get("permissions", {}))
        for hook in world.get("hooks", []):
            forge.add_hook(hook["scope"], hook["url"], hook["secret"])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m gpuyard_lab.github", description="A GitHub that misbehaves.")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="where it listens on the loopback interface")
    parser.add_argument("--world", type=Path, help="JSON: app, tokens, accounts, repositories, hooks")
    parser.add_argument("--guests", type=Path, help="play the servers of a lab that have their folders there")
    parser.add_argument("--runner-url", default="", help="where runners reach it, when that differs")
    parser.add_argument("--seed", type=int, default=0, help="of all faults")
    parser.add_argument("--storm", action="store_true", help="a bad day: some of every fault")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=RATE", help="a fault, and how often")
    return parser


def main(argv: list[str]) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        named = dict(pair.partition("=")[::2] for pair in options.fault)
        rates = FaultRates.of({name: float(rate) for name, rate in named.items()})
    except ValueError as error:
        parser.error(str(error))
    faults = Faults(options.seed, STORM if options.storm else rates)
    settings = ForgeSettings(first_id=int(time.time()))
    server = ForgeServer(options.port, faults=faults, settings=settings, runner_url=options.runner_url)
    if options.world:
        populate(server.standin, json.loads(options.world.read_text(encoding="utf-8")))
    ended = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: ended.set())
    with server:
        print(f"a GitHub that misbehaves listens at {server.url}", file=sys.stderr, flush=True)
        if options.guests:
            play(options.guests, faults, ended)
        ended.wait()
    return 0


def play(folder: Path, faults: Faults, ended: threading.Event) -> None:
    """Play the guests of a lab, until `ended` is set."""
    guests = Guests(folder, faults)
    while not ended.wait(LOOK_S):
        if folder.exists():
            guests.step(datetime.now(UTC))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
