"""``openstack gpu ...`` against a real portal; the whole `openstack` with the plugin runs in tests/integration."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.client.client import Client
from gpuyard.client.portal import open_session
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.osc import plugin
from tests.support.ledgers import ADA, BOB, ROOT, open_ledger
from tests.support.openstack_commands import COMMANDS, Command, one, take
from tests.support.served import RealClock, served, write_clouds

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
PEOPLE = (ADA, BOB, ROOT)
HOUR = timedelta(hours=1)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Of a portal that is served."""
    ledger = open_ledger(tmp_path, clock=RealClock())
    with served(ledger, PEOPLE) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, PEOPLE)))
        monkeypatch.setenv("TZ", "Europe/Rome")
        yield ledger
    ledger.close()


def test_every_command_is_one() -> None:
    assert len(COMMANDS) == 34
    for name, command in COMMANDS.items():
        assert issubclass(command, Command)
        assert command.__doc__, name
    [extension] = [entry for entry in entry_points(group="openstack.cli.extension") if entry.name == "gpuyard_gpu"]
    assert extension.load() is plugin


def test_a_list_of_gpus(ledger: Ledger) -> None:
    columns, rows = take("ada", "gpu list", "--pool", "t4", "--state", "held")
    assert [(row[columns.index("Host")], row[columns.index("State")]) for row in rows] == [("node10", "held")]


def test_a_booking_from_beginning_to_end(ledger: Ledger) -> None:
    made = one("ada", "gpu booking create", "--pool", "t4", "--end", "+4h", "--comment", "thesis")
    assert (made["user"], made["comment"], made["gpus"]) == ("ada", "thesis", 1)
    id = made["id"]
    assert one("bob", "gpu booking show", id)["id"] == id
    columns, rows = take("bob", "gpu booking list", "--pool", "t4", "--state", "confirmed", "--state", "active")
    assert [row[columns.index("ID")] for row in rows] == [id]
    later = one("ada", "gpu booking extend", id, "+1h")
    assert datetime.fromisoformat(later["end"]) - datetime.fromisoformat(made["end"]) == HOUR
    assert one("ada", "gpu booking set", id, "--comment", "")["comment"] == ""
    ledger.upkeep.advance()
    assert one("ada", "gpu booking end", id)["state"] == "ended"


def test_a_refusal_says_why_and_its_command_works(ledger: Ledger) -> None:
    words = ("--pool", "t4", "--start", "+1h", "--end", "+4h")
    one("ada", "gpu booking create", *words, "--gpus", "2")
    with pytest.raises(BlockedError, match="no GPU of pool t4 is free throughout that time") as refused:
        one("bob", "gpu booking create", *words)
    match = re.search(r"^    openstack gpu booking create (.*)$", str(refused.value), re.MULTILINE)
    assert match
    assert one("bob", "gpu booking create", *shlex.split(match.group(1)))["state"] == "confirmed"


def test_check(ledger: Ledger) -> None:
    assert "It fits" in take("ada", "gpu booking check", "--pool", "t4", "--end", "+1h")
    with pytest.raises(BlockedError, match="it does not fit"):
        take("bob", "gpu booking check", "--pool", "t4", "--gpus", "3", "--end", "+1h")


def test_a_recurring_booking(ledger: Ledger) -> None:
    words = ("--pool", "t4", "--start", "+1h", "--end", "+2h", "--repeat", "FREQ=DAILY;COUNT=2")
    ids = one("ada", "gpu booking create", *words)["ids"].split()
    assert len(ids) == 2
    assert one("ada", "gpu booking cancel", ids[0])["state"] == "cancelled"


def test_the_waitlist(ledger: Ledger) -> None:
    words = ("--pool", "t4", "--start", "+1h", "--end", "+4h")
    first = one("ada", "gpu booking create", *words, "--gpus", "2")
    waiting = one("bob", "gpu booking create", *words, "--waitlist")
    assert waiting["state"] == "waiting"
    one("ada", "gpu booking cancel", first["id"])
    ledger.upkeep.advance()
    assert one("bob", "gpu booking accept", waiting["id"])["state"] == "confirmed"


def test_bad_words_are_errors(ledger: Ledger) -> None:
    for words in (("--end", "yesterday"), ("--end", "+1h", "--timezone", "Nowhere")):
        with pytest.raises(UsageError):
            take("ada", "gpu booking create", "--pool", "t4", *words)
    with pytest.raises(UsageError, match="nothing to change"):
        take("ada", "gpu booking set", one("ada", "gpu booking create", "--pool", "t4", "--end", "+1h")["id"])


def test_a_column_that_does_not_exist_is_an_error(ledger: Ledger) -> None:
    app = SimpleNamespace(client_manager=SimpleNamespace(gpu=Client(open_session("ada"))), stdout=io.StringIO())
    for name in ("gpu list", "gpu booking list"):
        command = COMMANDS[name](app, None)
        with pytest.raises(UsageError, match="there is no column 'Nonsense'"):
            command.run(command.get_parser(name).parse_args(["-c", "State", "-c", "Nonsense"]))
