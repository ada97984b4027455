"""Acceptance by a booted server: what becomes of each try, killed at any step, and whatever a guest says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.bookings.ledger.ledger import RefusedError
from gpuyard.health.acceptance import (
    OPEN,
    Try,
    TryObservation,
    TryState,
    first_host,
    judged,
    next_attempts,
    told,
    waited,
)
from gpuyard.health.acceptance_guest import PREFIX, AcceptanceOutput, GuestVerdict, accept_data, read_console
from gpuyard.health.controllers.acceptance import AcceptanceController, AcceptanceError, AcceptancePorts
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.records import GpuHealth, HealthState, HostContact, Software
from gpuyard.health.store import HealthStore
from gpuyard.health.store.tries import TryStore
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.gpu import provider_name
from gpuyard.model.world import Provider, Server, Snapshot
from gpuyard.nova.server_states import UNKNOWN, SeenServer
from gpuyard.openstack.servers import ServerError, ServerProblem, ServerWish
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.site.compile import CompiledSite
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.objects import FlavorObject
from tests.support.health_portals import site_gpus
from tests.support.ledgers import ADA, NOON, ROOT, Clock, ask, open_ledger

MINUTE = timedelta(minutes=1)
NONCE = "0123456789abcdef" * 2
LONE, OTHER, PAIR = "gpu-1/0000:a3:00.0", "gpu-1/0000:c3:00.0", "gpu-1/0000:27:00.0"
RULES = SiteHealth.model_validate({"acceptance": {"project": "accept", "image": "cuda", "within": "10 min"}})


# What the console says.


def console(*lines: str, nonce: str = NONCE) -> str:
    return "".join(f"[   12.3] kernel\n{PREFIX}{nonce} {line}\n" for line in lines)


def test_the_first_verdict_of_this_very_try_counts() -> None:
    text = console("begun", "ok 9 old", nonce="f" * 32) + console("begun", "driver 570.1", "ok 1 V100", "failed later")
    assert read_console(text, NONCE, 1) == AcceptanceOutput(True, GuestVerdict.OK, "V100", "570.1")
    assert read_console(console("begun"), NONCE, 1) == AcceptanceOutput(begun=True)
    assert read_console(console("failed x\x1b[2J", "ok 1"), NONCE, 1).verdict is GuestVerdict.FAILED
    assert read_console(console("unable no nvidia-smi"), NONCE, 1).verdict is GuestVerdict.UNABLE
    lied = read_console(console("ok 8 GPUs"), NONCE, 1)
    assert (lied.verdict, lied.words) == (GuestVerdict.FAILED, "the server says that it has 8 GPUs, and has 1")


@given(text=st.text(), words=st.text())
def test_no_text_is_too_odd(text: str, words: str) -> None:
    for odd in (text, PREFIX + NONCE + " " + words, f"{PREFIX}{NONCE} ok 1 {words}"):
        output = read_console(odd, NONCE, 1)
        assert len(output.words) <= 300
        assert output.words.isprintable()
        assert output.driver.isprintable()


def test_user_data_has_the_number_of_the_try_and_nothing_that_a_shell_would_run() -> None:
    text = accept_data(NONCE, 2, {"10de:1db4"})
    assert text.startswith("#cloud-config\n")
    assert f"NONCE={NONCE}" in text
    assert "IDS='10de:1db4'" in text
    for nonce, ids in (("$(reboot)", {"10de:1db4"}), (NONCE, {"10de:1db4'; reboot"}), (NONCE, set())):
        with pytest.raises(ValueError, match="no nonce, or no ids"):
            accept_data(nonce, 1, ids)


# What becomes of a try.


def a_try(state: TryState = TryState.WAITING, number: int = 0, **more: Any) -> Try:
    values = {
        "id": f"t{number}", "batch": "b", "number": number, "canary": False, "host": "h", "gpus": (f"{number}.0",),
        "pool": "t4", "by": "root", "by_id": "u-root", "begun": NOON, "state": state, "since": NOON, "nonce": NONCE,
        "name": f"s{number}", **more,
    }  # fmt: skip
    return Try(**values)


def after(attempt: Try, minutes: float = 1, **sight: Any) -> tuple[TryState, TryState | None, str]:
    result = judged(attempt, TryObservation(**{"lent": True, **sight}), 10 * MINUTE, NOON + minutes * MINUTE)
    return result.state, result.outcome, result.cause


def test_a_verdict_counts_only_while_its_server_has_the_gpu() -> None:
    ok = AcceptanceOutput(True, GuestVerdict.OK, "V100")
    assert after(a_try(TryState.CREATING), output=ok)[0] is TryState.CREATING
    assert after(a_try(TryState.CREATING), claimed=True)[0] is TryState.RUNNING
    assert after(a_try(TryState.RUNNING), output=ok) == (TryState.DELETING, TryState.PASSED, "V100")
    assert after(a_try(TryState.RUNNING), output=AcceptanceOutput(True, GuestVerdict.FAILED, "0xff")) == (
        TryState.DELETING,
        TryState.FAILED,
        "0xff",
    )
    assert (
        after(a_try(TryState.RUNNING), output=AcceptanceOutput(True, GuestVerdict.UNABLE, "no driver"))[1]
        is TryState.GIVEN_UP
    )
    assert after(a_try(TryState.RUNNING), output=ok, spoiled="it became quarantined")[1] is TryState.GIVEN_UP


def test_who_is_to_blame() -> None:
    deadline = NOON + 10 * MINUTE
    running = a_try(TryState.RUNNING, deadline=deadline, server="x")
    assert after(running, 11, status="ACTIVE", output=AcceptanceOutput(True))[1] is TryState.FAILED
    _, outcome, cause = after(running, 11, status="ACTIVE")
    assert (outcome, "is there cloud-init" in cause) == (TryState.GIVEN_UP, True)
    assert after(running, 9, status="ACTIVE")[0] is TryState.RUNNING
    assert after(running, status="ERROR", fault="vfio: group is not viable")[1] is TryState.FAILED
    assert after(a_try(TryState.CREATING), status="ERROR", fault="No valid host")[1] is TryState.GIVEN_UP
    assert after(running, 2, gone=True)[1] is TryState.GIVEN_UP
    assert after(running, 0.5, gone=True)[0] is TryState.RUNNING
    assert after(running, lent=False)[1] is TryState.GIVEN_UP
    assert after(a_try(TryState.LENT), 9)[0] is TryState.LENT
    assert after(a_try(TryState.LENT), 11)[1] is TryState.GIVEN_UP


def test_a_clock_that_went_back_does_not_hold_a_try_up() -> None:
    late = a_try(TryState.LENT, since=NOON + timedelta(days=1))
    assert judged(late, TryObservation(lent=True), 10 * MINUTE, NOON).since == NOON


def test_one_at_a_time_in_a_pool_and_the_canary_first() -> None:
    tries = [a_try(number=n, canary=n < 2, pool="t4" if n < 3 else "v100") for n in range(4)]
    go, skipped = next_attempts(tries, NOON)
    assert ([attempt.id for attempt in go], skipped) == (["t0"], [])
    tries[0] = replace(tries[0], state=TryState.PASSED, outcome=TryState.PASSED)
    assert [attempt.id for attempt in next_attempts(tries, NOON)[0]] == ["t1"]
    good = [tries[0], replace(tries[1], state=TryState.PASSED, outcome=TryState.PASSED), *tries[2:]]
    assert [attempt.id for attempt in next_attempts(good, NOON)[0]] == ["t2", "t3"]
    bad = [tries[0], replace(tries[1], state=TryState.FAILED, outcome=TryState.FAILED, cause="0xff"), *tries[2:]]
    go, skipped = next_attempts(bad, NOON)
    assert go == []
    assert {attempt.cause for attempt in skipped} == {"not tried: h/1.0, which was tried first, failed: 0xff"}
    assert {attempt.state for attempt in skipped} == {TryState.GIVEN_UP}
    assert first_host([("b", "1"), ("a", "1")], True) == "a"
    assert first_host([("b", "1"), ("a", "1")], False) == first_host([("a", "1"), ("a", "2")], True) == ""


def test_one_that_waits_for_a_server_to_go_keeps_no_other_one_back() -> None:
    tries = [a_try(number=n) for n in range(3)]
    assert [attempt.id for attempt in next_attempts(tries, NOON, {"t0"})[0]] == ["t0", "t1"]
    busy = [tries[0], replace(tries[1], state=TryState.LENT), tries[2]]
    assert next_attempts(busy, NOON, {"t0"})[0] == [], "its time begins when its turn has come"


def test_a_server_is_waited_for_as_long_as_for_a_verdict() -> None:
    late = NOON + 30 * MINUTE
    first = waited(a_try(), "server vm1 has h/0.0", 10 * MINUTE, late)
    assert (first.state, first.since, first.cause) == (TryState.WAITING, late, "server vm1 has h/0.0")
    again = waited(first, "server vm2 has h/0.0", 10 * MINUTE, late + 9 * MINUTE)
    assert (again.state, again.since, again.cause) == (TryState.WAITING, late, "server vm2 has h/0.0")
    assert waited(again, again.cause, 10 * MINUTE, NOON).since == NOON, "the clock has gone back"
    over = waited(again, again.cause, 10 * MINUTE, late + 10 * MINUTE)
    assert over.outcome is TryState.GIVEN_UP
    assert over.cause == "server vm2 has h/0.0, and that did not change within 10 minutes"


def test_it_is_told_in_words() -> None:
    assert told(a_try(TryState.RUNNING)) == "running, server s0"
    assert told(a_try(TryState.FAILED, cause="0xff")) == "failed: 0xff"
    assert told(a_try(TryState.WAITING, cause="server vm1 has h/0.0")) == "waiting: server vm1 has h/0.0"


# All of it, on a ledger and a store, with a Nova that is made up.


class KilledError(BaseException):
    """The process ends here."""


@dataclass
class FakeNova:
    """Servers in one project, each with a console; calls may end the process before or after they do what they do."""

    world: World
    servers: dict[str, SeenServer] = field(default_factory=dict)
    wishes: dict[str, ServerWish] = field(default_factory=dict)
    refuses: ServerError | None = None
    dies: bool = False
    slow_to_delete: int = 0
    silent: bool = False
    """The cell of its servers does not answer."""
    made: list[str] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=count)

    def create(self, wish: ServerWish) -> str:
        self.world.step("create")
        if self.refuses:
            raise self.refuses
        id = f"id{next(self.ids)}"
        self.servers[id] = SeenServer(id, wish.name, "ERROR" if self.dies else "ACTIVE", fault="boom")
        self.wishes[id] = wish
        self.made.append(wish.name)
        self.world.step("created")
        return id

    def ours(self) -> list[SeenServer]:
        self.world.step("ours")
        return [] if self.silent else list(self.servers.values())

    def all_cells_answer(self) -> bool:
        return not self.silent

    def get(self, server_id: str) -> SeenServer | None:
        server = self.servers.get(server_id)
        return replace(server, status=UNKNOWN) if server is not None and self.silent else server

    def console(self, server_id: str) -> str:
        match = re.search(r"NONCE=([0-9a-f]+)", self.wishes[server_id].user_data)
        assert match
        return console(*self.world.says, nonce=match[1])

    def delete(self, server_id: str) -> None:
        self.world.step("delete")
        if self.silent:
            return
        if self.slow_to_delete:
            self.slow_to_delete -= 1
            return
        self.servers.pop(server_id, None)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock, self.gpus = Clock(), list(site_gpus())
        self.ledger = open_ledger(folder, None, self.clock)
        assert self.ledger.upkeep.leadership.try_to_lead(BOOKINGS)
        self.store = HealthStore(self.ledger.database)
        self.service = HealthService(self.store, self.ledger, RULES, self.clock)
        self.tries = TryStore(self.ledger.database)
        self.acceptance = AcceptanceService(self.store, self.tries, self.ledger, self.clock)
        self.says: list[str] = ["begun", "driver 570.1", "ok 1 V100 at 05:00"]
        self.nova = FakeNova(self)
        self.steps, self.kill_at = 0, -1
        self.no_project = False
        self.observation: CloudObservation | None = None
        for gpu in site_gpus():
            self.store.put(GpuHealth(gpu.host, gpu.address, gpu.pool, HealthState.FINE, NOON))
        self.restart()

    def step(self, what: str) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            raise KilledError(what)

    def restart(self) -> None:
        flavors = (
            FlavorObject("big", 4, 8192, 20, pool="v100", gpus=1),
            FlavorObject("small", 4, 2048, 20, pool="v100", gpus=1),
            FlavorObject("pair-a", 4, 2048, 20, pool="v100", gpus=2, set_letter="A"),
            FlavorObject("t4", 4, 2048, 20, pool="t4", gpus=1),
        )
        compiled = cast(CompiledSite, type("Compiled", (), {"flavors": flavors, "gpus": self.gpus}))
        self.controller = AcceptanceController(compiled, self.service, self.tries, self.ledger, self.doors, self.clock)
        # What is written may be the last thing that is done, or the first that is not.
        put, store_put = self.tries.put, self.store.put

        def put_try(attempt: Try) -> bool:
            self.step("before a try")
            return put(attempt)

        def put_gpu(*given: Any, **more: Any) -> bool:
            self.step("before a GPU")
            return store_put(*given, **more)

        if "put" not in self.tries.__dict__:
            self.tries.put, self.store.put = put_try, put_gpu  # type: ignore[method-assign]

    def doors(self) -> AcceptancePorts:
        if self.no_project:
            raise UsageError("health.acceptance.project: cloud lab has no project 'accept'")
        return AcceptancePorts(self.nova, "p-accept", lambda: self.observation)

    def see(self, **holders: str) -> None:
        """The loop of bookings looks: address of a GPU of gpu-1, as in ``a3``, -> name of the server that has it."""
        names = [provider_name(gpu.host, gpu.address) for gpu in site_gpus()]
        held = {provider_name("gpu-1", f"0000:{bus}:00.0"): server for bus, server in holders.items()}
        providers = {name: Provider(name, name, name) for name in names}
        servers = {name: Server(name, name, "ACTIVE", "gpu-1", "p", "u", "f") for name in holders.values()}
        snapshot = Snapshot(self.clock(), providers, frozenset({*names} - held.keys()), held, frozenset(), {}, servers)
        self.observation = CloudObservation(snapshot, frozenset())

    def to_accept(self, *gpus: str) -> None:
        for name in gpus:
            gpu = self.service.gpu(name)
            self.store.put(replace(gpu, state=HealthState.TO_ACCEPT, cause="it was repaired"))

    def bookings_run(self) -> None:
        """What the loop of bookings does to loans."""
        names = {server.name for server in self.nova.servers.values()}
        for loan in self.ledger.loans.current():
            claims = {loan.id: loan.lanes} if loan.server in names and not self.nova.dies else {}
            self.ledger.upkeep.record_claims(claims, usable={loan.id: not claims})

    def run(self, times: int = 30) -> None:
        """Until nothing is open, or so many looks."""
        for _ in range(times):
            self.bookings_run()
            self.controller.run()
            self.clock.forward(seconds=3)
            if not any(attempt.state in OPEN for attempt in self.tries.open()):
                return

    def state(self, gpu: str) -> HealthState:
        return self.service.gpu(gpu).state

    def nothing_is_left(self) -> None:
        assert self.nova.servers == {}
        assert self.ledger.loans.current() == []
        assert not any(attempt.state in OPEN for attempt in self.tries.open())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def test_what_passes_is_fine_and_it_is_known_with_what(world: World) -> None:
    world.to_accept(LONE)
    look = '{"kernel": "6.1", "firmware": "bios 3", "qemu": "10.0"}'
    world.store.hear(HostContact("gpu-1", NOON, look))
    acceptance = world.acceptance.ask([LONE], ROOT)
    assert [attempt.gpus for attempt in acceptance.tries] == [("0000:a3:00.0",)]
    world.controller.run()
    assert [loan.server for loan in world.ledger.loans.current()] == [acceptance.tries[0].name]
    world.run()
    gpu = world.service.gpu(LONE)
    assert (gpu.state, gpu.software) == (HealthState.FINE, Software("6.1", "bios 3", "10.0", "570.1"))
    assert gpu.accepted is not None
    (wish,) = world.nova.wishes.values()
    assert (wish.flavor, wish.image, wish.host) == ("small", "cuda", "gpu-1")
    (attempt,) = world.acceptance.batch(acceptance.tries[0].batch)
    assert (attempt.state, attempt.cause, attempt.driver) == (TryState.PASSED, "V100 at 05:00", "570.1")
    events = world.store.events("gpu-1", "0000:a3:00.0")
    assert [event.cause for event in events] == [
        "a server on it found nothing wrong",
        "a server is started on it to accept it",
    ]
    assert events[0].evidence == "V100 at 05:00"
    world.nothing_is_left()


def test_a_whole_group_is_accepted_at_once_and_fine_ones_may_be_checked_too(world: World) -> None:
    world.says = ["begun", "ok 2 two"]
    world.acceptance.ask([PAIR], ROOT)
    world.controller.run()
    assert world.state(PAIR) is HealthState.TO_ACCEPT, "nobody else gets it meanwhile"
    world.run()
    assert world.state(PAIR) is world.state("gpu-1/0000:28:00.0") is HealthState.FINE
    (wish,) = world.nova.wishes.values()
    assert wish.flavor == "pair-a"
    world.nothing_is_left()


@pytest.mark.parametrize("looks", range(5))
def test_what_leaves_the_site_file_holds_up_no_other(world: World, looks: int) -> None:
    world.says = ["begun"]
    world.to_accept(LONE)
    world.acceptance.ask([LONE], ROOT)
    world.run(looks)
    world.store.forget(world.service.gpu(LONE))
    world.gpus = [gpu for gpu in site_gpus() if f"{gpu.host}/{gpu.address}" != LONE]
    world.restart()
    (requested,) = world.acceptance.ask([PAIR], ROOT).tries
    world.run(5)
    world.says = ["begun", "ok 2 two"]
    world.run()
    assert world.state(PAIR) is HealthState.FINE
    (attempt,) = [candidate for candidate in world.tries.latest("gpu-1").values() if candidate.id != requested.id]
    assert (attempt.state, attempt.cause) == (TryState.GIVEN_UP, f"{LONE} has left the site file")
    world.nothing_is_left()


def test_what_fails_is_quarantined_with_the_reason(world: World) -> None:
    world.says = ["begun", "failed 0000:05:00.0 does not answer"]
    world.acceptance.ask([LONE], ROOT)
    world.run()
    gpu = world.service.gpu(LONE)
    assert (gpu.state, gpu.signal, gpu.by) == (HealthState.QUARANTINED, "acceptance", "")
    assert world.store.events("gpu-1", "0000:a3:00.0")[0].evidence == "0000:05:00.0 does not answer"
    world.nothing_is_left()


def test_what_the_cloud_is_to_blame_for_leaves_it_as_it_was(world: World) -> None:
    world.nova.refuses = ServerError("cloud has no image 'cuda'", None, ServerProblem.REFUSED)
    world.to_accept(LONE)
    for gpu, then in ((LONE, HealthState.TO_ACCEPT), (OTHER, HealthState.FINE)):
        acceptance = world.acceptance.ask([gpu], ROOT)
        world.run()
        (attempt,) = world.acceptance.batch(acceptance.tries[0].batch)
        assert (attempt.state, attempt.cause) == (TryState.GIVEN_UP, "Nova: cloud has no image 'cuda'")
        assert world.state(gpu) is then
        assert "no image" in world.store.events("gpu-1", gpu.partition("/")[2])[0].cause
    world.nothing_is_left()


def test_without_its_project_nothing_is_tried_and_the_reason_is_kept(world: World) -> None:
    world.no_project = True
    world.controller.run()
    acceptance = world.acceptance.ask([LONE], ROOT)
    with pytest.raises(AcceptanceError, match="has no project 'accept'"):
        world.controller.run()
    (attempt,) = world.acceptance.batch(acceptance.tries[0].batch)
    assert (attempt.state, "no project 'accept'" in attempt.cause) == (TryState.GIVEN_UP, True)
    assert world.state(LONE) is HealthState.FINE


def test_an_answer_that_got_lost_is_looked_for_by_name(world: World) -> None:
    world.acceptance.ask([LONE], ROOT)
    make = world.nova.create

    def lost(wish: ServerWish) -> str:
        make(wish)
        raise ServerError("no answer", None, ServerProblem.UNKNOWN)

    world.nova.create = lost  # type: ignore[method-assign]
    world.run()
    assert world.state(LONE) is HealthState.FINE
    assert len(world.nova.made) == 1
    world.nothing_is_left()


@pytest.mark.parametrize("lost", [False, True], ids=["known by its id", "its create's answer was lost"])
def test_a_cell_of_nova_that_does_not_answer_says_nothing_of_the_gpu(world: World, lost: bool) -> None:
    """Neither that its server is gone, so that somebody else may have the GPU, nor that its checks are late."""
    world.acceptance.ask([LONE], ROOT)
    make = world.nova.create

    def falls_silent(wish: ServerWish) -> str:
        id = make(wish)
        world.nova.silent = True
        if lost:
            raise ServerError("no answer", None, ServerProblem.UNKNOWN)
        return id

    world.nova.create = falls_silent  # type: ignore[method-assign]
    for _ in range(20):
        world.run(times=1)
        world.clock.forward(minutes=5)
    assert len(world.nova.servers) == 1
    assert world.state(LONE) is not HealthState.QUARANTINED
    assert any(attempt.state in OPEN for attempt in world.tries.open()), "its GPU is kept back as long as nobody knows"
    world.nova.silent = False
    world.run()
    world.nothing_is_left()
    assert world.state(LONE) is HealthState.FINE


def test_a_server_that_nova_cannot_start_is_deleted(world: World) -> None:
    world.nova.dies, world.nova.slow_to_delete = True, 3
    world.to_accept(LONE)
    world.acceptance.ask([LONE], ROOT)
    world.run()
    assert world.state(LONE) is HealthState.TO_ACCEPT
    world.nothing_is_left()


def test_what_goes_bad_meanwhile_is_not_accepted(world: World) -> None:
    world.says = ["begun"]
    world.acceptance.ask([LONE], ROOT)
    world.run(4)
    world.service.quarantine(LONE, "smoke", ROOT)
    world.says = ["begun", "ok 1 V100"]
    world.run()
    assert world.state(LONE) is HealthState.QUARANTINED
    world.nothing_is_left()


def test_a_server_that_is_still_there_is_waited_for(world: World) -> None:
    world.see(a3="vm1")
    waits, goes = world.acceptance.ask([LONE, OTHER], ROOT).tries
    world.run(12)
    assert world.acceptance.batch(goes.batch)[1].state is TryState.PASSED, "another one of its pool need not wait"
    (attempt, _) = world.acceptance.batch(waits.batch)
    assert told(attempt) == f"waiting: server vm1 has {LONE}"
    world.see()
    world.run()
    (attempt, _) = world.acceptance.batch(waits.batch)
    assert (attempt.state, attempt.cause) == (TryState.PASSED, "V100 at 05:00")
    world.nothing_is_left()


def test_a_gpu_that_comes_back_from_a_server_is_waited_for(world: World) -> None:
    (requested,) = world.acceptance.ask([LONE], ROOT).tries
    world.store.put(replace(world.service.gpu(LONE), state=HealthState.RETURNED, cause="its server is gone"))
    world.run(3)
    (attempt,) = world.acceptance.batch(requested.batch)
    assert told(attempt) == f"waiting: {LONE} is returned: its server is gone"
    world.store.put(replace(world.service.gpu(LONE), state=HealthState.FINE, cause="nothing is known against it"))
    world.run()
    (attempt,) = world.acceptance.batch(requested.batch)
    assert attempt.state is TryState.PASSED


def test_a_server_that_does_not_go_is_waited_for_in_vain(world: World) -> None:
    world.see(a3="vm1")
    (requested,) = world.acceptance.ask([LONE], ROOT).tries
    world.run(2)
    world.clock.forward(minutes=10)
    world.run(1)
    (attempt,) = world.acceptance.batch(requested.batch)
    assert (attempt.state, world.nova.made) == (TryState.GIVEN_UP, [])
    assert attempt.cause == f"server vm1 has {LONE}, and that did not change within 10 minutes"
    world.nothing_is_left()


def test_who_has_booked_it_is_not_thrown_out(world: World) -> None:
    (pinned,) = world.ledger.create(ask(start=0, gpu=LONE), ADA)
    world.ledger.upkeep.advance()
    acceptance = world.acceptance.ask([LONE], ROOT)
    world.run()
    (attempt,) = world.acceptance.batch(acceptance.tries[0].batch)
    assert attempt.state is TryState.GIVEN_UP
    assert pinned.id in attempt.cause
    assert world.state(LONE) is HealthState.FINE


def test_what_cannot_be_asked_for(world: World) -> None:
    world.service.quarantine(LONE, "smoke", ROOT)
    with pytest.raises(BlockedError, match="is quarantined: say first that it was repaired"):
        world.acceptance.ask([LONE], ROOT)
    with pytest.raises(BlockedError, match="no GPU is to be accepted"):
        world.acceptance.ask([], ROOT)
    with pytest.raises(RefusedError, match="there is no host gpu-9"):
        world.acceptance.ask(["gpu-9"], ROOT)
    acceptance = world.acceptance.ask(["v100", "gpu-2"], ROOT)
    assert dict(acceptance.left_out).keys() == {LONE}
    assert [(attempt.host, attempt.canary) for attempt in acceptance.tries] == [("gpu-1", True)] * 3 + [
        ("gpu-2", False)
    ]
    with pytest.raises(BlockedError, match="is being accepted already"):
        world.acceptance.ask([PAIR], ROOT)


def test_an_error_of_nova_is_shown_and_tried_again(world: World) -> None:
    world.acceptance.ask([LONE], ROOT)
    world.run(3)

    def broken(server_id: str) -> str:
        raise ServerError("out of order", 500, ServerProblem.UNKNOWN)

    works, world.nova.console = world.nova.console, broken  # type: ignore[method-assign]
    with pytest.raises(AcceptanceError, match="out of order"):
        world.run()
    world.nova.console = works  # type: ignore[method-assign]
    world.run()
    assert world.state(LONE) is HealthState.FINE


VERDICTS: dict[str, Callable[[World], None]] = {
    "passes": lambda world: None,
    "fails": lambda world: setattr(world, "says", ["begun", "failed it does not answer"]),
    "dies": lambda world: setattr(world.nova, "dies", True),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_killed_at_any_step_nothing_is_left_and_nothing_unaccepted_is_given_out(tmp_path: Path, verdict: str) -> None:
    for kill_at in range(1, 60, 1 if verdict == "passes" else 3):
        folder = tmp_path / f"{verdict}{kill_at}"
        folder.mkdir()
        world = World(folder)
        VERDICTS[verdict](world)
        world.to_accept(LONE)
        world.steps, world.kill_at = 0, kill_at
        killed = False
        world.acceptance.ask([LONE], ROOT)
        try:
            world.run()
        except KilledError:
            killed = True
        assert world.state(LONE) is not HealthState.FINE or "passes" in verdict
        if world.state(LONE) is HealthState.FINE:
            assert world.nova.servers == {}, "its server is gone before it is anybody's"
        world.kill_at = -1
        world.restart()
        world.run(60)
        world.nothing_is_left()
        ends = {"passes": {HealthState.FINE}, "fails": {HealthState.QUARANTINED}, "dies": {HealthState.TO_ACCEPT}}
        assert world.state(LONE) in (ends[verdict] | ({HealthState.TO_ACCEPT} if killed else set()))
        if world.state(LONE) is not HealthState.TO_ACCEPT:
            host, _, address = LONE.partition("/")
            causes = [event.cause for event in world.store.events(host, address)]
            assert [cause for cause in causes if "could not be accepted" in cause] == [], (kill_at, causes)
        world.ledger.close()
        if not killed:
            return
    raise AssertionError("it never came to its end")


def test_what_gpus_show_comes_home_and_of_several_the_worst() -> None:
    lines = ("begun", "fact link-width 16", "fact link-width 8", "fact ecc-corrected 3", "fact ecc-corrected 7")
    nonsense = (
        "fact link-width x",
        "fact colour 3",
        "fact link-width -1",
        "fact link-width 1e9",
        "fact ecc-corrected nan",
        "fact link-width 2 of",
        "fact link-width 2 of 16 lanes",
        "fact link-width 2 of 1e9",
        f"fact link-width {'9' * 5000}",
        f"fact {'link-' * 5000} 1",
    )
    output = read_console(console(*lines, *nonsense, "ok 2 V100", "fact link-width 1"), NONCE, 2)
    assert (output.verdict, output.facts) == (GuestVerdict.OK, {"link-width": 8, "ecc-corrected": 7})


def test_what_both_ends_of_a_link_can_comes_home() -> None:
    lines = ("fact link-width 16 of 16", "fact link-width 4 of 8", "fact link-width 8 of 16", "fact link-speed 9 of 8")
    output = read_console(console("begun", *lines, "fact ecc-corrected 1 of 2", "ok 1 V100"), NONCE, 1)
    assert output.short == {"link-width": (4, 8)}, "the worst; and more than they can is no news"


def accepted(world: World, *facts: str, shown: int = 8, fresh: bool = False) -> tuple[HealthState, str]:
    """What becomes of a GPU whose server says this, and why."""
    world.service.show(LONE, {"link-width": shown})
    world.says = ["begun", *(f"fact {fact}" for fact in facts), "ok 1 V100"]
    world.to_accept(LONE)
    world.acceptance.ask([LONE], ROOT, fresh=fresh)
    world.run()
    world.nothing_is_left()
    return world.state(LONE), world.store.events("gpu-1", "0000:a3:00.0")[0].evidence


def test_a_gpu_is_accepted_with_what_it_shows_and_with_worse_only_afresh(world: World) -> None:
    """Its host sees the link, its server the rest."""
    assert accepted(world, "rows-corrected 1") == (
        HealthState.FINE, "V100; 1 rows remapped after corrected errors"
    )  # fmt: skip
    first = world.service.gpu(LONE).baseline
    assert first is not None
    assert (first.by, first.facts) == (ROOT.user, {"link-width": 8, "rows-corrected": 1})
    (event, *_) = world.store.events("gpu-1", "0000:a3:00.0")
    text = "its baseline is 8 PCIe lanes, 1 rows remapped after corrected errors"
    assert event.cause == f"a server on it found nothing wrong; {text}"
    state, why = accepted(world, "rows-corrected 2", shown=4)
    assert state is HealthState.QUARANTINED
    assert why == f"2 rows remapped after corrected errors, and it was accepted with 1: {LOOK}"
    assert world.service.gpu(LONE).baseline == first, "a fault that came meanwhile does not become the rule"
    assert accepted(world, "rows-corrected 2", shown=4, fresh=True)[0] is HealthState.FINE
    again = world.service.gpu(LONE).baseline
    assert again is not None
    assert again.facts == {"link-width": 4, "rows-corrected": 2}


LOOK = "look after the card, or say 'gpuyard gpu accept --fresh' if it may stay so"
RESEAT = "reseat the card, or say 'gpuyard gpu accept --fresh' if its slot is wired so"


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ("link-width 1 of 16", "1 PCIe lanes at work, and card and slot can 16"),
        ("link-speed 2.5 of 16", "2.5 GT/s at work, and card and slot can 16"),
    ],
)
def test_a_link_that_is_less_than_both_ends_can_is_accepted_by_a_person_alone(
    world: World, fact: str, words: str
) -> None:
    assert accepted(world, fact) == (HealthState.QUARANTINED, f"{words}: {RESEAT}")
    assert world.service.gpu(LONE).baseline is None
    assert accepted(world, fact, fresh=True)[0] is HealthState.FINE
    assert accepted(world, fact)[0] is HealthState.FINE, "it is its baseline now"


def test_a_link_that_only_its_host_sees_does_not_become_the_baseline_when_it_is_short(world: World) -> None:
    """Images without gpu_burn and nvbandwidth do not see it at work. The signal of its host goes on then."""
    links = {"speed": 16.0, "width": 1, "max_speed": 16.0, "max_width": 16}
    gpus = [{"address": "0000:a3:00.0", "link": links}]
    world.store.hear(HostContact("gpu-1", NOON, json.dumps({"host": "gpu-1", "boot": "b", "number": 1, "gpus": gpus})))
    assert accepted(world, "pages-retired 0", shown=1)[0] is HealthState.FINE
    baseline = world.service.gpu(LONE).baseline
    assert baseline is not None
    assert baseline.facts == {"pages-retired": 0}
    assert accepted(world, shown=1, fresh=True)[0] is HealthState.FINE
    baseline = world.service.gpu(LONE).baseline
    assert baseline is not None
    assert baseline.facts == {"link-width": 1}


@pytest.mark.parametrize("fresh", [False, True])
def test_copies_slower_than_half_of_what_the_link_carries_fail(world: World, fresh: bool) -> None:
    """PCIe 3.0 x16 carries 15.75 GB/s one way: 8 GT/s, 128 of 130 bits, 16 lanes (PCI Express Base Specification)."""
    link = ("link-width 16 of 16", "link-speed 8 of 8")
    state, why = accepted(world, *link, "bandwidth 7.8", fresh=fresh)
    assert state is HealthState.QUARANTINED
    assert why.startswith("7.8 GB/s from the host, and 16 PCIe lanes at 8 GT/s carry 15.8, of which half is expected: ")
    assert accepted(world, *link, "bandwidth 7.9", fresh=fresh)[0] is HealthState.FINE
