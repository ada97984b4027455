"""What the store of history promises, whichever database it is in: on SQLite (tests/unit/usage/test_history_store.py)
and on PostgreSQL (tests/integration/test_store_postgresql.py)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta

from sqlalchemy import func, select

from gpuyard.bookings.records import AuditEntry
from gpuyard.bookings.store import Store
from gpuyard.usage.reckoning import DAY
from gpuyard.usage.records import NOBODY, HourSum, Interval, Slice, Sum, Tenure, TrackState
from gpuyard.usage.store import HistoryStore, SumStore, Which
from gpuyard.usage.store.repair import carry_out, plan_repair
from gpuyard.usage.store.schema import TENURES
from gpuyard.usage.store.store import GpuKey
from tests.contract.store import at

ADA = Tenure(
    "odd", "b1", "booking", "s1", "train", "u", "ada", "p", "alpha", "gpu.small", "owner/name"
)  # fmt: skip
KEY: GpuKey = ("gpu-1", "0000:01:00.0", "t4")
USED = Interval(*KEY, TrackState.CLAIMED, at(0), None, ADA, exact_start=True)
FREE = Interval(*KEY, TrackState.FREE, at(2), None)
OTHER = Interval("gpu-0", "0000:01:00.0", "v100", TrackState.HELD, at(0), None, Tenure("dust"))
SHORT = Interval("gpu-1", "", "t4", TrackState.CLAIMED, at(1), at(1) + timedelta(seconds=7), ADA, True, True)


def what_is_written_is_read(store: HistoryStore) -> None:
    assert store.seen() is None
    assert store.write(None, at(0), at(0), {}, [USED, OTHER])
    assert store.open() == [OTHER, USED]
    assert store.write(at(0), at(2), at(1), {KEY: (at(2), True)}, [FREE, SHORT])
    extent = store.seen()
    assert extent is not None
    assert (extent.first, extent.until, extent.settled, extent.rolled) == (at(0), at(2), at(1), None)
    ended = replace(USED, end=at(2), exact_end=True)
    assert store.open() == [OTHER, FREE]
    assert store.intervals(at(0), at(9)) == [OTHER, ended, SHORT, FREE]


def intervals_are_narrowed(store: HistoryStore) -> None:
    what_is_written_is_read(store)
    ended = replace(USED, end=at(2), exact_end=True)
    for which, expected in (
        (Which(host="gpu-1", address=KEY[1]), [ended, FREE]),
        (Which(pool="v100"), [OTHER]),
        (Which(server="s1"), [ended, SHORT]),
        (Which(user_id="u", project_id="p", booking="b1", repository="owner/name"), [ended, SHORT]),
        (Which(states=[TrackState.FREE, TrackState.HELD]), [OTHER, FREE]),
        (Which(project_id="x"), []),
    ):
        assert store.intervals(at(0), at(9), which) == expected
    assert store.intervals(at(0), at(9), limit=1) == [FREE]
    assert store.intervals(at(2), at(9)) == [OTHER, FREE], "an end is no part of it"
    assert store.intervals(at(-1), at(0)) == []


def of_many_looks_from_one_is_one_written(store: HistoryStore) -> None:
    assert store.write(None, at(0), at(0), {}, [USED])
    assert not store.write(None, at(0), at(0), {}, [USED])
    with ThreadPoolExecutor(4) as pool:
        tries = pool.map(lambda _: store.write(at(0), at(2), at(2), {KEY: (at(2), False)}, [FREE]), range(6))
        assert sorted(tries) == [False] * 5 + [True]
    assert store.open() == [FREE]
    assert len(store.intervals(at(0), at(9))) == 2


def what_ends_as_it_begins_was_never(store: HistoryStore) -> None:
    store.write(None, at(0), at(0), {}, [USED])
    store.write(at(0), at(2), at(2), {KEY: (at(0), True)}, [replace(FREE, start=at(0))])
    assert store.intervals(at(0), at(9)) == [replace(FREE, start=at(0))]


def long_and_odd_words_are_kept_as_far_as_they_can_be(store: HistoryStore) -> None:
    store.write(None, at(0), at(0), {}, [replace(USED, tenure=Tenure("\x00" + "x" * 1000))])
    (interval,) = store.open()
    assert interval.tenure.reason == "\ufffd" + "x" * 499


def many_gpus_are_written_at_once(store: HistoryStore) -> None:
    many = [replace(FREE, host=f"h{n:04}", tenure=replace(NOBODY, reason=f"r{n}")) for n in range(1200)]
    assert store.write(None, at(2), at(2), {}, many)
    assert store.open() == many


def old_intervals_are_forgotten(store: HistoryStore) -> None:
    what_is_written_is_read(store)
    assert store.forget(at(2)) == 1
    assert store.forget(at(2)) == 0
    assert store.forget(at(2) + timedelta(seconds=1)) == 1
    assert store.intervals(at(0), at(9)) == [OTHER, FREE]
    assert _tenures(store) == 2, "what nothing is about any more is gone, too"
    assert store.write(at(2), at(3), at(3), {}, [SHORT]), "what it was about is made again"


def _tenures(store: HistoryStore) -> int:
    with store.database.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(TENURES)).scalar_one())


USE = Slice("night", "t4", "gpu-1", "p", "alpha", "u", "ada", "owner/name", "claimed", "booking")
IDLE = Slice(pool="t4", host="gpu-1", state="free")


def _fill(store: HistoryStore) -> SumStore:
    """From 2026-11-29 to 2027-02-02."""
    store.write(None, at(0), at(0), {}, [])
    sums, last = SumStore(store.database), None
    for n in range(66):
        day = date(2026, 11, 29) + timedelta(days=n)
        hours = [HourSum(at(n), "t4", "free", "", n)]
        assert sums.put_day(last, day, {USE: 10, replace(USE, host="gpu-2"): 1, IDLE: n + 1}, hours)
        last = day
    return sums


def sums_are_of_days_and_months(store: HistoryStore) -> None:
    sums = _fill(store)
    extent = store.seen()
    assert extent is not None
    assert extent.rolled == date(2027, 2, 2)
    first, end = date(2026, 11, 1), date(2027, 3, 1)
    assert sums.sums(first, end, ["state"]) == [
        Sum(None, Slice(state="claimed"), 66 * 11), Sum(None, Slice(state="free"), 66 * 67 // 2),
    ]  # fmt: skip
    for low, high in ((first, end), (date(2026, 11, 30), date(2027, 2, 1)), (date(2026, 12, 5), date(2026, 12, 9))):
        days = sums.sums(low, high, ["pool", "user"], "day", {"state": "claimed"})
        assert {day.slice for day in days} == {Slice(pool="t4", user="ada")}
        assert {day.seconds for day in days} == {11}
        (whole,) = sums.sums(low, high, ["pool"], where={"state": "claimed"})
        assert whole.seconds == 11 * len(days)
        assert (
            sum(use_sum.seconds for use_sum in sums.sums(low, high, (), "month", {"state": "claimed"})) == whole.seconds
        )
    months = sums.sums(first, end, (), "month", {"host": "gpu-2"})
    assert [(month.period, month.seconds) for month in months] == [
        (date(2026, 11, 1), 2), (date(2026, 12, 1), 31), (date(2027, 1, 1), 31), (date(2027, 2, 1), 2),
    ]  # fmt: skip
    assert [use_sum.slice for use_sum in sums.sums(first, end) if use_sum.slice.host == "gpu-2"] == [
        replace(USE, host="gpu-2")
    ]
    assert sums.sums(end, end) == []


def a_day_is_summed_once(store: HistoryStore) -> None:
    """And again by whoever was the first, after a restore of what only it had written: the same, not twice."""
    store.write(None, at(0), at(0), {}, [])
    sums, day = SumStore(store.database), date(2026, 12, 1)
    with ThreadPoolExecutor(4) as pool:
        tries = pool.map(lambda _: sums.put_day(None, day, {USE: 10}, [HourSum(at(0), "t4", "free", "", 5)]), range(6))
        assert sorted(tries) == [False] * 5 + [True]
    assert sums.put_day(day, day, {USE: 12}, [HourSum(at(0), "t4", "free", "", 6)])
    assert [use_sum.seconds for use_sum in sums.sums(day, day + timedelta(days=1), ())] == [12]
    month = date(2026, 12, 1), date(2027, 1, 1)
    assert [use_sum.seconds for use_sum in sums.sums(*month, ())] == [12]  # as months are kept without their hosts ...
    assert [use_sum.seconds for use_sum in sums.sums(*month, ("host",))] == [12]  # ... and with them
    assert sums.put_day(day, day + timedelta(days=1), {USE: 5, replace(USE, host="other"): 6}, [])
    assert [use_sum.seconds for use_sum in sums.sums(*month, ())] == [23]
    assert [use_sum.seconds for use_sum in sums.sums(*month, ("host",))] == [17, 6]
    assert [hour.seconds for hour in sums.hours(at(-99), at(99))] == [6]
    assert sums.hours(at(1), at(99)) == sums.hours(at(-99), at(99), "v100") == []


def what_a_wrong_clock_wrote_is_taken_back(store: HistoryStore) -> None:
    """A look of a year ahead, and the sums of a week: history goes on from the last honest look."""
    ledger = Store.open(store.database.url.render_as_string(hide_password=False))
    year = 365 * 24
    unseen, then = replace(FREE, state=TrackState.UNSEEN, start=at(9), end=at(year)), replace(FREE, start=at(year))
    unknown = replace(SHORT, start=at(1), end=at(year))
    held = replace(OTHER, end=at(9)), replace(OTHER, state=TrackState.UNSEEN, start=at(9), end=at(year))
    store.write(None, at(-24), at(-24), {}, [USED, OTHER])
    sums = SumStore(store.database)
    day, ends = at(9).date(), {KEY: (at(2), True), _key(OTHER): (at(9), False)}
    assert sums.put_day(None, day - DAY, {USE: 7, IDLE: 3}, [HourSum(at(-24), "t4", "free", "", 3)])
    assert store.write(at(-24), at(9), at(9), {}, [])
    assert plan_repair(store, "UTC", at(20)) is None
    adds = [replace(FREE, end=at(9)), unseen, then, held[1], replace(OTHER, start=at(year)), unknown]
    assert store.write(at(9), at(year), at(year), ends, adds)
    for n in range(40):
        assert sums.put_day(day + (n - 1) * DAY, day + n * DAY, {USE: 9}, [HourSum(at(n * 24), "t4", "free", "", 9)])
    plan = plan_repair(store, "UTC", at(20))
    assert plan is not None
    assert (plan.cut, plan.gone, plan.shortened, len(plan.days)) == (at(9), 2, 3, 40)
    entry = AuditEntry(at(20), "root", "history.repair", "history", text="clock")
    assert carry_out(store, "UTC", plan, entry)
    assert not carry_out(store, "UTC", plan, entry)
    extent = store.seen()
    assert extent is not None
    assert (extent.first, extent.until, extent.settled, extent.rolled) == (at(-24), at(9), at(-12), day - DAY)
    open = [replace(held[1], end=None), replace(unseen, end=None)]
    assert store.open() == open
    cut = replace(unknown, end=at(9), exact_end=False)
    used = replace(USED, end=at(2), exact_end=True)
    assert store.intervals(at(0), at(2 * year)) == [held[0], used, cut, replace(FREE, end=at(9)), *open]
    for by in ((), ("host",)):
        use_sums = sums.sums(date(2026, 1, 1), date(2028, 1, 1), by, "month")
        assert sum(use_sum.seconds for use_sum in use_sums) == 10
    assert [hour.seconds for hour in sums.hours(at(-2 * year), at(2 * year))] == [3]
    assert [(audit_entry.action, audit_entry.text) for audit_entry in ledger.audit()] == [("history.repair", "clock")]
    ledger.close()


def what_was_never_of_now_is_taken_back_wholly(store: HistoryStore) -> None:
    Store.open(store.database.url.render_as_string(hide_password=False)).close()
    store.write(None, at(500), at(500), {}, [replace(USED, start=at(500)), replace(SHORT, start=at(490), end=at(495))])
    plan = plan_repair(store, "UTC", at(20))
    assert plan is not None
    assert (plan.cut, plan.gone) == (None, 2)
    assert carry_out(store, "UTC", plan, AuditEntry(at(20), "root", "history.repair", "history"))
    assert store.seen() is None
    assert store.intervals(at(0), at(999)) == []


def _key(interval: Interval) -> GpuKey:
    return interval.host, interval.address, interval.pool


RULES: tuple[Callable[[HistoryStore], None], ...] = (
    what_is_written_is_read,
    intervals_are_narrowed,
    of_many_looks_from_one_is_one_written,
    what_ends_as_it_begins_was_never,
    long_and_odd_words_are_kept_as_far_as_they_can_be,
    many_gpus_are_written_at_once,
    old_intervals_are_forgotten,
    sums_are_of_days_and_months,
    a_day_is_summed_once,
    what_a_wrong_clock_wrote_is_taken_back,
    what_was_never_of_now_is_taken_back_wholly,
)
