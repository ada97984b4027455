"""Reports, intervals and budgets over the API, and the example of the how-to: whoever reads it reckons the same."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.bookings.records import Event
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Ask, Person
from gpuyard.model.errors import UsageError
from gpuyard.site.accounting_rules import BudgetRules
from gpuyard.usage.cli.usage_rows import (
    BUDGETS,
    INTERVALS,
    budget_row,
    days_of,
    interval_row,
    total_row,
    usage_columns,
    usage_row,
)
from gpuyard.usage.controllers.accounting import days_needed, site_clock
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.records import Interval, Slice, Tenure, TrackState
from gpuyard.usage.store import SumStore
from gpuyard.usage.web import usage_api
from gpuyard.web.settings import OthersShown
from tests.support.accounting import AccountingPortal, accounting_portal, accounting_site
from tests.support.ledgers import ADA, BOB, EVE, HOUR, NOON, ROOT

ROOT_FOLDER = Path(__file__).parents[3]
ROME = ZoneInfo("Europe/Rome")
TUESDAY = date(2026, 11, 24)
PRICES = {"t4": {"standard": 0.40, "night": 0.20}}
NIGHT = {"tariffs": {"night": {"hours": ["20:00-08:00"]}}}
SPAN = {"from": "2026-11-24", "to": "2026-11-25"}


def tables() -> list[list[list[str]]]:
    """The tables of the example, each a list of rows."""
    text = (ROOT_FOLDER / "docs/how-to/account-for-use.md").read_text().partition("### An example")[2]
    blocks: list[list[list[str]]] = [[]]
    for line in text.partition("## Give projects")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line):
            blocks[-1].append(cells)
        elif blocks[-1] and not line.startswith("|"):
            blocks.append([])
    return [table for table in blocks if table]


def at(text: str) -> datetime:
    hour, minute, second = map(int, text.split(":"))
    midnight = datetime(TUESDAY.year, TUESDAY.month, TUESDAY.day, tzinfo=ROME)
    return midnight.astimezone(UTC) + timedelta(hours=hour, minutes=minute, seconds=second)


def example() -> list[Interval]:
    intervals = []
    for gpu, start, end, state, kind, project, user, repository in tables()[0][1:]:
        whose = {"project_id": f"p-{project}", "project": project, "user_id": f"u-{user}", "user": user} if user else {}
        tenure = Tenure(kind=kind, repository=repository, booking="b1" if kind else "", **whose)
        host = {"A": "gpu-2", "B": "gpu-3"}[gpu]
        intervals.append(Interval(host, "0000:18:00.0", "t4", TrackState(state), at(start), at(end), tenure))
    return intervals


def portal(folder: Path, others: OthersShown = OthersShown.NAMES, **accounting: Any) -> AccountingPortal:
    site = accounting_site({**NIGHT, **accounting}, prices=PRICES)
    return accounting_portal(folder, site, at("00:00:00"), at("24:00:00"), example(), others)


def ask(harness: AccountingPortal, person: Person, path: str, **query: Any) -> Any:
    answer = harness.portal.program(person).get(path, params={**SPAN, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_example_of_the_how_to_is_true(tmp_path: Path) -> None:
    harness = portal(tmp_path)
    head, *lines, everything = tables()[1]
    report = ask(harness, ROOT, "/v1/usage", by="project")
    fields = [name.lower().replace(" ", "_") for name in head[1:]]

    def row(line: dict[str, Any]) -> list[str]:
        return [str(line[name]) for name in fields]

    assert [[line["project"] or "-", *row(line)] for line in report["lines"]] == lines
    assert ["All", *row(report["total"])] == everything
    assert report["total"]["used"] == sum(
        int(everything[1 + fields.index(f"{use}_use")]) for use in ("booked", "runner", "unbooked")
    )
    assert report["total"]["total"] == 2 * 24 * 3600
    assert (report["until"], report["timezone"], report["currency"]) == ("2026-11-24T23:00:00Z", "Europe/Rome", "EUR")


def test_with_booked_time_charged_the_example_costs_what_it_says(tmp_path: Path) -> None:
    report = ask(portal(tmp_path, charge="booked"), ROOT, "/v1/usage", by="project", project="physics")
    assert [line["cost"] for line in report["lines"]] == ["4.79"]


def test_intervals_add_up_to_the_report(tmp_path: Path) -> None:
    harness = portal(tmp_path)
    lines = ask(harness, ROOT, "/v1/usage/intervals")["lines"]
    assert sum(line["seconds"] for line in lines) == 2 * 24 * 3600
    by_use: dict[str, int] = {}
    for line in lines:
        by_use[line["use"].replace(" ", "_")] = by_use.get(line["use"].replace(" ", "_"), 0) + line["seconds"]
    total = ask(harness, ROOT, "/v1/usage")["total"]
    assert by_use == {name: total[name] for name in by_use}
    assert {line["repository"] for line in ask(harness, ROOT, "/v1/usage/intervals", project="ci")["lines"]} == {
        "acme/solver"
    }


def test_a_report_is_by_what_was_asked_for(tmp_path: Path) -> None:
    harness = portal(tmp_path)
    report = ask(harness, ROOT, "/v1/usage", by=["tariff", "project"], project="p-physics")
    assert [(line["tariff"], line["project"], line["used"]) for line in report["lines"]] == [
        ("night", "physics", 7200),
        ("standard", "physics", 35910),
    ]
    assert [line["pool"] for line in report["lines"]] == [None, None]
    (day,) = ask(harness, ROOT, "/v1/usage", by="day", host="gpu-3")["lines"]
    assert (day["day"], day["total"]) == ("2026-11-24", 86400)
    (month,) = ask(harness, ROOT, "/v1/usage", by="month", repository="acme/solver")["lines"]
    assert (month["month"], month["used"]) == ("2026-11", 20110)
    assert [line["pool"] for line in ask(harness, ROOT, "/v1/usage", by="pool")["lines"]] == ["t4"]


NEAR = {ADA: {"physics"}, BOB: {"biology"}, EVE: {"physics"}, ROOT: {"physics", "biology", "ci"}}


@pytest.mark.parametrize("others", OthersShown)
def test_everybody_s_lines_add_up_and_say_only_what_they_may_see(tmp_path: Path, others: OthersShown) -> None:
    harness = portal(tmp_path, others)
    everything = {("physics", "ada", ""), ("biology", "bob", ""), ("ci", "gpuyard", "acme/solver")}
    for person, near in NEAR.items():
        report = ask(harness, person, "/v1/usage", by=["project", "user", "repository"])
        assert report["total"]["total"] == 2 * 24 * 3600 == sum(line["total"] for line in report["lines"])
        theirs = {line for line in everything if person is ROOT or line[1] == person.user}
        visible = {line for line in everything if line[0] in near or others is OthersShown.NAMES}
        hidden = OthersShown.NOTHING is others and "another project"
        expected = theirs | {(project, "somebody", repository) for project, _, repository in visible - theirs}
        expected |= {(hidden or project, "somebody", "") for project, _, _ in everything - visible - theirs}
        assert whose(report["lines"]) == expected
        lines = ask(harness, person, "/v1/usage/intervals")["lines"]
        assert whose(lines) == expected
        secret = [line for line in lines if line["user"] == "somebody"]
        assert not any(line["booking"] or line["server"] or line["user_id"] for line in secret)
        assert others is OthersShown.NAMES or {line["project_id"] for line in secret} <= {
            f"p-{project}" for project in ("", *near)
        } | {""}
        if hidden and "ci" not in near:
            assert ask(harness, person, "/v1/usage", project="ci")["lines"] == []  # nor does a search tell


@pytest.mark.parametrize("others", [OthersShown.NAMES, OthersShown.PROJECTS])
def test_projects_of_the_same_name_have_accounts_of_their_own(tmp_path: Path, others: OthersShown) -> None:
    """One was deleted and made anew, perhaps for others: a bill must not be of both."""
    ada = Tenure(project_id="p-physics", project="physics", user_id="u-ada", user="ada")
    other = Tenure(project_id="p-else", project="physics", user_id="u-else", user="ada")
    intervals = [
        Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, at("00:00:00"), at("10:00:00"), ada),
        Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, at("10:00:00"), at("24:00:00"), other),
    ]
    site = accounting_site(NIGHT, prices=PRICES)
    harness = accounting_portal(tmp_path, site, at("00:00:00"), at("24:00:00"), intervals, others)
    hours = {line["project"]: line["used"] // 3600 for line in ask(harness, ROOT, "/v1/usage")["lines"]}
    assert hours == {"physics (p-physics)": 10, "physics (p-else)": 14}
    visible_hours = {line["project"]: line["used"] // 3600 for line in ask(harness, ADA, "/v1/usage")["lines"]}
    assert visible_hours == (hours if others is OthersShown.NAMES else {"physics (p-physics)": 10, "physics": 14})
    by_user = {line["user"] for line in ask(harness, ROOT, "/v1/usage", by="user")["lines"]}
    assert by_user == {"ada (u-ada)", "ada (u-else)"}
    (mine,) = ask(harness, ADA, "/v1/usage", project="p-physics")["lines"]
    assert (mine["project"], mine["used"]) == ("physics", 10 * 3600)


def whose(lines: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(line["project"], line["user"], line["repository"]) for line in lines} - {("", "", "")}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"by": "colour"}, "by"),
    ({"by": ["day", "day"]}, "each once"),
    ({"to": "2026-11-24"}, "is not after"),
    ({"from": "2001-01-01"}, "more than 3700 days"),
    ({"from": "yesterday"}, "from"),
    ({"from": "9999-12-05", "to": "9999-12-31"}, "days from 2000-01-01 to 2200-01-01"),
    ({"from": "0001-01-01", "to": "0001-01-02"}, "days from 2000-01-01 to 2200-01-01"),
    ({"colour": "red"}, "colour"),
    ({"project": "a" * 300}, "project"),
]


def test_what_cannot_be_asked_is_said(tmp_path: Path) -> None:
    program = portal(tmp_path).portal.program(ROOT)
    for query, message in WRONG:
        for path in ("/v1/usage", "/v1/usage/intervals") if "by" not in query else ("/v1/usage",):
            answer = program.get(path, params={**SPAN, **query})
            assert answer.status_code == 422
            assert message.replace("3700", "31" if "intervals" in path else "3700") in answer.text


def test_a_report_that_would_be_of_millions_of_sums_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = portal(tmp_path)
    assert (
        sum_up(harness.store, "Europe/Rome", site_clock(harness.site).parts, 7) == 0
    )  # Nova may still have something to add
    assert harness.store.write(at("24:00:00"), at("24:30:00"), at("24:30:00"), {}, [])
    assert sum_up(harness.store, "Europe/Rome", site_clock(harness.site).parts, 7) == 1
    monkeypatch.setattr(usage_api, "MOST_SUMS", 5)
    query = {**SPAN, "by": ["host", "user", "day"]}
    answer = harness.portal.program(ROOT).get("/v1/usage", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_rows")
    monkeypatch.setattr(usage_api, "MOST_SUMS", 500)
    assert ask(harness, ROOT, "/v1/usage", by=["host", "user", "day"])["total"]["total"] == 2 * 24 * 3600


def test_intervals_are_of_a_month_at_most(tmp_path: Path) -> None:
    answer = portal(tmp_path).portal.program(ROOT).get("/v1/usage/intervals", params={"from": "2026-01-01"})
    assert answer.status_code == 422
    assert "more than 31 days" in answer.text


def test_csv_has_no_formulas(tmp_path: Path) -> None:
    evil = Tenure(project_id="p-x", project="=HYPERLINK(1)", user_id="u-x", user="+cmd|' /C calc'!A0")
    intervals = [Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, at("00:00:00"), at("24:00:00"), evil)]
    harness = accounting_portal(tmp_path, accounting_site(NIGHT), at("00:00:00"), at("24:00:00"), intervals)
    for path in ("/v1/usage", "/v1/usage/intervals"):
        answer = harness.portal.program(ROOT).get(path, params={**SPAN, "format": "csv"})
        assert answer.headers["content-type"].startswith("text/csv")
        (row,) = csv.DictReader(io.StringIO(answer.text))
        assert row["project"] == "'=HYPERLINK(1)"


def test_a_site_without_a_look_has_an_empty_report(tmp_path: Path) -> None:
    harness = portal(tmp_path)
    report = ask(harness, ROOT, "/v1/usage", **{"from": "2026-12-01", "to": "2026-12-02"})
    assert (report["lines"], report["total"]["total"]) == ([], 0)


# Budgets

OWN = {"projects": {"physics": {"budget": {"gpu_hours": 20}}}}


def budgets(folder: Path, **accounting: Any) -> AccountingPortal:
    site = accounting_site({**NIGHT, **accounting}, prices=PRICES, **OWN)
    return accounting_portal(folder, site, at("00:00:00"), at("24:00:00"), example())


def test_budgets_are_shown_to_their_projects(tmp_path: Path) -> None:
    harness = budgets(tmp_path, budget={"gpu_hours": 5})

    def shown(person: Person) -> dict[str, tuple[int, int, float]]:
        lines = harness.portal.program(person).get("/v1/budgets").json()["lines"]
        return {line["project"]: (line["limit"], line["used"], line["percent"]) for line in lines}

    physics, biology = (72000, 43110, 59.9), (18000, 25200, 140.0)
    assert shown(ADA)["physics"] == physics
    assert shown(EVE) == {"physics": physics}
    assert shown(BOB) == {"biology": biology}
    assert shown(ROOT) == {"physics": physics, "biology": biology, "ci": (18000, 20110, 111.7)}


def test_a_booking_beyond_the_budget_is_refused_with_the_numbers(tmp_path: Path) -> None:
    harness = budgets(tmp_path)
    start = harness.portal.clock.now + HOUR
    document = {"pool": "v100", "start": start.isoformat(), "end": (start + 9 * HOUR).isoformat()}
    answer = harness.portal.program(ADA).post("/v1/bookings", json=document)
    assert answer.status_code == 409
    assert answer.json()["codes"] == ["budget"]
    assert (
        "it takes 9.0 GPU-hours of the budget of project physics until Mon 2026-11-30 23:00 UTC, and 8.0 of 20.0 are "
        "left: 12.0 are used, 0.0 are booked" in answer.text
    )
    document["end"] = (start + 8 * HOUR).isoformat()
    assert harness.portal.program(ADA).post("/v1/bookings", json=document).status_code == 201
    (line,) = [
        row for row in harness.portal.program(ADA).get("/v1/budgets").json()["lines"] if row["project"] == "physics"
    ]
    assert (line["booked"], line["left"]) == (8 * 3600, 72000 - 43110 - 28800)


def told(harness: AccountingPortal, kind: str) -> list[Event]:
    store: Store = harness.portal.ledger._store
    events = [delivery.event for delivery in store.take_undelivered("test", harness.portal.clock.now)]
    for event in events:
        store.mark_delivered("test", event.id, event.at)
    return [event for event in events if event.kind == kind]


def test_a_threshold_is_told_once_a_period_also_after_a_crash(tmp_path: Path) -> None:
    harness = budgets(tmp_path, warn_at=[50, 55, 90], tell=["ops@example.org"])
    harness.portal.ledger.create(_soon(harness, 1), ADA)
    told(harness, "")
    harness.service.run()
    harness.restarted().run()
    first = told(harness, "budget.near")
    assert {event.email for event in first} == {ADA.email, "ops@example.org"}
    assert {event.details["percent"] for event in first} == {"55"}
    assert (
        "project physics has used 12.0 of 20.0 GPU-hours until Mon 2026-11-30 23:00 UTC (60%)"
        in first[0].details["text"]
    )
    store, until = harness.store, at("24:00:00")
    more = Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, until, None, example()[1].tenure)
    assert store.write(until, until + 8 * HOUR, until, {}, [more])
    harness.portal.clock.now = until + 8 * HOUR
    harness.service.run()
    harness.service.run()
    assert [event.details["percent"] for event in told(harness, "budget.near")] == ["90", "90"]
    assert [entry.action for entry in harness.portal.ledger.audit()].count("budget.warned") == 4


def test_who_was_told_is_not_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a transaction for each person and threshold, in which nobody can book."""
    harness = budgets(tmp_path, warn_at=[50], tell=["ops@example.org"])
    told(harness, "")
    harness.service.run()
    assert told(harness, "budget.near")
    noted: list[str] = []
    monkeypatch.setattr(
        harness.portal.ledger.upkeep, "note_once", lambda pool, subject, what, *more: noted.append(what)
    )
    harness.service.run()
    assert noted == []
    harness.restarted().run()
    assert noted


def _soon(harness: AccountingPortal, hours: float) -> Ask:
    start = harness.portal.clock.now + HOUR
    return Ask("v100", start, start + hours * HOUR)


def test_programs_are_told_where_nobody_has_an_address(tmp_path: Path) -> None:
    harness = budgets(tmp_path, warn_at=[50])
    told(harness, "")
    harness.service.run()
    (event,) = told(harness, "budget.near")
    assert (event.email, event.details["project"]) == ("", "physics")


def test_days_are_read_as_far_back_as_a_budget_needs() -> None:
    today = date(2026, 11, 24)

    def needed(**rules: Any) -> date | None:
        return days_needed(BudgetRules.model_validate({"gpu_hours": 1, **rules}), today)

    assert needed() == needed(carry_over=5) == date(2026, 11, 1)
    assert needed(every="week") == date(2026, 11, 23)
    assert needed(every="week", carry_over=5) is None
    assert needed(carry_over=5, since="2026-02-15") is None
    assert needed(half_life="1 day") == today - timedelta(days=41)


# Rows of the command line


def test_rows_are_in_hours_and_end_with_all(tmp_path: Path) -> None:
    report = ask(portal(tmp_path), ROOT, "/v1/usage", by=["project", "pool"])
    rows = [usage_row(line, ["project", "pool"]) for line in report["lines"]]
    assert rows[0]["Project"] == ""
    assert (rows[3]["Project"], rows[3]["Booked use"], rows[3]["Cost"]) == ("physics", "11.97", "4.39")
    last = total_row(report["total"], ["project", "pool"])
    assert (last["Project"], last["Pool"], last["Total"]) == ("All", "", "48.00")
    assert all(tuple(row) == usage_columns(["project", "pool"]) for row in [*rows, last])


def test_rows_of_intervals_and_budgets_have_their_columns(tmp_path: Path) -> None:
    harness = budgets(tmp_path)
    row = interval_row(ask(harness, ROOT, "/v1/usage/intervals")["lines"][0], ROME)
    assert set(row) == set(INTERVALS)
    (line,) = harness.portal.program(ROOT).get("/v1/budgets").json()["lines"]
    shown = budget_row(line, ROME)
    assert set(shown) == set(BUDGETS)
    assert (shown["Limit"], shown["Used"], shown["Until"][:10]) == ("20.00", "11.97", "2026-12-01")


def test_days_are_a_month_or_from_and_to() -> None:
    assert days_of("2026-12", "", "") == {"from": "2026-12-01", "to": "2027-01-01"}
    assert days_of("", "2026-11-03", "") == {"from": "2026-11-03"}
    for wrong in (("2026-13", "", ""), ("x", "", ""), ("2026-12", "2026-11-03", ""), ("", "yesterday", "")):
        with pytest.raises(UsageError, match="--"):
            days_of(*wrong)
    assert NOON.tzinfo is UTC


# What is kept of months and days


def rolled(folder: Path, **accounting: Any) -> AccountingPortal:
    """Physics used two GPU-hours a day, from October on; today's are not summed up yet."""
    first, until = datetime(2026, 9, 30, 22, tzinfo=UTC), NOON
    site = accounting_site({"tell": ["ops@example.org"], **accounting}, prices=PRICES)
    whose = {"project_id": "p-physics", "project": "physics", "user_id": "u-ada", "user": "ada"}
    today = Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, until - HOUR, None, Tenure(**whose))
    harness = accounting_portal(folder, site, first, until, [today])
    sums, day, last = SumStore(harness.store.database), date(2026, 10, 1), None
    while day < date(2026, 11, 23):
        used = Slice("", "t4", "gpu-2", **whose, state="claimed")
        idle = Slice("", "t4", "gpu-2", state="free")
        assert sums.put_day(last, day, {used: 2 * 3600, idle: 22 * 3600}, [])
        last, day = day, day + timedelta(days=1)
    harness.service = harness.restarted()
    return harness


@pytest.mark.parametrize(
    ("budget", "limit", "used"),
    [
        ({"gpu_hours": 100}, 100, 45),
        ({"gpu_hours": 100, "carry_over": 50}, 138, 45),
        ({"gpu_hours": 1000, "every": "quarter", "carry_over": 50}, 1000, 107),
        ({"gpu_hours": 10, "every": "week", "carry_over": 7}, 10, 1),
        ({"gpu_hours": 20, "every": "week", "carry_over": 7}, 27, 1),
        ({"gpu_hours": 100, "carry_over": 50, "since": "2026-10-20"}, 150, 45),
    ],
)
def test_budgets_are_read_from_months_days_and_today(
    tmp_path: Path, budget: dict[str, Any], limit: int, used: int
) -> None:
    status = rolled(tmp_path, budget=budget).service.status("p-physics", "physics")
    assert status is not None
    assert (status.limit / 3600, status.used / 3600) == (limit, used)


def test_what_was_used_long_ago_counts_less(tmp_path: Path) -> None:
    status = rolled(tmp_path, budget={"gpu_hours": 100, "half_life": "1 day"}).service.status("p-physics", "physics")
    assert status is not None
    # What is used at 2 GPU-hours a day counts for 2 / ln 2 at midnight; at 13:00 in Rome 0.69 of that is left. That of
    # today is spread over the 13 hours, and so counts for 0.83.
    assert status.used / 3600 == pytest.approx(2 / 0.6931 * 0.687 + 0.834, abs=0.01)


def test_a_month_is_told_once_it_is_summed_up(tmp_path: Path) -> None:
    harness = rolled(tmp_path)
    told(harness, "")
    harness.service.run()
    harness.restarted().run()
    (event,) = told(harness, "usage.month")
    assert (event.email, event.details["month"]) == ("ops@example.org", "2026-10")
    assert event.details["text"] == ("62.0 of 744.0 GPU-hours were used (8%); physics: 62.0 GPU-hours, 24.80 EUR")
    harness.portal.clock.now = datetime(2026, 12, 2, tzinfo=UTC)
    harness.service.run()
    assert told(harness, "usage.month") == []  # nobody has summed up November yet
