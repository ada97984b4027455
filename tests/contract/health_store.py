"""What the store of health promises, whichever database it is in: on SQLite (tests/unit/health/test_health_store.py)
and on PostgreSQL (tests/integration/test_store_postgresql.py)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpuyard.health.baseline import Baseline
from gpuyard.health.maintenance import Maintenance, MaintenanceState
from gpuyard.health.records import (
    GpuHealth,
    HealthEvent,
    HealthState,
    HealthToken,
    HostContact,
    Observation,
    Software,
    Trial,
)
from gpuyard.health.store import HealthStore, MaintenanceStore
from gpuyard.health.tokens import digest_of, new_token
from gpuyard.model.signals import Source
from tests.contract.store import at

S, M = HealthState, MaintenanceState
GPU = GpuHealth(
    "gpu-1", "0000:01:00.0", "t4", S.SUSPECT, at(0), "no lanes", "link-width", "ada", "GPU-1234", at(1), 3, True,
    "order", 2**40, at(-1), Software("6.1", "bios", "8.2", "570.1"), "grace",
    {"link-width": 8, "link-speed": 2.5}, Baseline(at(-1), "ada", "13230220", {"link-width": 8, "ecc-corrected": 3}),
    Trial(S.QUARANTINED, "no-answer", "it would be bad", at(-1), at(1), (at(-2), at(-1))),
)  # fmt: skip
SMALL = GpuHealth("gpu-0", "0000:01:00.0", "t4", S.FINE, at(0))
EVENT = HealthEvent(
    "gpu-1", "0000:01:00.0", "GPU-1234", at(0), S.FINE, S.SUSPECT, "no lanes", "link-width", "x1", "ada", Source.HOST
)
MAINTENANCE = Maintenance(
    "m1", "gpu-1", at(0), at(1), "kernel", "ada", M.CHECKING, at(0), at(0), at(0), at(1), "grace",
    Software("6.1", "bios", "8.2"), ("it is silent", "no lanes"),
)  # fmt: skip
SEEN = Observation("gpu-1", "0000:01:00.0", "link-width", at(0), "x1 of x16")


def what_is_written_is_read(store: HealthStore) -> None:
    assert store.put(GPU, EVENT)
    assert store.put(SMALL)
    assert store.gpus() == [replace(SMALL, version=1), replace(GPU, version=1)]
    assert store.gpu("gpu-1", GPU.address) == replace(GPU, version=1)
    assert store.gpu("gpu-1", "none") is None
    assert [gpu.host for gpu in store.gpus([S.SUSPECT, S.IN_USE])] == ["gpu-1"]
    (event,) = store.events()
    assert replace(event, id=0) == EVENT


def a_write_of_what_is_stale_is_refused(store: HealthStore) -> None:
    """With all that belongs to it."""
    store.put(SMALL)
    store.observe([SEEN])
    (record,), (observation,) = store.gpus(), store.open_observations()
    assert store.put(replace(record, state=S.IN_USE))
    assert not store.put(replace(record, state=S.QUARANTINED), EVENT, settles=[observation.id])
    assert not store.put(SMALL, EVENT)
    assert not store.forget(record, EVENT)
    assert [gpu.state for gpu in store.gpus()] == [S.IN_USE]
    assert store.events() == []
    assert store.open_observations() == [observation]


def of_many_who_write_at_once_one_does(store: HealthStore) -> None:
    store.put(SMALL)
    (record,) = store.gpus()
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda n: store.put(replace(record, cause=str(n)), EVENT), range(8))) == [False] * 7 + [
            True
        ]
    assert len(store.events()) == 1


def the_record_of_what_has_left_stays(store: HealthStore) -> None:
    store.put(GPU, EVENT)
    store.observe([SEEN])
    (record,) = store.gpus()
    assert store.forget(record, replace(EVENT, cause="it has left"))
    assert store.gpus() == []
    assert store.open_observations() == []
    assert [event.cause for event in store.events(card="GPU-1234")] == ["it has left", "no lanes"]


def records_are_read_by_gpu_and_card_and_page(store: HealthStore) -> None:
    lines = [replace(EVENT, cause=str(n), time=at(n), card="b" if n % 2 else "a") for n in range(6)]
    store.note(*lines, replace(EVENT, host="gpu-2", cause="other"))
    assert [event.cause for event in store.events("gpu-1", GPU.address, limit=2)] == ["5", "4"]
    last = store.events("gpu-1", limit=2)[-1]
    assert [event.cause for event in store.events("gpu-1", limit=2, before=last.id)] == ["3", "2"]
    assert [event.cause for event in store.events(card="b")] == ["5", "3", "1"]
    assert [event.cause for event in store.events("gpu-1", since=at(4))] == ["5", "4"]


def how_often_a_gpu_was_suspect_is_counted(store: HealthStore) -> None:
    store.note(*(replace(EVENT, time=at(n)) for n in range(4)), replace(EVENT, before=S.SUSPECT, time=at(3)))
    assert store.became(S.SUSPECT, at(2)) == {("gpu-1", GPU.address): 2}
    assert store.became(S.IN_USE, at(0)) == {}


def an_observation_is_open_once(store: HealthStore) -> None:
    assert store.observe([SEEN, replace(SEEN, by="ada")])
    assert not store.observe([replace(SEEN, evidence="again")])
    assert not store.observe([])
    first, second = store.open_observations()
    assert (first, second) == (replace(SEEN, id=first.id), replace(SEEN, by="ada", id=second.id))
    store.settle([first.id])
    assert store.observe([replace(SEEN, evidence="\x00" + "x" * 1000)])
    third = store.open_observations()[-1]
    assert third.id > second.id
    assert third.evidence == "\ufffd" + "x" * 499
    store.put(SMALL, settles=[second.id, third.id])
    assert store.open_observations() == []


def hosts_are_heard_of(store: HealthStore) -> None:
    assert store.host("gpu-1") is None
    store.hear(HostContact("gpu-1", at(0), '{"boot": "a"}'))
    store.hear(HostContact("gpu-1", at(1), '{"boot": "b"}'))
    assert store.host("gpu-1") == HostContact("gpu-1", at(1), '{"boot": "b"}')
    assert store.heard() == {"gpu-1": at(1)}


def a_token_is_good_until_it_ends(store: HealthStore) -> None:
    text, digest = new_token("watch")
    assert (text[:4], digest, len(text)) == ("gyh_", digest_of(text), 68)
    token = HealthToken(digest, "watch", "gpu-1", at(0))
    store.add_token(token)
    assert store.token(digest) == token
    assert store.token(digest_of(text + "x")) is None
    assert (store.tokens("watch"), store.tokens("watch", "gpu-2"), store.tokens("scrub")) == ([token], [], [])
    assert store.end_tokens("scrub", "gpu-1") == 0
    assert store.end_tokens("watch", "gpu-1") == 1
    assert store.token(digest) is None


def a_token_that_is_good_once_is_spent_once(store: HealthStore) -> None:
    store.add_token(HealthToken("d", "enrol", "server", at(0), expires=at(2)))
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: store.spend("d", at(1)), range(4))) == [False, False, False, True]
    store.add_token(HealthToken("late", "enrol", "server", at(0), expires=at(2)))
    assert not store.spend("late", at(2))
    assert not store.spend("none", at(1))
    store.prune(at(2))
    assert store.tokens("enrol") == []


def lines_of_years_ago_go(store: HealthStore) -> None:
    old, recent = replace(EVENT, time=at(-6 * 366 * 24)), replace(EVENT, time=at(-4 * 366 * 24))
    store.note(old, recent, EVENT)
    store.prune(at(0))
    assert [event.time for event in store.events()] == [EVENT.time, recent.time]


def small_things_are_remembered(store: HealthStore) -> None:
    assert store.value("k") == ""
    store.set_value("k", "v")
    store.set_value("k", "w")
    assert store.value("k") == "w"
    store.set_value("k", "")
    assert store.value("k") == ""


def a_host_has_one_maintenance_that_is_not_over(store: HealthStore) -> None:
    some = MaintenanceStore(store.database)
    assert some.put(MAINTENANCE, EVENT)
    assert store.events()[0].cause == EVENT.cause
    assert some.get("m1") == replace(MAINTENANCE, version=1)
    second = replace(MAINTENANCE, id="m2", start=at(2), created=at(1))
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda n: some.put(replace(second, id=f"m{n}"), EVENT), range(2, 6)))
    assert len(store.events()) == 1, "nothing of it is written"
    assert some.put(replace(second, id="n", host="gpu-2"))
    assert [maintenance.id for maintenance in some.open()] == ["m1", "n"]
    old = replace(MAINTENANCE, version=1)
    assert some.put(replace(old, state=M.BACK))
    assert not some.put(replace(old, state=M.CHECKING)), "it was changed meanwhile"
    assert [maintenance.id for maintenance in some.with_holds()] == ["m1"]
    assert some.put(replace(old, state=M.BACK, holds=False, version=2))
    assert some.with_holds() == []
    assert some.put(second), "the one before is over"
    assert [maintenance.id for maintenance in some.open()] == ["m2", "n"], "by start and host"
    assert [maintenance.id for maintenance in some.past("gpu-1")] == ["m1"]
    assert some.past("gpu-2") == []


RULES: list[Callable[[HealthStore], None]] = [
    what_is_written_is_read,
    a_write_of_what_is_stale_is_refused,
    of_many_who_write_at_once_one_does,
    the_record_of_what_has_left_stays,
    records_are_read_by_gpu_and_card_and_page,
    how_often_a_gpu_was_suspect_is_counted,
    an_observation_is_open_once,
    hosts_are_heard_of,
    a_token_is_good_until_it_ends,
    a_token_that_is_good_once_is_spent_once,
    lines_of_years_ago_go,
    small_things_are_remembered,
    a_host_has_one_maintenance_that_is_not_over,
]
