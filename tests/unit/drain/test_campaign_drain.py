"""Campaigns that empty hosts themselves: one server at a time, killed anywhere, and none after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry
from gpuyard.drain.apply import HostMover, Pace
from gpuyard.drain.campaign import drains as drains_module
from gpuyard.drain.campaign.drains import LOOK_AGAIN, CampaignDrains
from gpuyard.drain.campaign.planner import (
    CampaignAct,
    CampaignDrain,
    CampaignHostState,
    CampaignPlan,
    CampaignStanding,
    CampaignWork,
    is_emptied,
)
from gpuyard.drain.campaign.runner import CampaignUnseenError
from gpuyard.drain.facts import GuestServer, MovesFacts
from gpuyard.drain.planner import MovePlan, MoveRules, MoveVerdict, MoveWay
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.disabled_reason import Purpose
from gpuyard.site.load import LoadedSite
from tests.support.rooms import NOON
from tests.support.sites import site
from tests.unit.drain.test_campaign import (
    BEGUN,
    FATES,
    HOUR,
    NOW,
    Killed,
    Model,
    campaign,
    entry,
    no_begin_too_early,
    planned,
    seen,
)
from tests.unit.drain.test_moves import DOCUMENT, HOSTS, SOURCE, facts, guest

A, M, S = CampaignAct, MaintenanceState, CampaignStanding
CLOSED = CampaignDrain()
GOES, WAITS = "train: migrate to gpu-9: it has room", "infer: wait: none of 3 other hosts has room"
EMPTY = (BEGUN, entry(A.EMPTIED, "gpu-1"))
WORKED = (*EMPTY, entry(A.WORK, "gpu-1"))


@pytest.mark.parametrize(
    ("sight", "entries", "standing", "act", "says"),
    [
        (seen(M.DRAINING, drain=replace(CLOSED, closed=False)), (BEGUN,), S.DRAINING, A.CLOSE, "no new servers"),
        (seen(M.DRAINING, drain=replace(CLOSED, closed=False, left=(WAITS,))), (BEGUN,), S.DRAINING, A.CLOSE, "no new"),
        (seen(M.DRAINING, drain=CampaignDrain(False, refused="it is down")), (BEGUN,), S.DRAINING, None, "it is down"),
        (seen(M.DRAINING, drain=replace(CLOSED, next=GOES, left=(WAITS,))), (BEGUN,), S.DRAINING, A.DRAIN, GOES),
        (seen(M.IN_WORK, drain=replace(CLOSED, next=GOES)), (BEGUN,), S.DRAINING, A.DRAIN, GOES),
        (seen(M.DRAINING, drain=replace(CLOSED, left=(WAITS,))), (BEGUN,), S.DRAINING, None, WAITS),
        (seen(M.DRAINING, drain=replace(CLOSED, next=GOES, move=CampaignWork.RUNNING)), (BEGUN,), S.MOVING, None, GOES),
        (seen(M.DRAINING, drain=CLOSED), (BEGUN, entry(A.DRAIN, "gpu-1", Happening.FAILED, "r2", "in ERROR")),
         S.FAILED, None, "in ERROR"),
        (seen(M.DRAINING, drain=replace(CLOSED, next=GOES)),
         (BEGUN, entry(A.DRAIN, "gpu-1", Happening.FAILED, "r1", "in ERROR")), S.DRAINING, A.DRAIN, GOES),
        (seen(M.DRAINING, drain=CLOSED), (BEGUN, entry(A.CLOSE, "gpu-1", Happening.FAILED, "r2", "is open again")),
         S.FAILED, None, "is open again"),
        (seen(M.IN_WORK, drain=CLOSED), (BEGUN,), S.DRAINING, A.EMPTIED, "no server is on it any more"),
        (seen(M.IN_WORK, drain=CLOSED), (entry(A.EMPTIED, "gpu-1"), BEGUN), S.DRAINING, A.EMPTIED, "no server"),
        (seen(M.DRAINING), EMPTY, S.DRAINING, None, "waits until it is seen to be empty"),
        (seen(M.IN_WORK), EMPTY, S.EMPTY, A.WORK, "it is empty"),
        (seen(M.CHECKING, closed=True), WORKED, S.CHECKING, A.OPEN, "Nova may use it again"),
        (seen(M.CHECKING, closed=True, heard=False, problems=("it is down",)), WORKED, S.CHECKING, None, "it is down"),
        (seen(M.CHECKING, closed=True), (*WORKED, entry(A.OPEN, "gpu-1", Happening.FAILED, "r2", "left behind")),
         S.FAILED, None, "left behind"),
        (seen(M.BACK, closed=True, heard=False), WORKED, S.CHECKING, A.OPEN, "Nova may use it again"),
        (seen(M.BACK), WORKED, S.CHECKING, A.RETURN, "it has passed its check"),
    ],
)  # fmt: skip
def test_each_thing_that_is_seen_says_what_is_next(
    sight: CampaignHostState,
    entries: Sequence[JournalEntry],
    standing: CampaignStanding,
    act: CampaignAct | None,
    says: str,
) -> None:
    row = planned(campaign(1, drain="move"), {"gpu-1": sight}, *entries)["gpu-1"]
    assert (row.standing, row.act) == (standing, act), row.reason
    assert says in row.reason


def test_without_the_key_nothing_is_moved() -> None:
    assert campaign(1).drain is None
    row = planned(campaign(1), {"gpu-1": seen(M.DRAINING, drain=replace(CLOSED, next=GOES))}, BEGUN)["gpu-1"]
    assert (row.standing, row.act) == (S.DRAINING, None)


def test_servers_that_cannot_go_in_time_are_a_failure_and_say_why() -> None:
    definition = campaign(1, drain="move", drained_within="2 h")
    state = seen(M.DRAINING, begun=NOW - 3 * HOUR, drain=replace(CLOSED, left=(WAITS,)))
    row = planned(definition, {"gpu-1": state}, BEGUN)["gpu-1"]
    assert (row.standing, row.reason) == (S.FAILED, f"not empty since 2026-12-01 05:00 UTC: {WAITS}")
    gone = replace(state, drain=CLOSED)
    assert planned(definition, {"gpu-1": gone}, BEGUN)["gpu-1"].act is A.EMPTIED
    moving = replace(state, drain=replace(CLOSED, next=GOES, move=CampaignWork.RUNNING))
    assert planned(definition, {"gpu-1": moving}, BEGUN)["gpu-1"].standing is S.MOVING


def test_one_server_moves_at_a_time_and_a_failure_stops_the_others() -> None:
    definition = campaign(4, drain="move", at_once=3)
    back, begun = entry(A.RETURN, "gpu-1"), [entry(A.BEGIN, f"gpu-{number}", run="r2") for number in (2, 3, 4)]
    goes = seen(M.DRAINING, drain=replace(CLOSED, next=GOES))
    rows = planned(
        definition, dict.fromkeys(("gpu-2", "gpu-3"), goes) | {"gpu-4": seen(M.IN_WORK, drain=CLOSED)}, back, *begun
    )
    assert [row.act for row in rows.values()] == [None, A.DRAIN, None, A.EMPTIED]
    assert rows["gpu-3"].reason == f"waits for a server of gpu-2 to have moved; then {GOES}"
    moving = seen(M.DRAINING, drain=replace(CLOSED, next=GOES, move=CampaignWork.RUNNING))
    rows = planned(definition, {"gpu-2": goes, "gpu-3": moving}, back, *begun)
    assert [row.act for row in rows.values()][:3] == [None, None, None]
    bad = entry(A.DRAIN, "gpu-4", Happening.FAILED, "r2", "in ERROR")
    states = {"gpu-2": goes, "gpu-3": moving, "gpu-4": goes}
    rows = planned(definition, states, back, *begun, bad)
    assert not [row for row in rows.values() if row.act]
    assert rows["gpu-2"].reason == "it is not emptied further: stopped after gpu-4 failed"
    assert not CampaignPlan(tuple(rows.values()), "stopped").over, "the server on its way is waited for"


# A run, on hosts of a model, and killed anywhere


@dataclass
class Emptied(Model):
    """Hosts with servers. What Nova does outlives a run; that this run has begun it does not."""

    servers: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    mine: str = ""
    """Host whose server this run has begun with."""
    end: str | None = None
    """How that has ended; empty: well, None: not yet."""
    run: str = ""

    def look(self, journal: DeployJournal) -> dict[str, CampaignHostState]:
        return {host: self.more(host, state, journal) for host, state in super().look(journal).items()}

    def more(self, host: str, state: CampaignHostState, journal: DeployJournal) -> CampaignHostState:
        if self.state.get(host) in (M.CHECKING, M.BACK):
            return replace(state, closed=host in self.closed)
        if self.state.get(host) not in (M.DRAINING, M.IN_WORK) or is_emptied(journal, host):
            return state
        move = CampaignWork.NONE
        if self.mine == host:
            move = CampaignWork.RUNNING if self.end is None else CampaignWork.ENDED
        has, stuck = bool(self.servers.get(host)), self.fate.get(host, [])[:1] == ["stuck"]
        drain = CampaignDrain(
            host in self.closed, GOES * (has and not stuck), (WAITS,) * (has and stuck), "", move, self.end or ""
        )
        return replace(state, drain=drain)

    def failed(self) -> bool:
        return any(entry.run == self.run and entry.happening is Happening.FAILED for entry in self.entries)

    def close(self, host: str) -> None:
        self.step()
        assert not self.failed()
        self.closed.add(host)
        assert len(self.closed) <= self.campaign.at_once
        self.step()

    def drain(self, host: str) -> None:
        self.step()
        assert not self.failed(), "none after the first failure"
        assert not self.mine or self.end is not None, "one server at a time"
        assert self.state[host] in (M.DRAINING, M.IN_WORK), "only in its maintenance"
        assert host in self.closed
        assert self.servers[host]
        assert len(self.closed) <= self.campaign.at_once
        self.mine, self.end = host, None
        self.step()

    def work(self, host: str, attempt: str) -> None:
        assert host in self.closed
        assert not self.servers.get(host), "it is empty"
        super().work(host, attempt)

    def open(self, host: str) -> None:
        self.step()
        assert self.state[host] is M.CHECKING
        self.closed.discard(host)
        self.step()

    def bad(self, host: str, what: str) -> bool:
        return (what == "check" and host in self.closed) or super().bad(host, what)  # the check wants it open

    def wait(self) -> None:
        super().wait()
        for host in self.campaign.hosts:
            self.bad(host, "stuck")
        if self.mine and self.end is None:
            self.end = "it is in ERROR" if self.bad(self.mine, "move") else ""
            self.servers[self.mine] -= not self.end

    def go(self, run: str) -> CampaignPlan:
        self.run, self.mine, self.end = run, "", None
        return super().go(run)


@given(
    hosts=st.integers(1, 5),
    at_once=st.integers(1, 3),
    servers=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    fates=st.lists(st.one_of(FATES, st.lists(st.sampled_from(["move", "stuck"]), max_size=3)), max_size=5),
    kills=st.lists(st.integers(1, 60), max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_no_host_beyond_the_limit_is_drained_and_none_after_a_failure(
    hosts: int, at_once: int, servers: list[int], fates: list[list[str]], kills: list[int]
) -> None:
    """The assertions are in the model; this one has it killed and fail anywhere, until all hosts are back."""
    definition = campaign(hosts, at_once=at_once, drain="move")
    model = Emptied(
        definition,
        {f"gpu-{n}": list(fate) for n, fate in enumerate(fates, 1)},
        servers=dict(zip(definition.hosts, servers, strict=False)),
    )
    for number, kill in enumerate([*kills, *[-1] * 20]):
        model.kill_in = kill
        try:
            plan = model.go(f"r{number}")
        except Killed:
            continue
        finally:
            no_begin_too_early(model, definition.first)
        if not plan.left:
            break
        assert plan.failed
        assert not model.mine or model.end is not None, "what is on its way was waited for"
        model.kill_in = -1
        model.wait()  # somebody looks after it
    else:
        pytest.fail("it never ends")
    assert sorted(host for host, how in model.worked if how == "good") == sorted(definition.hosts), "each once"
    assert not model.closed
    assert not any(model.servers.values())


# The doors


class Nova:
    """As much of Nova and Placement as moves servers without GPUs, all of it at once."""

    name, project, date = "test", None, NOW

    def __init__(self, *names: str) -> None:
        self.where = dict.fromkeys(names, SOURCE)
        self.service: dict[str, Any] = {"id": "s", "host": SOURCE, "state": "up", "status": "enabled"}
        self.silent = False

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:
        if self.silent:
            raise CloudError("no answer")
        if path == "/os-services":
            return {"services": [self.service]}
        kind, id = path.split("/")[1:3]
        if kind == "allocations":
            return {"allocations": {self.where[id]: {"resources": {"VCPU": 4}}}}
        assert kind == "servers"
        row = {"status": "ACTIVE", "OS-EXT-STS:task_state": None, "OS-EXT-SRV-ATTR:host": self.where[id]}
        return {"server": row}

    def request(self, method: str, service: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        if method == "PUT":
            self.service |= {"disabled_reason": ""} | body
        else:
            self.where[path.split("/")[2]] = body["migrate"]["host"]
        return {}

    def pages(self, *given: Any, **more: Any) -> list[dict[str, Any]]:
        return []

    def providers(self, **query: object) -> list[dict[str, Any]]:
        return [{"uuid": h, "name": h, "root_provider_uuid": h, "parent_provider_uuid": None} for h in HOSTS]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> LoadedSite:
    return site(tmp_path_factory.mktemp("three"), DOCUMENT, HOSTS)


def mover_on(nova: Nova, three: LoadedSite, messages: list[str]) -> HostMover:
    servers = {name: guest(three, "cpu", id=name, name=name) for name in nova.where}

    def read(now: datetime) -> MovesFacts:
        guests: list[GuestServer] = [servers[name] for name, host in nova.where.items() if host == SOURCE]
        return facts(three, *guests)

    return HostMover(nova, read, MoveRules(), messages.append, Pace(poll=0), lambda: NOON)  # type: ignore[arg-type]


def test_a_step_is_one_server_and_a_run_is_all(three: LoadedSite) -> None:
    nova, messages = Nova("a", "b", "c"), list[str]()
    mover = mover_on(nova, three, messages)
    assert len(mover.step(SOURCE).acts) == 3
    assert list(nova.where.values()).count(SOURCE) == 2
    tag = nova.service["disabled_reason"]
    assert tag.startswith("gpuyard: drain since ")
    assert not mover.run(SOURCE).verdicts
    assert SOURCE not in nova.where.values()
    assert nova.service["disabled_reason"] == tag
    assert messages[-1] == "c: ACTIVE on mid"
    assert not mover.step(SOURCE).acts


def ended(drains: CampaignDrains) -> None:
    assert drains._step is not None
    assert drains._step.thread is not None
    drains._step.thread.join(10)


def test_a_host_is_closed_emptied_and_opened(three: LoadedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    nova: Any = Nova("a", "b")
    messages: list[str] = []
    mover = mover_on(nova, three, messages)
    monkeypatch.setattr(
        drains_module, "give_back", lambda *given, **more: nova.request("PUT", "", "", {"status": "enabled"})
    )
    drains = CampaignDrains(
        nova, lambda host: mover, lambda host: frozenset(), lambda host, text: messages.append(f"{host}: {text}")
    )
    first = drains.look(SOURCE)
    assert (first.closed, first.left, first.move) == (False, (), CampaignWork.NONE)
    assert first.next.startswith("a: migrate to mid: mid has room for its flavor cpu")
    assert drains.foresee(SOURCE)[1].startswith("server b: migrate to mid: ")
    drains.close(SOURCE)
    assert "closed for new servers (gpuyard: drain since" in messages[-1]
    for _ in range(2):
        assert drains.look(SOURCE).closed
        drains.drain(SOURCE)
        ended(drains)
        assert drains.look(SOURCE).move is CampaignWork.ENDED
    assert drains.look(SOURCE) == CampaignDrain(move=CampaignWork.ENDED)
    assert drains.closed(SOURCE) == (True, True)
    drains.open(SOURCE)
    assert drains.closed(SOURCE) == (False, True)


class Scripted:
    """A mover that does as it is told."""

    def __init__(self, step: Callable[[], MovePlan], *ways: MoveWay) -> None:
        self.steps, self.ways, self.plans = step, ways, 0
        self.server = GuestServer("id", "train", "ACTIVE", "", "p", "p", "u", None)  # type: ignore[arg-type]

    def plan(self, host: str) -> MovePlan:
        self.plans += 1
        verdicts = tuple(MoveVerdict(self.server, way, "because") for way in self.ways)
        return MovePlan(host, Purpose.DRAIN, verdicts)

    def step(self, host: str) -> MovePlan:
        return self.steps()


def scripted(mover: Any, clock: Callable[[], float] = time.monotonic) -> CampaignDrains:
    return CampaignDrains(Nova(), lambda host: mover, lambda host: frozenset(), lambda *words: None, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "move", "failed"),
    [
        (BlockedError("it is in ERROR"), CampaignWork.ENDED, "it is in ERROR"),
        (CloudError("403 you may not", 403), CampaignWork.ENDED, "403 you may not"),
        (CloudError("no answer"), CampaignWork.NONE, ""),
        (CampaignUnseenError("no portal"), CampaignWork.NONE, ""),
    ],
)
def test_a_server_that_does_not_arrive_is_a_failure_and_a_cloud_that_is_away_is_none(
    error: Exception, move: CampaignWork, failed: str
) -> None:
    def step() -> MovePlan:
        raise error

    drains = scripted(Scripted(step, MoveWay.MIGRATE))
    drains.drain(SOURCE)
    ended(drains)
    drain = drains.look(SOURCE)
    assert (drain.move, drain.failed, drain.next) == (move, failed, "train: migrate: because")


def test_servers_that_wait_are_looked_at_anew_after_a_while() -> None:
    now = [100.0]
    mover = Scripted(lambda: MovePlan(SOURCE, Purpose.DRAIN, ()), MoveWay.WAIT, MoveWay.FOLLOW)
    drains = scripted(mover, lambda: now[0])
    drain = drains.look(SOURCE)
    assert (drain.next, drain.left) == ("train: follow: because", ("train: wait: because", "train: follow: because"))
    drains.look(SOURCE)
    assert mover.plans == 1
    now[0] += LOOK_AGAIN + 1
    drains.look(SOURCE)
    assert mover.plans == 2


def test_servers_that_may_go_down_keep_no_host_from_being_empty() -> None:
    mover = Scripted(lambda: MovePlan(SOURCE, Purpose.DRAIN, ()), MoveWay.WAIT)
    assert scripted(mover).look(SOURCE).left
    assert not scripted(mover).look(SOURCE, {mover.server.id}).left
    follows = Scripted(lambda: MovePlan(SOURCE, Purpose.DRAIN, ()), MoveWay.FOLLOW)
    assert scripted(follows).look(SOURCE, {mover.server.id}).next, "what has begun comes to its end"


def test_what_a_maintenance_has_closed_is_taken_over_by_the_drain() -> None:
    nova = Nova("a")
    nova.service |= {"status": "disabled", "disabled_reason": "gpuyard: maintenance since 2026-11-23T08:00:00Z"}
    drains = CampaignDrains(nova, lambda host: None, lambda host: frozenset(), lambda *said: None)  # type: ignore[arg-type, return-value]
    assert drains.closed(SOURCE) == (False, True), "else the campaign would open what the portal does"
    drains.close(SOURCE)
    assert nova.service["disabled_reason"] == "gpuyard: drain since 2026-11-23T08:00:00Z"
    assert drains.closed(SOURCE) == (True, True)


def test_what_refuses_a_drain_is_said_and_a_silent_cloud_is_waited_for(three: LoadedSite) -> None:
    nova: Any = Nova("a")
    drains = CampaignDrains(
        nova,
        lambda host: mover_on(nova, three, []),
        lambda host: frozenset(),
        lambda *said: None,
    )
    nova.service["state"] = "down"
    assert f"nova-compute on {SOURCE} is down" in drains.look(SOURCE).refused
    assert f"gpuyard host evacuate {SOURCE}" in drains.foresee(SOURCE)[0]
    nova.silent = True
    for ask in (drains.closed, drains.close, drains.foresee):
        with pytest.raises(CampaignUnseenError):
            ask(SOURCE)


def test_a_host_that_the_site_does_not_have_is_refused_at_once(three: LoadedSite) -> None:
    with pytest.raises(UsageError, match="campaign k: the site has no host 'gpu-1'; it has left, mid, right"):
        campaign(1, drain="move").refuse_strangers(three.site.hosts)
