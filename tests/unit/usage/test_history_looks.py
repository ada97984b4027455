"""What one look after another makes of the state of GPUs: gaps, bookings, half answers; and when a server had its GPUs
by what Nova says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuyard.bookings.records import LedgerSeen
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState
from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.model.world import Server, Snapshot
from gpuyard.usage.accounts import UseKind, use_of
from gpuyard.usage.lives import Deed, ServerLife, use_spans
from gpuyard.usage.read_lives import LifeReader
from gpuyard.usage.recorder import CloudSeen, GpuKey, HistoryWrites, Track, plan_look
from gpuyard.usage.records import NOBODY, Extent, Interval, Tenure, TrackState
from gpuyard.usage.tracks import tracks_of
from tests.support.history_world import at

KEY: GpuKey = ("h", "0000:01:00.0", "t4")
FREE = Track(TrackState.FREE)
OWN = Tenure("", "", "", "s1", "train", "u", "ada", "p", "alpha", "f")
HOUR = 3600


def server(launched: int | None = 100, **more: Any) -> Server:
    return Server(
        "s1", "train", "ACTIVE", "h", "alpha", "ada", "f", at(90), None if launched is None else at(launched), "u", "p",
        **more,
    )  # fmt: skip


def life(launched: int | None = 100, terminated: int | None = None, deeds: Sequence[Deed] = ()) -> ServerLife:
    return ServerLife(server(launched), "t4", 1, tuple(deeds), None if terminated is None else at(terminated))


def claimed(tenure: Tenure = OWN, launched: int = 100) -> Track:
    return Track(TrackState.CLAIMED, tenure, at(launched))


def went_on(track: Track) -> Interval:
    return Interval(*KEY, track.state, at(0), None, track.tenure)


def look(old: Track, new: Track, last: int, now: int, *lives: ServerLife, **more: Any) -> HistoryWrites:
    observed = CloudSeen(at(now), {KEY: new}, frozenset({"s1"}), {life.server.id: life for life in lives}, **more)
    plan = plan_look([went_on(old)], Extent(at(0), at(last), at(last)), observed)
    assert plan is not None
    return plan


def told(old: Track, plan: HistoryWrites) -> list[tuple[int, str, str]]:
    """From which second on it was what, on which booking."""
    spans = [(0, old.state.value, old.tenure.booking)]
    return spans + [
        (_second(interval.start), interval.state.value, interval.tenure.booking)
        for interval in plan.adds
        if interval.address
    ]


def _second(time: datetime) -> int:
    return int((time - at(0)).total_seconds())


def test_a_change_is_dated_by_nova_and_else_by_who_saw_it() -> None:
    plan = look(FREE, claimed(), 98, 103, life())
    assert told(FREE, plan) == [(0, "free", ""), (100, "claimed", "")]
    assert (plan.ends[KEY], plan.adds[0].exact_start) == ((at(100), True), True)
    plan = look(claimed(), FREE, 200, 205, life(terminated=202))
    assert told(claimed(), plan) == [(0, "claimed", ""), (202, "free", "")]
    plan = look(FREE, Track(TrackState.HELD, Tenure("dust")), 200, 205)
    assert told(FREE, plan) == [(0, "free", ""), (205, "held", "")]
    assert plan.ends[KEY] == (at(205), False)
    assert look(FREE, FREE, 200, 205).ends == {}
    starting = Track(TrackState.STARTING, OWN)
    assert told(starting, look(starting, claimed(), 98, 103, life())) == [(0, "starting", ""), (100, "claimed", "")]


def test_of_a_gap_only_that_is_known_which_nova_tells() -> None:
    gone = life(terminated=500)
    for old, new, lives, expected in (
        (FREE, FREE, (), [(0, "free", ""), (200, "unseen", ""), (900, "free", "")]),
        (claimed(), claimed(), (), [(0, "claimed", "")]),
        (FREE, claimed(launched=600), (life(600),), [(0, "free", ""), (200, "unseen", ""), (600, "claimed", "")]),
        (claimed(), FREE, (gone,), [(0, "claimed", ""), (500, "unseen", ""), (900, "free", "")]),
    ):
        assert told(old, look(old, new, 200, 900, *lives)) == expected
    other = replace(OWN, server="s2")
    after = replace(life(700), server=replace(server(700), id="s2"))
    plan = look(claimed(), Track(TrackState.CLAIMED, other, at(700)), 200, 900, gone, after)
    assert told(claimed(), plan) == [(0, "claimed", ""), (500, "unseen", ""), (700, "claimed", "")]


def test_a_clock_that_goes_back_adds_nothing() -> None:
    for now in (200, 199):
        assert plan_look([went_on(FREE)], Extent(at(0), at(200), at(200)), CloudSeen(at(now), {KEY: claimed()})) is None


def test_of_half_an_answer_nothing_follows() -> None:
    was = claimed()
    assert look(was, FREE, 200, 205, life()).ends == {}, "Nova says that it is there"
    assert look(was, FREE, 200, 205).ends == {}, "and names it"
    silent = look(was, Track(TrackState.STARTING, Tenure("allocated", server="s1")), 200, 205, whole=False)
    assert (silent.ends, silent.settled) == ({}, at(200))
    observed = CloudSeen(at(205), {KEY: FREE})
    gone = plan_look([went_on(was)], Extent(at(0), at(200), at(200)), observed)
    assert gone is not None
    assert gone.ends == {KEY: (at(205), False)}, "nobody knows it any more"


def booking(start: int, end: int, id: str = "b1", kind: BookingKind = BookingKind.BOOKING, **more: Any) -> Booking:
    ask = Ask("t4", at(start), at(end), comment=more.pop("comment", ""))
    values = {"state": BookingState.ACTIVE, "changed": at(0), **more}
    return Booking(
        id=id, kind=kind, ask=ask, user_id="u", user="ada", project_id="p", project="alpha", created=at(0), lanes=(7,),
        **values,
    )  # fmt: skip


def test_use_is_booked_for_as_long_as_the_booking_is() -> None:
    first_booking = booking(202, 300)
    on = claimed(replace(OWN, booking="b1", kind="booking"))
    assert told(claimed(), look(claimed(), on, 200, 205, bookings=[first_booking])) == [
        (0, "claimed", ""),
        (202, "claimed", "b1"),
    ]
    assert told(on, look(on, claimed(), 298, 303, bookings=[first_booking])) == [
        (0, "claimed", "b1"),
        (300, "claimed", ""),
    ]
    early = replace(first_booking, state=BookingState.ENDED, changed=at(250))
    assert told(on, look(on, claimed(), 248, 900, bookings=[early])) == [(0, "claimed", "b1"), (250, "claimed", "")]
    plan = look(on, FREE, 200, 900, life(terminated=500), bookings=[first_booking])
    assert [part[:3] for part in told(on, plan)] == [
        (0, "claimed", "b1"), (300, "claimed", ""), (500, "unseen", ""), (900, "free", ""),
    ]  # fmt: skip
    assert told(FREE, look(FREE, on, 98, 303, life(100), bookings=[first_booking])) == [
        (0, "free", ""), (98, "unseen", ""), (100, "claimed", ""), (202, "claimed", "b1"),
    ]  # fmt: skip
    two = booking(320, 900, "b2")
    after = claimed(replace(OWN, booking="b2", kind="booking"))
    assert told(on, look(on, after, 290, 330, bookings=[first_booking, two])) == [
        (0, "claimed", "b1"), (300, "claimed", ""), (320, "claimed", "b2"),
    ]  # fmt: skip


def test_a_runners_server_stays_a_runners_when_its_lease_is_over_before_it_is_gone() -> None:
    """A booking took its GPUs, and deleting a server takes a while."""
    lease = booking(0, 900, "l1", BookingKind.RUNNER, server="train", comment="runner train of owner/name")
    lease = replace(lease, state=BookingState.ENDED, changed=at(130))
    later, mine = replace(lease, changed=at(300)), replace(OWN, booking="l1", kind="runner", repository="owner/name")
    on = claimed(mine)
    for old, new, plan, expected in (
        (on, claimed(), look(on, claimed(), 298, 303, bookings=[later]), []),
        (on, claimed(), look(on, claimed(), 303, 308), []),
        (on, FREE, look(on, FREE, 200, 900, life(terminated=500), bookings=[later]), [(500, "unseen"), (900, "free")]),
        (on, FREE, look(on, FREE, 303, 308, life(terminated=306)), [(306, "free")]),
        (FREE, claimed(), look(FREE, claimed(), 135, 140, life(137), bookings=[lease]), [(137, "claimed")]),
    ):
        parts = told(old, plan)
        assert [part[:2] for part in parts[1:]] == expected, new
        assert {id for _, state, id in parts if state == "claimed"} == {"l1"}
        assert {
            use_of(interval.state, interval.tenure.kind)
            for interval in plan.adds
            if interval.state is TrackState.CLAIMED
        } <= {UseKind.RUNNER}
    starting = Track(TrackState.STARTING, mine)
    plan = look(starting, claimed(launched=137), 135, 140, life(137))
    assert told(starting, plan) == [(0, "starting", "l1"), (137, "claimed", "l1")]
    before = Interval(*KEY, TrackState.CLAIMED, at(100), at(140), mine)
    for unseen, spans in (
        (look(FREE, FREE, 98, 165, life(100, 160), bookings=[lease]), [(100, 160, "l1", "owner/name")]),
        (look(FREE, FREE, 150, 165, life(100, 160), recorded={"s1": [before]}), [(140, 160, "l1", "owner/name")]),
    ):
        adds = [interval for interval in unseen.adds if not interval.address]
        assert [
            (
                _second(interval.start),
                _second(interval.end or at(0)),
                interval.tenure.booking,
                interval.tenure.repository,
            )
            for interval in adds
        ] == spans


def test_a_server_that_nova_says_had_its_gpu_longer_had_it_on_its_last_host() -> None:
    shelved = life(deeds=[Deed("shelve", at(198), at(203), offloaded=at(203))])
    shelved = replace(shelved, server=replace(shelved.server, status="SHELVED_OFFLOADED", host=None))
    before = Interval(*KEY, TrackState.CLAIMED, at(100), at(200), OWN)
    plan = look(FREE, FREE, 202, 205, shelved, recorded={"s1": [before]})
    assert [(interval.host, interval.address, interval.start, interval.end) for interval in plan.adds] == [
        ("h", "", at(200), at(203))
    ]


def test_who_was_not_seen_drew_on_what_was_theirs() -> None:
    lease = booking(0, 900, "l1", BookingKind.RUNNER, server="train", comment="runner train of owner/name")
    stranger = replace(booking(0, 900, "b9"), user_id="somebody")
    for bookings, expected in (
        ([booking(120, 140), stranger], [(100, 120, "", ""), (120, 140, "b1", ""), (140, 160, "", "")]),
        ([booking(0, 900), lease], [(100, 160, "l1", "owner/name")]),
        ([replace(booking(0, 900), state=BookingState.CANCELLED)], [(100, 160, "", "")]),
    ):
        plan = look(FREE, FREE, 98, 165, life(100, 160), bookings=bookings)
        unseen = [interval for interval in plan.adds if not interval.address]
        spans = [
            (_second(interval.start), _second(interval.end or at(0)), interval.tenure.booking) for interval in unseen
        ]
        assert [(*span, interval.tenure.repository) for span, interval in zip(spans, unseen, strict=True)] == expected
        assert {(interval.host, interval.pool, interval.tenure.user) for interval in unseen} == {("h", "t4", "ada")}


def test_servers_that_were_never_launched_used_nothing() -> None:
    assert use_spans(life(None, 160)) == []
    assert look(FREE, FREE, 98, 103, life(None, 101)).adds == ()


def test_a_server_that_gives_its_gpu_back_does_not_use_it() -> None:
    deeds = [
        Deed("create", at(90), at(101)),
        Deed("shelveOffload", at(200), at(210)),
        Deed("unshelve", at(290), at(300)),
        Deed("unshelve", at(280), at(285), failed=True),
        Deed("shelve", at(400), at(405), offloaded=at(420)),
    ]
    assert use_spans(life(100, 900, deeds[:1])) == [(at(100), at(900))]
    assert use_spans(life(500, None, deeds[:1])) == [(at(101), None)], "it was rescued since"
    assert use_spans(life(299, 900, deeds)) == [(at(101), at(210)), (at(299), at(300 + 120))]


GPU = Gpu("h", "0000:01:00.0", "t4", "Tesla T4", "10de:1eb8", GpuRole.LONE, "CUSTOM_GPU_T4", 1)


def track(status: GpuStatus, servers: Sequence[Server] = (), **ledger: Any) -> Track:
    snapshot = Snapshot(
        at(200), {}, frozenset(), {}, frozenset(), {}, {server.id: server for server in servers},
    )  # fmt: skip
    return tracks_of([status], snapshot, LedgerSeen(**ledger))[KEY]


def test_what_a_look_says_of_a_gpu() -> None:
    personal, lease = booking(0, 900), booking(0, 900, "l1", BookingKind.RUNNER, comment="runner train of owner/name")
    of = {"b1": personal, "l1": lease}
    assert track(GpuStatus(GPU, GpuState.FREE)) == FREE
    booked = track(GpuStatus(GPU, GpuState.BOOKED, "booked by ada", booking="b1"), bookings=of)
    assert (booked.state, booked.tenure.kind, booked.tenure.project, booked.tenure.server) == (
        TrackState.BOOKED,
        "booking",
        "alpha",
        "",
    )
    status = GpuStatus(GPU, GpuState.CLAIMED, "", Claim("s1", "train", "ACTIVE", "alpha", "ada"))
    assert track(status) == Track(TrackState.STARTING, Tenure(server="s1")), "no server that Nova names"
    assert track(status, [server(None)]).state is TrackState.STARTING
    assert track(status, [server(201)]).state is TrackState.STARTING, "for the next look"
    assert track(status, [server()]) == claimed()
    drawn = track(status, [server()], bookings=of, drawn={"s1": ("l1",)})
    assert (drawn.tenure.booking, drawn.tenure.kind, drawn.tenure.repository) == ("l1", "runner", "owner/name")
    mine = {"b0": replace(personal, id="b0", lanes=(3,)), **of}
    both = track(status, [server()], bookings=mine, drawn={"s1": ("b0", "b1")}, lanes={("h", "0000:01:00.0"): 7})
    assert both.tenure.booking == "b1"
    assert track(GpuStatus(GPU, GpuState.HELD, "dust")).tenure == replace(NOBODY, reason="dust")


Acted = tuple[str, int, int, dict[str, Any]]
"""Name of an action, when it began, when it or a part of it was last begun or ended; its parts, each with when it ended
well."""


class Nova:
    """Answers what a test says, as Nova does."""

    name, region = "test", ""
    calls = 0

    def __init__(self, row: Mapping[str, Any], actions: Sequence[Acted]) -> None:
        self.row, self.actions, self.asked = row, actions, 0

    def pages(self, service: str, path: str, key: str, **query: object) -> list[Mapping[str, Any]]:
        assert (service, path, query["changes-since"]) == ("compute", "/servers/detail", "2026-10-05T08:00:00Z")
        return [self.row]

    def get(self, service: str, path: str, **query: object) -> Mapping[str, Any]:
        self.asked += 1
        if service == "identity":
            kind = path.split("/")[1].removesuffix("s")
            return {kind: {"name": f"a {kind}", "domain_id": "default"}}
        if path.endswith("os-instance-actions"):
            return {
                "instanceActions": [
                    {"action": name, "request_id": str(n), "start_time": _nova(start), "updated_at": _nova(end),
                     "message": None}
                    for n, (name, start, end, _) in enumerate(self.actions)
                ]
            }  # fmt: skip
        events = self.actions[int(path.rsplit("/", 1)[1])][3]
        return {
            "instanceAction": {
                "events": [
                    {"event": e, "result": end and "Success", "finish_time": end and _nova(end)}
                    for e, end in events.items()
                ]
            }
        }


def _nova(second: int) -> str:
    return f"{at(second):%Y-%m-%dT%H:%M:%S}.000000"


def row(status: str = "ACTIVE", alias: str = "t4:2", **more: Any) -> dict[str, Any]:
    flavor = {
        "original_name": "f", "vcpus": 1, "ram": 1, "disk": 1, "ephemeral": 0, "swap": 0,
        "extra_specs": {"pci_passthrough:alias": alias},
    }  # fmt: skip
    return {
        "id": "s1", "name": "train", "status": status, "OS-EXT-STS:task_state": None, "OS-EXT-SRV-ATTR:host": "h",
        "tenant_id": "p", "user_id": "u", "flavor": flavor, "created": _nova(0), "updated": _nova(100),
        "OS-SRV-USG:launched_at": _nova(10), "OS-SRV-USG:terminated_at": None, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "actions", "offloaded"),
    [
        ("SHELVED", [("shelve", 50, 60, {"compute_shelve_instance": 60})], None),
        ("SHELVED_OFFLOADED", [("shelve", 50, 60, {"compute_shelve_instance": 60})], 60),
        ("SHELVED_OFFLOADED", [("shelve", 50, 60, {"compute_shelve_offload_instance": 80})], 80),
        ("SHELVED_OFFLOADED", [("shelve", 50, 60, {}), ("shelveOffload", 70, 75, {})], None),
        ("ACTIVE", [("shelve", 50, 60, {}), ("unshelve", 70, 75, {"compute_unshelve_instance": 75})], 60),
        ("ACTIVE", [("shelve", 50, 60, {}), ("unshelve", 70, 75, {"compute_start_instance": 75})], None),
        # Nova moves the time of an action when a part of it begins, too.
        ("SHELVED_OFFLOADED", [("shelve", 50, 50, {"compute_shelve_instance": None})], None),
        ("SHELVED_OFFLOADED", [("shelve", 50, 60, {}), ("unshelve", 70, 70, {})], 60),
        ("SHELVED_OFFLOADED", [("shelve", 50, 60, {}), ("unshelve", 70, 71, {"compute_unshelve_instance": None})], 60),
        ("ACTIVE", [("shelve", 50, 60, {}), ("unshelve", 70, 71, {"compute_unshelve_instance": None})], 60),
        ("SHELVED", [("shelve", 50, 60, {}), ("unshelve", 70, 71, {"compute_start_instance": None})], None),
        (
            "ACTIVE",
            [("shelve", 50, 60, {}), ("unshelve", 70, 70, {}), ("unshelve", 80, 85, {"compute_unshelve_instance": 85})],
            60,
        ),
        (
            "SHELVED_OFFLOADED",
            [("shelve", 50, 60, {}), ("unshelve", 70, 72, {"compute_start_instance": 72}), ("shelve", 80, 85, {})],
            None,
        ),
    ],
)
def test_whether_a_shelved_server_gave_its_gpus_back(status: str, actions: list[Acted], offloaded: int | None) -> None:
    nova = Nova(row(status), actions)
    reader = LifeReader(nova, {"t4": "pool"})  # type: ignore[arg-type]
    server_life = reader.read(at(0), at(0) + timedelta(days=1))["s1"]
    assert server_life.deeds[0].offloaded == (None if offloaded is None else at(offloaded))
    assert (server_life.pool, server_life.gpus, server_life.server.user, server_life.server.project) == (
        "pool",
        2,
        "a user",
        "a project",
    )
    request_count = nova.asked
    assert reader.read(at(0), at(0) + timedelta(days=1))["s1"] == server_life
    assert nova.asked == request_count, "what has not changed for long is known"


def test_a_server_that_is_being_unshelved_has_no_gpus_yet() -> None:
    """Nova gives the action a time as soon as it begins."""
    for under_way in ({}, {"compute_unshelve_instance": None}):
        nova = Nova(row("SHELVED_OFFLOADED"), [("shelve", 50, 60, {}), ("unshelve", 70, 70, under_way)])
        server_life = LifeReader(nova, {"t4": "pool"}).read(at(0), at(90))["s1"]  # type: ignore[arg-type]
        assert use_spans(server_life) == [(at(10), at(60))]
    nova = Nova(row(), [("shelve", 50, 60, {}), ("unshelve", 70, 75, {"compute_unshelve_instance": 75})])
    server_life = LifeReader(nova, {"t4": "pool"}).read(at(0), at(90))["s1"]  # type: ignore[arg-type]
    assert use_spans(server_life) == [(at(10), at(60)), (at(75), None)]


def test_servers_without_gpus_of_the_site_are_no_matter() -> None:
    reader = LifeReader(Nova(row(alias="nic:1"), []), {"t4": "pool"})  # type: ignore[arg-type]
    assert reader.read(at(0), at(9)) == {}
    (server_life,) = reader.read(at(0), at(9), also={"s1"}).values()
    assert (server_life.pool, server_life.gpus) == ("", 0), "but one that had them"


def test_a_server_that_came_back_in_the_second_of_the_look_was_nowhere_before() -> None:
    """It was shelved, and got another GPU: of its first turn no second is that GPU's."""
    other: GpuKey = ("h", "0000:02:00.0", "t4")
    shelved = Deed("shelve", at(109), at(110), offloaded=at(110))
    mine = life(120, deeds=[Deed("create", at(95), at(100)), shelved, Deed("unshelve", at(112), at(120))])
    open = [Interval(*other, TrackState.CLAIMED, at(100), None, OWN), went_on(FREE)]
    tracks = {KEY: claimed(launched=120), other: FREE}
    plan = plan_look(open, Extent(at(0), at(105), at(105)), CloudSeen(at(120), tracks, frozenset({"s1"}), {"s1": mine}))
    assert plan is not None
    assert (plan.ends[other], plan.ends[KEY]) == ((at(110), True), (at(120), True))
    assert [
        (interval.address, interval.state, _second(interval.start))
        for interval in plan.adds
        if interval.state is TrackState.CLAIMED
    ] == [(KEY[1], TrackState.CLAIMED, 120)]
