"""``gpuyard booking`` and ``gpuyard gpu hold`` against a real portal with a real ledger; only Keystone is not there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keystoneauth1.plugin import BaseAuthPlugin
from keystoneauth1.session import Session
from typer.testing import CliRunner, Result

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.cli.main import app
from gpuyard.client.client import PAUSES, USED_UP, Client
from gpuyard.client.errors import ApiRefusedError, ChangedError, PortalError, error_of
from gpuyard.client.portal import PortalSession, PortalUnreachableError, Reply, address, open_session, session_for
from gpuyard.client.rows import rule_rows
from gpuyard.client.times import WEEKDAYS, local_zone, localize, parse_time, show_time
from gpuyard.model.booking import Ask, BookingState, Rules
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from tests.support.inventories import STATUSES
from tests.support.ledgers import ADA, BOB, EVE, ROOT, open_ledger
from tests.support.served import RealClock, served, write_clouds
from tests.support.sites import flavor, site

# The SDK warns about its own calls of its own functions.
pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")

ROME = ZoneInfo("Europe/Rome")
NOW = datetime(2026, 11, 23, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path, {"biology": Rules(approval=True), "physics": Rules(most_active=3)}, RealClock())
    yield ledger
    ledger.close()


@pytest.fixture
def url(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    people = (ADA, BOB, EVE, ROOT)
    with served(ledger, people) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, people)))
        monkeypatch.setenv("TZ", "Europe/Rome")
        monkeypatch.delenv("GPUYARD_URL", raising=False)
        yield url


def invoke(who: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--os-cloud", who])


def data(who: str, *arguments: object) -> Any:
    """What a command answers with -f json."""
    result = invoke(who, *arguments, "-f", "json")
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def refused(who: str, *arguments: object) -> str:
    """Why a command is refused."""
    result = invoke(who, *arguments)
    assert isinstance(result.exception, BlockedError), result.output
    assert result.exception.exit_code == 3
    return str(result.exception)


def create(who: str, *more: object, start: str = "+1h", end: str = "+4h", pool: str = "t4") -> Any:
    return data(who, "booking", "create", "--pool", pool, "--start", start, "--end", end, *more)


# Times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-23T12:00:00Z"),
        ("2026-12-01 14:00", "2026-12-01T13:00:00Z"),
        ("2026-12-01T14:00:30", "2026-12-01T13:00:30Z"),
        ("2026-12-01 9:00", "2026-12-01T08:00:00Z"),
        ("2026-12-01", "2026-11-30T23:00:00Z"),
        ("2026-12-01 14:00 UTC", "2026-12-01T14:00:00Z"),
        ("2026-12-01T14:00Z", "2026-12-01T14:00:00Z"),
        ("2026-12-01T14:00+05:30", "2026-12-01T08:30:00Z"),
        ("2026-12-01T14:00+0530", "2026-12-01T08:30:00Z"),
        ("+4h", "2026-11-23T16:00:00Z"),
        ("+90 min", "2026-11-23T13:30:00Z"),
        ("+30m", "2026-11-23T12:30:00Z"),
        ("+3d", "2026-11-26T12:00:00Z"),
        ("+1w", "2026-11-30T12:00:00Z"),
        # On a Monday at 13:00 in Rome.
        ("today", "2026-11-22T23:00:00Z"),
        ("today 9:00", "2026-11-23T08:00:00Z"),
        ("tomorrow", "2026-11-23T23:00:00Z"),
        ("Tomorrow 9:00", "2026-11-24T08:00:00Z"),
        ("17:00", "2026-11-23T16:00:00Z"),
        ("13:00", "2026-11-24T12:00:00Z"),
        ("9:00", "2026-11-24T08:00:00Z"),
        ("monday", "2026-11-29T23:00:00Z"),
        ("monday 17:00", "2026-11-23T16:00:00Z"),
        ("mon 12:59", "2026-11-30T11:59:00Z"),
        ("friday", "2026-11-26T23:00:00Z"),
        ("Sun  23:59", "2026-11-29T22:59:00Z"),
    ],
)
def test_times(text: str, expected: str) -> None:
    assert show_time(parse_time(text, ROME, NOW), ZoneInfo("UTC")) == expected


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "24:00", "14", "9:60", "\u0661\u0667:00", "tomorrow9:00",
     "9:00 tomorrow", "friday UTC", "fri +1h", "2026-13-01",
     "2026-12-01 25:00", "+4", "+4mo", "4h", "-4h", "20261201T140000Z", "2026-W49-1", "2026-12-01T14:00+99:00",
     "+999999w", "0001-01-01T00:00+14:00", "9999-12-31T23:00-14:00"],
)  # fmt: skip
def test_what_is_no_time_is_an_error_that_shows_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"2026-12-01 14:00|there are min, h, d and w"):
        parse_time(text, ROME, NOW)


def test_what_ends_a_booking_comes_after_its_start() -> None:
    start = parse_time("friday 18:00", ROME, NOW)
    ends = {text: show_time(parse_time(text, ROME, NOW, start), ROME) for text in ("20:00", "9:00", "friday", "monday")}
    assert ends == {
        "20:00": "2026-11-27T20:00:00+01:00",
        "9:00": "2026-11-28T09:00:00+01:00",
        "friday": "2026-12-04T00:00:00+01:00",
        "monday": "2026-11-30T00:00:00+01:00",
    }


@given(
    st.sampled_from(sorted(WEEKDAYS)),
    st.none() | st.tuples(st.integers(0, 23), st.integers(0, 59)),
    st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(["UTC", "Europe/Rome", "Asia/Kabul"]),
)
def test_a_day_of_the_week_is_the_next_one(day: str, clock: tuple[int, int] | None, now: datetime, name: str) -> None:
    zone = ZoneInfo(name)
    try:
        moment = parse_time(day if clock is None else f"{day} {clock[0]}:{clock[1]:02}", zone, now).astimezone(zone)
    except UsageError as error:
        if "where clocks change" not in str(error):
            raise
        return
    assert (moment.hour, moment.minute) == (clock or (0, 0))
    assert moment.weekday() == WEEKDAYS[day]
    passed = moment.replace(tzinfo=None) - now.astimezone(zone).replace(tzinfo=None)
    assert timedelta(0) < passed <= timedelta(days=7)


@given(
    st.text()
    | st.from_regex(r"\A(?:(?:today|tomorrow|[a-z]{3,9}) ?)?[0-9]{0,2}:?[0-9]{0,3}\Z")
    | st.from_regex(r"\A\+?[0-9T:+Z -]{1,25}[a-z]?\Z"),
    st.sampled_from(["UTC", "Europe/Rome", "Asia/Kabul"]),
)
def test_any_text_is_a_time_or_a_usage_error(text: str, zone: str) -> None:
    try:
        moment = parse_time(text, ZoneInfo(zone), NOW)
    except UsageError:
        return
    assert moment.microsecond == 0
    assert moment.utcoffset() == timedelta(0)


def test_a_local_time_that_comes_twice_is_asked_back() -> None:
    with pytest.raises(UsageError) as error:
        parse_time("2026-10-25 02:30", ROME, NOW)
    assert str(error.value) == (
        "2026-10-25 02:30 comes twice in Europe/Rome, where clocks change; say '2026-10-25T02:30:00+02:00' or "
        "'2026-10-25T02:30:00+01:00'"
    )


def test_a_local_time_that_is_skipped_is_asked_back() -> None:
    with pytest.raises(UsageError) as error:
        parse_time("2026-03-29 02:30", ROME, NOW)
    assert str(error.value) == (
        "2026-03-29 02:30 does not exist in Europe/Rome, where clocks change; say '2026-03-29T01:30:00+01:00' or "
        "'2026-03-29T03:30:00+02:00'"
    )


def test_days_keep_the_time_of_day_and_hours_are_exact() -> None:
    noon = localize(datetime(2026, 10, 24, 12, 0), ROME)  # noqa: DTZ001 - a local time
    assert parse_time("+1d", ROME, NOW, noon) - noon == 25 * HOUR
    assert parse_time("+24h", ROME, NOW, noon) - noon == 24 * HOUR


def test_the_zone_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ":Europe/Rome")
    assert local_zone().key == "Europe/Rome"
    monkeypatch.setenv("TZ", "Mars/Crater")
    with pytest.raises(UsageError, match="no time zone 'Mars/Crater'"):
        local_zone()
    monkeypatch.delenv("TZ")
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert local_zone(link).key in ("Europe/Berlin", "UTC")
    assert local_zone(tmp_path / "none").key == "UTC"


# Book and look


def test_book_show_and_list(url: str) -> None:
    made = create("ada", "--comment", "thesis")
    assert (made["state"], made["pool"], made["gpus"], made["user"], made["comment"]) == (
        "confirmed",
        "t4",
        1,
        "ada",
        "thesis",
    )
    assert made["start"].endswith(("+01:00", "+02:00"))
    assert data("bob", "booking", "show", made["id"])["gpu_names"] == made["gpu_names"]
    assert [row["ID"] for row in data("bob", "booking", "list")] == [made["id"]]
    assert data("bob", "booking", "list", "--mine") == []
    assert [row["ID"] for row in data("bob", "booking", "list", "--user", "ada", "--project", "physics")] == [
        made["id"]
    ]
    assert data("ada", "booking", "list", "--state", "ended", "--state", "active") == []
    assert data("ada", "booking", "list", "--to", "now") == []
    assert data("ada", "booking", "list", "--pool", "v100") == []
    data("ada", "booking", "cancel", made["id"])
    assert data("bob", "booking", "list") == []
    for words in (["--all"], ["--state", "cancelled"], ["--from", "now"]):
        assert [row["ID"] for row in data("bob", "booking", "list", *words)] == [made["id"]]


def test_formats(url: str) -> None:
    id = create("ada")["id"]
    assert re.search(r"\| state +\| confirmed", invoke("ada", "booking", "show", id).stdout)
    assert invoke("ada", "booking", "show", id, "-f", "value", "-c", "id", "-c", "pool").stdout == f"{id}\nt4\n"
    assert invoke("ada", "booking", "list", "-f", "value", "-c", "ID").stdout == f"{id}\n"
    assert invoke("ada", "booking", "list", "-f", "csv", "-c", "ID").stdout == f'"ID"\n"{id}"\n'
    assert f"id: {id}" in invoke("ada", "booking", "show", id, "-f", "yaml").stdout


def test_no_cell_is_a_formula_and_nothing_printed_steers_a_terminal(url: str, ledger: Ledger) -> None:
    create("ada", "--comment", "=HYPERLINK(1)")
    shown = invoke("ada", "booking", "list", "-f", "csv", "-c", "Comment").stdout
    assert shown == '"Comment"\n"\'=HYPERLINK(1)"\n'
    assert invoke("ada", "booking", "list", "-f", "value", "-c", "Comment").stdout == "=HYPERLINK(1)\n"
    evil = replace(BOB, user="bob\x1b[2Jroot\u202e")
    start = datetime.now(UTC).replace(microsecond=0) + HOUR
    ledger.create(Ask("t4", start, start + HOUR), evil)
    for format_ in ("table", "value", "csv", "yaml", "json"):
        output = invoke("ada", "booking", "list", "-f", format_).stdout
        assert "bob" in output
        assert not set(output) & {"\x1b", "\u202e"}
    assert isinstance(invoke("ada", "booking", "show", id, "-c", "Nonsense").exception, UsageError)


def test_the_beginning_of_an_id_is_enough_when_it_is_the_only_one(url: str, ledger: Ledger) -> None:
    ids = iter(["3f9a-1", "3f9b-2", "77-3"])
    ledger._new_id = lambda: next(ids)
    made = [create("ada", start=f"+{number}h", end="+1h", pool="v100")["id"] for number in (1, 3, 5)]
    assert data("bob", "booking", "show", "3f9a")["id"] == made[0]
    assert data("ada", "booking", "cancel", "7")["id"] == made[2]
    result = invoke("ada", "booking", "cancel", "3f")
    assert isinstance(result.exception, UsageError)
    assert "3f9a-1, 3f9b-2" in str(result.exception)
    assert isinstance(invoke("ada", "booking", "show", "e").exception, GpuyardError)


def test_when_is_the_next_one_free(url: str) -> None:
    options = ("--pool", "t4", "--gpus", "2", "--for", "90m")
    free = data("ada", "booking", "next", *options)
    assert data("ada", *shlex.split(free["command"])[1:])["gpus"] == 2
    later = data("bob", "booking", "next", *options)
    assert free["end"] <= later["start"]  # rounded up to a quarter of an hour
    assert data("bob", *shlex.split(later["command"])[1:])["start"] == later["start"]
    result = invoke("ada", "booking", "next", "--pool", "t4", "--gpus", "200", "--for", "1h")
    assert result.exit_code == 3
    assert "It does not fit" in result.stdout


def test_without_a_pool_all_are_asked_and_the_earliest_comes_first(url: str) -> None:
    create("ada", "--gpus", 2)  # both T4
    rows = data("bob", "booking", "next", "--for", "1h")
    assert [row["Pool"] for row in rows] == ["v100", "t4"]
    assert [row["Start"] for row in rows] == sorted(row["Start"] for row in rows)
    assert data("bob", *shlex.split(rows[1]["Command"])[1:])["pool"] == "t4"
    some = data("bob", "booking", "next", "--for", "1h", "--gpus", "3")
    assert [row["Pool"] for row in some] == ["v100"], "a pool that never has so many is left out"
    none = invoke("bob", "booking", "next", "--for", "1h", "--gpus", "200")
    assert none.exit_code == 3
    assert [line for line in none.stdout.splitlines() if line.startswith("Pool ")] == ["Pool v100:", "Pool t4:"]


def test_a_time_zone_can_be_chosen(url: str) -> None:
    assert create("ada", "--timezone", "UTC")["start"].endswith("Z")
    assert isinstance(invoke("ada", "booking", "list", "--timezone", "Nowhere").exception, UsageError)


def test_the_end_must_be_after_the_start(url: str) -> None:
    with pytest.raises(UsageError, match="is not after"):
        create("ada", start="2030-01-02", end="2030-01-01")


def test_a_refusal_says_why_and_its_commands_work(url: str) -> None:
    create("ada", "--gpus", 2)
    message = refused("bob", "booking", "create", "--pool", "t4", "--start", "+1h", "--end", "+4h")
    assert "no GPU of pool t4 is free throughout that time" in message
    commands = re.findall(r"^    gpuyard (.*)$", message, re.MULTILINE)
    assert commands
    for command in commands:
        made = data("root", *shlex.split(command))
        assert made["state"] == "confirmed"


def test_every_rule_that_is_broken_is_said(url: str) -> None:
    noon = f"{datetime.now(UTC) + timedelta(days=90):%Y-%m-%d} 12:00"  # a time that every day has
    message = refused("ada", "booking", "create", "--pool", "t4", "--start", noon, "--end", "+30d")
    assert "longer than the longest booking" in message
    assert "at most 60 days ahead" in message


def test_check_asks_and_books_nothing(url: str) -> None:
    arguments = ("booking", "check", "--pool", "t4", "--start", "+1h", "--end", "+4h")
    fits = invoke("ada", *arguments)
    assert fits.exit_code == 0
    assert "It fits" in fits.stdout
    assert data("ada", "booking", "list") == []
    create("ada", "--gpus", 2)
    full = invoke("bob", *arguments)
    assert full.exit_code == 3
    assert "no GPU of pool t4 is free" in full.stdout
    assert "gpuyard booking create --pool" in full.stdout
    again = invoke("bob", "booking", "create", "--check", *arguments[2:])
    assert (again.exit_code, again.stdout.splitlines()[1]) == (3, full.stdout.splitlines()[1])


def test_the_command_of_a_check_books_it(url: str) -> None:
    result = invoke(
        "ada", "booking", "check", "--pool", "v100", "--gpus", 2, "--same-group", "--start", "+1h", "--end", "+1d"
    )
    command = result.stdout.partition("with: gpuyard ")[2]
    assert data("ada", *shlex.split(command))["same_group"] is True


def test_a_recurring_booking(url: str) -> None:
    made = create("ada", "--repeat", "FREQ=DAILY;COUNT=3")
    assert len(made) == 3
    assert len({data("ada", "booking", "show", row["ID"])["series"] for row in made}) == 1


def test_the_waitlist(url: str, ledger: Ledger) -> None:
    first = create("ada", "--gpus", 2)
    waiting = create("root", "--waitlist")
    assert waiting["state"] == "waiting"
    [row] = data("ada", "booking", "waitlist")
    assert (row["Place"], row["ID"]) == (1, waiting["id"])
    assert data("ada", "booking", "cancel", first["id"])["state"] == "cancelled"
    ledger.upkeep.advance()
    [row] = data("ada", "booking", "waitlist")
    assert (row["Place"], row["State"]) == ("", "offered")
    assert data("root", "booking", "accept", waiting["id"])["state"] == "confirmed"


def test_approve_and_decline(url: str) -> None:
    one, two = (create("bob")["id"] for _ in range(2))
    assert data("bob", "booking", "show", one)["state"] == "requested"
    assert "admin" in refused("ada", "booking", "approve", one)
    assert data("root", "booking", "approve", one)["state"] == "confirmed"
    declined = data("root", "booking", "decline", two, "--reason", "not now")
    assert (declined["state"], "not now" in declined["reason"]) == ("cancelled", True)


def test_edit_extend_and_end(url: str, ledger: Ledger) -> None:
    made = create("ada")
    later = data("ada", "booking", "extend", made["id"], "+2h")
    assert datetime.fromisoformat(later["end"]) - datetime.fromisoformat(made["end"]) == 2 * HOUR
    with pytest.raises(UsageError, match="makes it shorter"):
        data("ada", "booking", "extend", made["id"], "now")
    edited = data("ada", "booking", "edit", made["id"], "--start", "+2h", "--end", "+1h", "--comment", "short")
    assert datetime.fromisoformat(edited["end"]) - datetime.fromisoformat(edited["start"]) == HOUR
    assert edited["comment"] == "short"
    with pytest.raises(UsageError, match="nothing to change"):
        data("ada", "booking", "edit", made["id"])
    now = create("ada", start="now", end="+2h")
    ledger.upkeep.advance()
    assert data("ada", "booking", "end", now["id"])["state"] == "ended"
    assert "is ended" in refused("ada", "booking", "cancel", now["id"])


def test_another_s_booking_is_not_changed(url: str) -> None:
    made = create("ada")
    for words in (["cancel"], ["edit", "--comment", "x"], ["extend"]):
        verb, *more = words
        more = [*more, "+1h"] if verb == "extend" else more
        refused("bob", "booking", verb, made["id"], *more)
    assert data("ada", "booking", "show", made["id"])["version"] == made["version"]


def test_an_edit_over_somebody_else_s_is_refused(url: str, ledger: Ledger) -> None:
    made = create("ada")
    client = Client(open_session("ada"))
    row, etag = client.booking(made["id"])
    client.edit(made["id"], {"comment": "first"}, etag)
    with pytest.raises(ChangedError, match="look at it again"):
        client.edit(made["id"], {"comment": "second"}, etag)
    with pytest.raises(ChangedError):
        client.extend(made["id"], {"end": row["end"]}, etag)
    assert ledger.get(made["id"]).ask.comment == "first"


def test_overrides_are_for_admins(url: str) -> None:
    words = ("booking", "create", "--pool", "t4", "--start", "+1h", "--end", "+30d", "--override")
    refused("ada", *words)
    assert data("root", *words)["override"] is True
    actions = [row["Action"] for row in data("root", "booking", "audit")]
    assert any("override" in action for action in actions)
    assert "admin" in refused("ada", "booking", "audit")


def test_an_admin_books_for_another_project(url: str) -> None:
    assert create("root", "--project", "physics")["project"] == "physics"
    refused("bob", "booking", "create", "--pool", "t4", "--end", "+1h", "--project", "physics")


def test_rules_are_told_in_words(url: str) -> None:
    rules = {row["Rule"]: row["Value"] for row in data("ada", "booking", "rules", "--pool", "t4")}
    assert (rules["longest"], rules["most_active"], rules["no_show"], rules["users"]) == (
        "15 days",
        3,
        "4 h",
        "everybody with the role member",
    )
    assert "no pool 'k80'" in refused("ada", "booking", "rules", "--pool", "k80")


def test_what_a_changed_site_file_would_mean_for_bookings(url: str, ledger: Ledger, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    flavors = {"one": flavor(gpus={"v100": 1})}

    def ask(who: str = "root", **rules: object) -> Result:
        rules = {"most_active": 3, **rules}
        path = site(changed, {"flavors": flavors, "booking": rules}).path
        return invoke(who, "site", "bookings", "--site", path, "-f", "json")

    long = create("ada", end="+5h", pool="v100")["id"]
    assert json.loads(ask().stdout) == []
    result = ask(longest="5 h", no_show="1 h")
    assert isinstance(result.exception, BlockedError)
    assert str(result.exception) == "1 booking would lose by these rules"
    findings = json.loads(result.stdout)
    assert [(finding["code"], finding["severity"], finding["payload"]["rule"]) for finding in findings] == [
        ("booking-loses", "warning", "no_show")
    ]
    beyond = json.loads(ask(longest="3 h", users=["ada"]).stdout)
    assert [(finding["object"], finding["payload"]["rule"]) for finding in beyond] == [(f"booking {long}", "too_long")]
    assert beyond[0]["reason"] == "5 h is longer than the longest booking, 3 h"
    create("bob")
    assert [finding["code"] for finding in json.loads(ask().stdout)] == ["pool-gone"]  # that of t4
    assert isinstance(ask("ada").exception, GpuyardError)
    assert "Only admins" in str(ask("ada").exception)
    assert [booking.version for booking in ledger.find(Query())] == [1, 1]


def test_a_feed(url: str) -> None:
    create("ada")
    made = invoke("ada", "booking", "feed", "create", "--pool", "t4").stdout.strip()
    assert made.startswith(url)
    assert made.endswith(".ics")
    [row] = data("ada", "booking", "feed", "list")
    assert (row["Scope"], row["Target"]) == ("pool", "t4")
    assert "deleted" in invoke("ada", "booking", "feed", "delete", row["ID"]).stdout
    assert data("ada", "booking", "feed", "list") == []
    assert isinstance(invoke("ada", "booking", "feed", "create", "--pool", "t4", "--gpu", "a/b").exception, UsageError)


def test_hold_holds_and_release(url: str) -> None:
    made = data("root", "gpu", "hold", "gpu-2/0000:18:00.0", "--end", "+3d", "--comment", "new fan")
    assert [(row["GPU"], row["Comment"]) for row in made] == [("gpu-2/0000:18:00.0", "new fan")]
    assert data("ada", "gpu", "holds") == made
    refused("ada", "gpu", "hold", "gpu-3/0000:18:00.0", "--end", "+1d", "--comment", "mine")
    assert "is over" in invoke("root", "gpu", "release", made[0]["ID"]).stdout
    assert data("ada", "gpu", "holds") == []


def test_who_names_a_gpu_to_release_is_told_what_to_say(url: str) -> None:
    gpu = "gpu-2/0000:18:00.0"
    (made,) = data("root", "gpu", "hold", gpu, "--end", "+3d", "--comment", "new fan")
    assert str(invoke("root", "gpu", "release", gpu).exception) == (
        f"{gpu} is a GPU, and a hold ends by its id: gpuyard gpu release {made['ID']}"
    )
    other = str(invoke("root", "gpu", "release", made["ID"], "gpu-3/0000:18:00.0").exception)
    assert "no hold keeps GPU gpu-3/0000:18:00.0 ('gpuyard gpu holds' lists them)" in other
    assert "gpuyard gpu repair release gpu-3/0000:18:00.0 --comment WHY" in other
    assert data("root", "gpu", "holds"), "and nothing was done"


def test_a_hold_in_the_way_of_a_booking_names_it(url: str) -> None:
    made = create("ada", "--gpus", 2)
    message = refused("root", "gpu", "hold", "gpu-2/0000:18:00.0", "--end", "+1d", "--comment", "x")
    assert made["id"] in message


# What goes wrong


def test_no_such_booking(url: str) -> None:
    assert "nope" in refused("ada", "booking", "show", "nope")
    for id in ("../../v1/me", "gpu-2/0000:18:00.0", "", "b" * 65):
        error = invoke("ada", "booking", "cancel", id).exception
        assert isinstance(error, UsageError)
        assert str(error).startswith(f"{id!r} is no id of a booking; 'gpuyard booking list'")


@pytest.mark.parametrize("gpus", [0, -1, 10**6, 10**30])
def test_strange_numbers(url: str, gpus: int) -> None:
    result = invoke("ada", "booking", "create", "--pool", "t4", "--end", "+1h", "--gpus", gpus)
    assert isinstance(result.exception, UsageError | BlockedError), result.exception


def test_an_unknown_pool(url: str) -> None:
    result = invoke("ada", "booking", "create", "--pool", "k80", "--end", "+1h")
    assert isinstance(result.exception, UsageError | BlockedError)
    assert "k80" in str(result.exception)
    assert "t4" in str(result.exception)


def test_a_reader_may_only_look(url: str) -> None:
    assert "member" in refused("eve", "booking", "create", "--pool", "t4", "--end", "+1h")
    assert data("eve", "booking", "list") == []


def test_a_token_that_the_portal_does_not_take(url: str, tmp_path: Path) -> None:
    clouds = tmp_path / "clouds.yaml"
    clouds.write_text(clouds.read_text().replace("token: ada", "token: expired"))
    result = invoke("ada", "booking", "list")
    assert isinstance(result.exception, PortalError)
    assert "does not accept the token" in str(result.exception)


def test_a_portal_that_is_not_there(url: str) -> None:
    result = invoke("ada", "booking", "cancel", "b1", "--url", "http://127.0.0.1:9")
    assert isinstance(result.exception, PortalUnreachableError)
    assert "http://127.0.0.1:9" in str(result.exception)
    assert "GPUYARD_URL" in str(result.exception)


def test_an_address_goes_before_the_catalogue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_URL", "http://127.0.0.1:9")
    assert isinstance(invoke("ada", "booking", "cancel", "b1").exception, PortalUnreachableError)
    assert data("ada", "booking", "list", "--url", f"{url}/v1/") == []


def test_the_list_of_gpus_is_what_the_map_says_also_for_a_user(url: str) -> None:
    rows = data("ada", "gpu", "list", "--url", url)
    assert [(row["State"], row["Address"], row["Reason"]) for row in rows] == [
        (status.state.value, status.gpu.address, status.reason) for status in STATUSES
    ]
    assert data("ada", "gpu", "list", "--pool", "t4", "--state", "booked")[0]["Reason"] == "for ada from 14:00"
    with pytest.raises(UsageError, match="no GPU has pool 'a100'; there is v100, t4"):
        data("ada", "gpu", "list", "--pool", "a100")


def test_a_list_of_gpus_without_a_portal_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpuyard.inventory.cli.gpu._of_cloud", lambda *_: [STATUSES[0].as_dict(), STATUSES[2].as_dict()]
    )
    monkeypatch.setattr("gpuyard.client.client.PAUSES", ())
    result = invoke(
        "ada", "gpu", "list", "--url", "http://127.0.0.1:9", "--state", "free", "-f", "value", "-c", "Address"
    )
    assert result.stdout == "0000:44:00.0\n"
    assert "the portal at http://127.0.0.1:9 does not answer" in result.stderr
    assert "This is what OpenStack says; bookings and holds are not known." in result.stderr
    monkeypatch.setattr("gpuyard.client.portal.open_session", lambda *_: session_for(Session(Catalogue(None))))
    assert "the catalogue has no service of type gpu" in invoke("ada", "gpu", "list").stderr


def test_no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "none.yaml"))
    monkeypatch.chdir(tmp_path)
    assert isinstance(invoke("nobody", "booking", "list").exception, UsageError)


class Catalogue(BaseAuthPlugin):
    """Who has a token, and a catalogue with this address of the portal."""

    def __init__(self, portal: str | None) -> None:
        super().__init__()
        self._portal = portal

    def get_token(self, session: Session, **_: object) -> str:
        return "secret"

    def get_endpoint(self, session: Session, **_: object) -> str | None:
        return self._portal


def test_a_portal_that_the_catalogue_does_not_have_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Catalogue(None))
    monkeypatch.setattr(session, "request", lambda *_, **__: pytest.fail("something was sent"))
    with pytest.raises(UsageError, match=r"no service of type gpu; name the portal: --url, or GPUYARD_URL"):
        session_for(session)


@pytest.mark.parametrize("url", ["http://gpus.example.org", "http://192.0.2.7:8080", "http://[2001:db8::7]"])
def test_a_token_goes_unencrypted_only_to_whom_it_was_meant_for(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="your token would go unencrypted"):
        session_for(Session(Catalogue(url)))
    assert session_for(Session(Catalogue(None)), url).url == url
    assert caplog.messages == [f"your token goes to {url} unencrypted; https would keep it to yourself"]


@pytest.mark.parametrize(
    "url", ["https://gpus.example.org", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:1"]
)
def test_what_others_cannot_read_needs_no_word(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert session_for(Session(Catalogue(url))).url == session_for(Session(Catalogue(None)), url).url == url
    assert not caplog.messages


@pytest.mark.parametrize(
    "text", ["", "gpus.example.org", "ftp://x", "http://", "http:///v1", "http://[::1", "http://:80"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="no address of a portal"):
        address(text)


# The client


class Broken(PortalSession):
    """A way on which answers to changes get lost."""

    def __init__(self, session: PortalSession, lose: int) -> None:
        self.url, self._door, self.lose = session.url, session, lose
        self.keys: list[str] = []

    def request(self, method: str, path: str, **more: Any) -> Reply:
        reply = self._door.request(method, path, **more)
        if method == "GET":
            return reply
        self.keys.append((more.get("headers") or {}).get("Idempotency-Key", ""))
        if self.lose:
            self.lose -= 1
            raise PortalUnreachableError("the answer is lost")
        return reply


def test_a_booking_whose_answer_is_lost_is_not_made_twice(url: str, ledger: Ledger) -> None:
    pauses: list[float] = []
    door = Broken(open_session("ada"), lose=2)
    start = datetime.now(UTC) + HOUR
    times = {"start": show_time(start, ZoneInfo("UTC")), "end": show_time(start + HOUR, ZoneInfo("UTC"))}
    [made] = Client(door, sleep=pauses.append).create({"pool": "t4", **times})
    assert [booking["id"] for booking in Client(open_session("ada")).bookings()] == [made["id"]]
    assert len(door.keys) == 3
    assert len(set(door.keys)) == 1
    assert pauses == [*PAUSES[:2]]


def test_a_change_whose_answer_is_lost_is_not_made_again(url: str) -> None:
    made = create("ada")
    door = Broken(open_session("ada"), lose=1)
    with pytest.raises(PortalUnreachableError):
        Client(door, sleep=lambda seconds: None).act(made["id"], "cancel")
    assert len(door.keys) == 1


def test_long_lists_come_in_pages(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.client.client.PAGE", 2)
    made = [
        create(
            "root",
            start=f"+{10 * number}h",
            end="+1h",
            pool="v100",
        )
        for number in (1, 2)
    ]
    made += [create("ada", start=f"+{10 * number}h", end="+1h", pool="v100") for number in (3, 4, 5)]
    assert [row["ID"] for row in data("ada", "booking", "list")] == [row["id"] for row in made]


class Answering(PortalSession):
    """A portal that gives certain answers."""

    def __init__(self, *replies: Reply) -> None:
        self.url, self.replies = "https://gpus", list(replies)

    def request(self, method: str, path: str, **more: Any) -> Reply:
        return self.replies.pop(0)


def test_a_portal_that_starts_is_asked_again() -> None:
    pauses: list[float] = []
    busy = Reply(503, {"detail": "not yet"}, {"retry-after": "2"})
    door = Answering(busy, Reply(502), Reply(200, {"feeds": []}))
    assert Client(door, sleep=pauses.append).feeds() == []
    assert pauses == [2.0, PAUSES[1]]


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(302, None, {"location": "https://login"}), PortalError, "sends elsewhere, to https://login"),
        (Reply(401, {"detail": "no"}), PortalError, "does not accept the token"),
        (Reply(404, None, {}, "<html>"), PortalError, "is no portal"),
        (Reply(403, {"detail": "not yours"}), ApiRefusedError, "not yours"),
        (Reply(412, {"detail": "changed"}), ChangedError, "look at it again"),
        (Reply(422, {"detail": "wrong", "reasons": ["gpus: too few"]}), UsageError, "gpus: too few"),
        (Reply(429, {"detail": "slowly"}, {"retry-after": "30"}), PortalError, "in 30 seconds"),
        (Reply(500, None, {}, "oops"), PortalError, "oops"),
    ],
)
def test_answers_become_errors(reply: Reply, kind: type[GpuyardError], words: str) -> None:
    error = error_of(reply, "https://gpus")
    assert type(error) is kind
    assert words in str(error)


def test_rules_in_words() -> None:
    quiet = [{"start_minute": 1320, "end_minute": 360}]
    stated = {
        "pool": "v100",
        "no_show": None,
        "quiet_hours": quiet,
        "users": ["b", "a"],
        "longest": 5400,
        "origins": {"users": "site"},
    }
    assert [tuple(row.values()) for row in rule_rows(stated)] == [
        ("pool", "v100", ""),
        ("no_show", "never", "default"),
        ("quiet_hours", "22:00-06:00", "default"),
        ("users", "a, b", "site"),
        ("longest", "1 h 30 min", "default"),
    ]


def test_states_can_be_named() -> None:
    shown = invoke("ada", "booking", "list", "--help").stdout
    assert all(state.value in shown.replace("\n", "").replace(" ", "") for state in BookingState)


# Series, and holds of more than a GPU


def test_a_series_on_the_command_line(url: str) -> None:
    made = create("ada", "--repeat", "FREQ=DAILY;COUNT=3", start="+1d", end="+1h")
    ids = [row["ID"] for row in made]
    moved = data("ada", "booking", "edit", ids[1], "--end", "+2h", "--series")
    ends = [row["End"] for row in data("ada", "booking", "list")]
    assert moved["end"] in ends
    assert len({end[11:] for end in ends}) == 1  # all of them are an hour longer
    assert data("ada", "booking", "cancel", ids[0], "--series", "--reason", "holidays")["state"] == "cancelled"
    assert data("ada", "booking", "list") == []


def test_maintenance_on_the_command_line(url: str) -> None:
    weekly = ("--repeat", "FREQ=WEEKLY;COUNT=2", "--start", "+1h", "--end", "+2h", "--comment", "patches")
    held = data("root", "gpu", "hold", "--host", "gpu-2", "--pool", "t4", *weekly)
    assert len(held) == 4
    assert len(data("root", "booking", "audit", "--pool", "t4", "--user", "root")) == 4
    assert data("root", "booking", "audit", "--pool", "v100") == []
    assert data("root", "booking", "audit", "--to", "2020-01-01") == []
    invoke("root", "gpu", "release", "--series", held[0]["ID"])
    assert data("root", "gpu", "holds") == []
    assert isinstance(invoke("root", "gpu", "hold", "--end", "+1h", "--comment", "x").exception, UsageError)
    assert "there is no host gpu-9" in refused(
        "root", "gpu", "hold", "--host", "gpu-9", "--end", "+1h", "--comment", "x"
    )


# Waiting for a booking


def test_waiting_ends_when_a_server_can_be_started(url: str, ledger: Ledger) -> None:
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        ledger.upkeep.advance()
        if len(looks) == 3:
            ledger.upkeep.record_claims({}, ready=[made["id"]], usable={made["id"]: True})

    made = create("ada", start="now")
    assert made["usable_since"] in (None, "")
    row = Client(open_session("ada"), sleep=pause).wait_until_usable({**made, "usable_since": None})
    assert (row["state"], len(looks)) == ("active", 3)
    assert row["usable_since"]


def test_waiting_ends_when_a_server_from_before_uses_the_booking(url: str, ledger: Ledger) -> None:
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        ledger.upkeep.advance()
        (booking,) = ledger.find(Query())
        ledger.upkeep.record_claims({booking.id: booking.lanes})

    made = create("ada", start="now")
    row = Client(open_session("ada"), sleep=pause).wait_until_usable({**made, "usable_since": None})
    assert row["claimed"]
    assert not row["usable_since"]
    assert sum(looks) == USED_UP


def test_waiting_goes_on_while_a_server_from_before_may_use_only_a_part(url: str, ledger: Ledger) -> None:
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        ledger.upkeep.advance()
        (booking,) = ledger.find(Query())
        ready = [made["id"]] if len(looks) == 3 else []
        ledger.upkeep.record_claims({booking.id: booking.lanes}, ready=ready, usable=dict.fromkeys(ready, True))

    made = create("ada", start="now")
    row = Client(open_session("ada"), sleep=pause).wait_until_usable({**made, "usable_since": None})
    assert len(looks) == 3
    assert row["claimed"]
    assert row["usable_since"]


def test_what_waits_for_somebody_is_not_waited_for(url: str) -> None:
    requested = create("bob")
    with pytest.raises(BlockedError, match="is requested: there is nothing to wait for"):
        Client(open_session("bob")).wait_until_usable(requested)
    assert "is requested" in refused("bob", "booking", "create", "--pool", "v100", "--end", "+1h", "--wait")


# For others


def test_a_booking_for_a_colleague_and_for_all(url: str) -> None:
    alone = invoke("ada", "booking", "create", "--pool", "t4", "--end", "+1h", "--shared")
    assert "needs the role manager in project physics to book for a colleague or for the whole" in str(alone.exception)
    made = create("root", "--project", "physics", "--user", "ada", "--shared")
    assert (made["user"], made["project"], made["shared"], made["reason"]) == ("ada", "physics", True, "by root")
    for_bob = ("--project", "physics", "--user", "bob")
    result = invoke("root", "booking", "create", "--pool", "t4", "--end", "+1h", *for_bob)
    assert "No user bob has the role member in project physics" in str(result.exception)
