"""What GPUs were there for, on pages: charts and tables against a reckoning of their own, and who sees what."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.dashboard.waits import Wait, Waiter, waits
from gpuyard.model.booking import Rules
from gpuyard.usage.accounts import UseKind, use_of
from gpuyard.usage.reckoning import local_day
from gpuyard.usage.records import Interval, TrackState
from gpuyard.usage.store import HistoryStore
from gpuyard.usage.web.charts import HEIGHT, MOST_LINES, SLUGS, WIDTH, Column, scale_of, stack, strip
from gpuyard.usage.web.utilisation import coarse, together
from gpuyard.web.settings import OthersShown
from tests.support.health_portals import HealthPortal, fine, health_portal, site_gpus
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, ask
from tests.support.pages_world import PAST, furnish, live, lives
from tests.support.portals import ROOMY, BookingPortal, booking_portal
from tests.support.runner_portals import fill as fill_runners
from tests.support.runner_portals import runner_portal

TODAY = NOON.replace(hour=0)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> HealthPortal:
    """For those who only look."""
    return made(tmp_path_factory.mktemp("portal"))


def made(folder: Path) -> HealthPortal:
    portal = health_portal(folder)
    fine(portal)
    furnish(portal)
    live(portal)
    return portal


def known(start: datetime, pool: str = "") -> Counter[str]:
    """GPU-seconds of each use since then."""
    seconds_by_use: Counter[str] = Counter()
    for interval in lives():
        if pool in ("", interval.pool):
            seconds_by_use[use_of(interval.state, interval.tenure.kind).value] += interval.seconds(start, NOON)
    return +seconds_by_use


def told(portal: HealthPortal, query: str) -> list[dict[str, str]]:
    return csv_at(portal, f"utilisation?{query}")


def csv_at(portal: BookingPortal, path: str) -> list[dict[str, str]]:
    text = portal.browser(ADA).client.get(f"/v1/{path}&format=csv").text
    return list(csv.DictReader(io.StringIO(text)))


SINCE = {1: TODAY, 7: TODAY - 6 * DAY, 30: TODAY - 29 * DAY, 90: NOON - PAST * DAY, 365: NOON - PAST * DAY}


@pytest.mark.parametrize("days", SINCE)
def test_steps_add_up_to_all_gpu_time(portal: HealthPortal, days: int) -> None:
    rows = told(portal, f"days={days}")
    seconds_by_use = Counter({use.value: sum(int(row[f"seconds.{use.value}"] or 0) for row in rows) for use in UseKind})
    assert +seconds_by_use == known(SINCE[days])
    assert seconds_by_use.total() == len(site_gpus()) * (NOON - SINCE[days]).total_seconds()


@pytest.mark.parametrize(("days", "length"), [(1, HOUR), (7, 4 * HOUR), (30, DAY), (90, DAY), (365, 7 * DAY)])
def test_steps_are_whole_but_the_first_and_the_last(portal: HealthPortal, days: int, length: timedelta) -> None:
    rows = told(portal, f"days={days}&pool=t4")
    spans = [(datetime.fromisoformat(row["start"]), datetime.fromisoformat(row["end"])) for row in rows]
    assert {row["pool"] for row in rows} == {"t4"}
    assert spans[0][0] == SINCE[days]
    assert spans[-1][1] == NOON
    assert all(end == start for (_, end), (start, _) in pairwise(spans))
    assert {end - start for start, end in spans[1:-1]} <= {length}


def test_what_is_not_there_is_refused(portal: HealthPortal) -> None:
    client = portal.browser(ADA).client
    for path in ("/overview?days=5", "/overview?pool=x", "/v1/utilisation?days=0", "/v1/utilisation?x=1"):
        assert client.get(path).status_code == 422, path


def test_the_overview_has_charts_with_tables(portal: HealthPortal) -> None:
    page = portal.browser(ADA).client.get("/overview?days=30").text
    assert re.findall(r'<h3 id="use-(.*?)">', page) == ["All-pools", "t4", "v100"]
    pictures = page.count('class="chart"')
    assert pictures == page.count('role="img" aria-label="') == page.count("<summary>As a table") == 3
    used = sum(known(SINCE[30])[use] for use in ("booked use", "runner use", "unbooked use"))
    observed = known(SINCE[30]).total() - known(SINCE[30])["unseen"]
    assert f"{100 * used / observed:.0f} % of the observed time in use" in page
    assert "style=" not in page
    only = portal.browser(ADA).client.get("/overview?days=365&pool=t4").text
    assert re.findall(r'<h3 id="use-(.*?)">', only) == ["t4"]
    assert 'href="v1/utilisation?days=365&amp;pool=t4&amp;format=csv"' in only


@pytest.mark.parametrize("pool", ["", "t4", "v100"])
def test_the_week_is_the_mean_of_its_hours(portal: HealthPortal, pool: str) -> None:
    client = portal.browser(ADA).client
    page = client.get(f"/overview?pool={pool}").text
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', page.partition('class="heat"')[2], re.DOTALL)
    assert [day for day, _ in rows][:2] == ["Monday", "Tuesday"]
    cells = {(number, hour): text for number, (_, row) in enumerate(rows)
             for hour, text in enumerate(re.findall(r"<td.*?>(.*?)</td>", row))}  # fmt: skip
    assert f"The week of {pool or 'all pools'}: percent" in page
    table = {(row["weekday"], row["hour"]): row["share"] for row in csv_at(portal, f"utilisation/week?pool={pool}")}
    for weekday, hour in ((0, 17), (3, 2), (6, 23)):
        used = observed = 0
        for start in (TODAY + n * DAY + hour * HOUR for n in range(-28, 1)):
            if start.weekday() == weekday and start < NOON:
                seconds_by_use = Counter[str]()
                for interval in lives():
                    if pool in ("", interval.pool):
                        seconds_by_use[use_of(interval.state, interval.tenure.kind).value] += interval.seconds(
                            start, min(NOON, start + HOUR)
                        )
                observed += seconds_by_use.total() - seconds_by_use["unseen"]
                used += seconds_by_use["booked use"] + seconds_by_use["runner use"] + seconds_by_use["unbooked use"]
        assert cells[weekday, hour] == str(round(100 * used / observed))
        assert table[str(weekday), str(hour)] == str(round(used / observed, 4))


def test_who_waits(tmp_path: Path) -> None:
    portal = made(tmp_path)
    portal.ledger.create(ask(1, 4, gpus=2, pool="t4"), BOB, wait=True)
    portal.ledger.create(ask(1, 4, gpus=2, pool="t4", comment="me too"), ADA, wait=True)
    portal.clock.forward(hours=3)
    page = portal.browser(ROOT).client.get("/overview").text
    waits = page.partition('id="waits-title"')[2].partition("heat-title")[0]
    assert "2 of t4" in waits
    assert "on the waitlist, for up to 3 h" in waits


def test_the_same_is_read_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portal = made(tmp_path)
    history = portal.app.state.feed._sources.history
    calls: list[object] = []
    extent = history.extent

    def counted() -> object:
        calls.append(None)
        return extent()

    monkeypatch.setattr(history, "extent", counted)
    client = portal.browser(ADA).client
    client.get("/overview")
    once = len(calls)
    client.get("/overview?pool=t4")
    assert len(calls) == once > 0
    portal.clock.forward(minutes=1)
    client.get("/overview")
    assert len(calls) > once


def test_before_the_first_look_nothing_is_said(tmp_path: Path) -> None:
    client = health_portal(tmp_path).browser(ADA).client
    assert "Nothing is recorded yet" in client.get("/overview").text
    assert client.get("/v1/utilisation").json()["steps"] == []
    assert "Nothing is known of that time." in client.get("/gpu?name=gpu-1/0000:27:00.0").text


# A GPU's time


def timeline(portal: HealthPortal, name: str = "gpu-1/0000:27:00.0", days: int = 7, who: object = ROOT) -> str:
    page = portal.browser(who).client.get(f"/gpu?name={name}&days={days}").text  # type: ignore[arg-type]
    return page.partition('id="past-title"')[2].partition("record-title")[0]


def test_a_gpu_has_a_strip_and_a_table_of_its_time(portal: HealthPortal) -> None:
    text, gpu = timeline(portal), site_gpus()[0]
    mine = [interval for interval in lives() if (interval.host, interval.address) == (gpu.host, gpu.address)]
    recent = [interval for interval in mine if (interval.end or NOON) > NOON - 7 * DAY]
    assert text.count('<tr><th scope="row">') == len(recent)
    spent: Counter[str] = Counter()
    for interval in recent:
        spent[use_of(interval.state, interval.tenure.kind).value] += interval.seconds(NOON - 7 * DAY, NOON)
    for use, amount in spent.items():
        share = 100 * amount / spent.total()
        assert f"{use} {'under 1' if share < 1 else f'{share:.0f}'} %" in text
    assert "goes on" in text
    assert "owner/name" in timeline(portal, days=30)
    assert "There was more before" in timeline(portal, days=90)


@pytest.mark.parametrize("others", list(OthersShown))
def test_a_gpus_time_hides_others_as_the_site_says(tmp_path: Path, others: OthersShown) -> None:
    portal = health_portal(tmp_path, replace(ROOMY, others=others))
    fine(portal)
    live(portal)
    hers = timeline(portal, who=BOB)  # every job on it was ada's
    assert "<bdi>ada" not in hers
    assert "job-39" not in hers
    assert "somebody" in hers
    assert ("physics" in hers) == (others is not OthersShown.NOTHING)
    assert ("owner/name" in timeline(portal, days=30, who=BOB)) == (others is OthersShown.NAMES)
    assert "job-39" in timeline(portal, who=ADA)
    assert "job-39" not in timeline(portal, who=EVE)  # of ada's project
    portal.people.users_by_id[EVE.user_id].roles["p-physics"] = frozenset({"manager"})
    assert "job-39" in timeline(portal, who=EVE)
    assert "job-39" in timeline(portal, who=ROOT)


# Charts


BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z")
amounts = st.dictionaries(st.sampled_from(list(SLUGS)), st.integers(0, 8 * 3600), max_size=9)


@given(st.lists(amounts, min_size=1, max_size=12))
def test_areas_of_a_stack_are_its_gpu_time(found: list[dict[UseKind, int]]) -> None:
    columns = [Column(NOON + n * HOUR, NOON + (n + 1) * HOUR, seconds) for n, seconds in enumerate(found)]
    scale, top = scale_of(columns), max(column.gpus for column in columns)
    assert bool(scale.top) == bool(scale.marks) == bool(top)
    if top:
        marks = [float(mark) for mark in scale.marks]
        assert marks[0] == pytest.approx(scale.top)
        assert not marks[-1]
        assert 2 <= len(marks) <= MOST_LINES + 1
        assert len(re.findall(r"M0 [\d.]+h", scale.lines)) == len(marks) - 2
        assert top <= scale.top * (1 + 1e-6) <= max(2 * top, 1.1)
        top = scale.top
    layers = stack(columns, scale.top)
    assert bool(layers) == bool(top)
    for layer in layers:
        boxes = [tuple(map(float, box)) for box in BOX.findall(layer.path)]
        assert "".join(f"M{box[0]:.1f}" for box in boxes) == "".join(re.findall(r"M[\d.]+", layer.path))
        assert all(
            x + width <= WIDTH + 0.2 and y >= -0.2 and y + height <= HEIGHT + 0.2 for x, y, width, height in boxes
        )
        (use,) = [use for use, slug in SLUGS.items() if slug == layer.slug]
        area = sum(width * height for _, _, width, height in boxes)
        whole = sum(column.seconds.get(use, 0) for column in columns)
        expected = whole * WIDTH * HEIGHT / (top * 3600 * len(columns))
        assert area == pytest.approx(expected, abs=0.2 * sum(width + height for _, _, width, height in boxes))


@pytest.mark.parametrize(
    ("gpus", "marks"),
    [
        (1, "1 0"), (2, "2 1 0"), (6, "6 4 2 0"), (8, "8 6 4 2 0"), (17, "20 15 10 5 0"), (95, "100 80 60 40 20 0"),
        (0.35, "0.4 0.3 0.2 0.1 0"), (0.999999, "1 0.8 0.6 0.4 0.2 0"), (1000, "1000 800 600 400 200 0"),
    ],
)  # fmt: skip
def test_the_axis_of_a_chart_has_few_numbers_that_are_easily_read(gpus: float, marks: str) -> None:
    idle = Column(NOON, NOON + 1000 * HOUR, {UseKind.IDLE: round(gpus * 3_600_000)})
    assert scale_of([idle]).marks == marks.split()


def test_an_idle_pool_has_an_axis_like_any_other(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    rests = [Interval("gpu-1", f"0000:0{n}:00.0", "t4", TrackState.FREE, NOON - DAY, None) for n in range(3)]
    store = HistoryStore(portal.ledger.database)
    assert store.write(None, NOON - DAY, NOON - DAY, {}, [])
    assert store.write(NOON - DAY, NOON, NOON, {}, rests)
    page = portal.browser(ADA).client.get("/overview?days=1").text
    assert "<span>3</span><span>2</span><span>1</span><span>0</span>" in page
    assert 'class="chart-lines" d="M0 66.7h1000M0 133.3h1000M500.0 0v200"' in page


def test_a_strip_is_as_long_as_each_piece_of_it() -> None:
    pieces = [(NOON, NOON + 6 * HOUR, UseKind.IDLE), (NOON + 6 * HOUR, NOON + DAY, UseKind.BOOKED)]
    booked, idle = strip(pieces, NOON, NOON + DAY)
    assert (booked.share, idle.share) == ("75 %", "25 %")
    assert (booked.path, idle.path) == ("M250.0 0.0h750.0v200.0h-750.0z", "M0.0 0.0h250.0v200.0h-250.0z")


def test_coarse_steps_and_all_pools_lose_nothing() -> None:
    columns = [Column(NOON + n * HOUR, NOON + (n + 1) * HOUR, {UseKind.IDLE: n, UseKind.HELD: 1}) for n in range(10)]
    few = coarse(columns, 4)
    assert len(few) == 4
    assert sum(column.seconds[UseKind.IDLE] for column in few) == 45
    assert (few[0].start, few[-1].end) == (columns[0].start, columns[-1].end)
    both = together([columns, columns[:5]])
    assert [column.seconds[UseKind.HELD] for column in both] == [2] * 5 + [1] * 5


def test_jobs_that_wait_are_counted_where_there_are_runners(tmp_path: Path) -> None:
    portal = runner_portal(tmp_path)
    fill_runners(portal)
    page = portal.browser(ADA).client.get("/overview").text
    board = portal.overview.latest()
    assert board is not None
    assert f"<b>{len(board.queue)}</b> jobs of GitHub in the queue" in page


# How long they waited


def test_bookings_waited_until_they_were_offered_or_approved_something(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path, {BOB.project: Rules(approval=True)})
    ledger, clock = portal.ledger, portal.clock
    ledger.create(ask(1, 4), ADA)  # at once
    (big,) = ledger.create(ask(10, 2, gpus=2, pool="t4"), BOB)
    ledger.create(ask(1, 4, gpus=2, same_group=True), ADA)
    clock.forward(hours=3)
    ledger.approve(big.id, ROOT)
    clock.forward(hours=21)
    ledger.create(ask(40, 1), ADA)
    (gone,) = ledger.create(ask(50, 1), ADA)
    ledger.cancel(gone.id, ADA)
    rows = [(row["pool"], row["of"], row["start"][:10], row["count"], row["waited"], row["p50"], row["p90"])
            for row in csv_at(portal, "waits?days=7")]  # fmt: skip
    today, tomorrow = f"{NOON:%Y-%m-%d}", f"{NOON + DAY:%Y-%m-%d}"
    assert rows == [
        ("t4", "bookings", today, "1", "1", "10800.0", "10800.0"),
        ("v100", "bookings", today, "2", "0", "0.0", "0.0"),
        ("v100", "bookings", tomorrow, "1", "0", "0.0", "0.0"),
    ]
    page = portal.browser(ADA).client.get("/overview?pool=t4").text
    table = page.partition('id="waited-title"')[2].partition("</section>")[0]
    assert "3 h" in table
    assert "v100" not in table


def test_a_booking_of_the_waitlist_waited_until_its_offer(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    ledger, clock = portal.ledger, portal.clock
    (holder,) = ledger.create(ask(24, 4, gpus=2, pool="t4"), ADA)
    ledger.create(ask(24, 4, gpus=2, pool="t4"), BOB, wait=True)
    assert [row["count"] for row in csv_at(portal, "waits?days=1&pool=t4")] == ["1"]
    clock.forward(hours=2)
    ledger.cancel(holder.id, ADA)
    clock.forward(minutes=1)
    (row,) = csv_at(portal, "waits?days=1&pool=t4")
    assert (row["count"], row["waited"], row["p50"]) == ("1", "1", "7200.0")


SECONDS = st.floats(-5, 1e6)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(Waiter), st.integers(-5, 45), SECONDS)),
       st.sampled_from([1, 7]), st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Kiritimati"]))  # fmt: skip
def test_steps_of_waits_have_each_once_and_half_of_them_below_the_median(
    found: list[tuple[str, Waiter, int, float]], each: int, zone: str
) -> None:
    first = date(2026, 10, 10)  # the clocks of Berlin are changed within these days
    end = first + (28 if each == 7 else 30) * DAY
    begin = datetime(2026, 10, 10, 12, tzinfo=UTC)
    all_of = [Wait(pool, of, begin + day * DAY, seconds) for pool, of, day, seconds in found]
    summary = waits(all_of, first, end, each, zone)
    mine = [wait for wait in all_of if first <= local_day(wait.over, zone) < end]
    assert sum(step.count for step in summary.steps) == sum(total.count for total in summary.whole) == len(mine)
    for step in (*summary.steps, *summary.whole):
        durations = [max(0.0, wait.seconds) for wait in mine
                if (wait.pool, wait.of) == (step.pool, step.of) and step.start <= wait.over < step.end]  # fmt: skip
        assert step.count == len(durations)
        assert step.waited == sum(duration >= 1 for duration in durations)
        for value, share in ((step.p50, 0.5), (step.p90, 0.9)):
            assert value in durations
            assert sum(duration <= value for duration in durations) >= share * len(durations)
            assert sum(duration < value for duration in durations) < share * len(durations)


def test_jobs_waited_in_githubs_queue(tmp_path: Path) -> None:
    portal = runner_portal(tmp_path)
    fill_runners(portal)
    (row,) = csv_at(portal, "waits?days=30")  # of two of its jobs there are runners of ours
    assert (row["pool"], row["of"], row["count"], row["p50"], row["p90"]) == ("v100", "jobs", "2", "120.0", "120.0")
    assert "2 min" in portal.browser(ADA).client.get("/overview").text.partition('id="waited-title"')[2]
