"""GPUs that are used once, from the end of a server to the next one: hosts, time, and a kill at every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from gpuyard.bookings.enforcement import SeenProvider
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.scrubs import ScrubController, ScrubService, clean_providers
from gpuyard.health.life import become
from gpuyard.health.limits import SitePlace
from gpuyard.health.planner import Circumstances, GpuObservation, plan_health
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.model.gpu import Gpu, GpuRole, provider_name
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult
from gpuyard.site.health_rules import SiteHealth
from tests.support.ledgers import ADA, NOON, Clock, ask, open_ledger

HOST = "gpu-1"
LEADER, PEER, LONE, OTHER = "0000:27:00.0", "0000:28:00.0", "0000:a3:00.0", "0000:c3:00.0"
GROUPS = {LEADER: 19, PEER: 19, LONE: 32, OTHER: 33}
GPUS = tuple(
    Gpu(HOST, address, "v100", "V100", "10de:1db4", GpuRole.LONE, "CUSTOM_GPU_V100", group)
    for address, group in GROUPS.items()
)
GENERATION = 7
TIMEOUT = SiteHealth().scrub.timeout  # type: ignore[call-arg]


class Killed(BaseException):
    """Between two steps."""


class MortalStore(HealthStore):
    """Dies before a write, after so many of them."""

    writes_left: int | None = None

    def _one(self) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise Killed

    def put(self, gpu: GpuHealth, *events: HealthEvent, settles: object = ()) -> bool:
        self._one()
        return super().put(gpu, *events)

    def observe(self, observations: Sequence[object]) -> bool:
        self._one()
        return super().observe(observations)  # type: ignore[arg-type]


@dataclass
class World:
    """A site on a database; `placement` is what Nova and Placement have."""

    ledger: Ledger
    clock: Clock
    store: MortalStore = field(init=False)
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.given_on = False
        """Nova does not reserve GPUs, and nobody has got them yet."""
        self.placement = {gpu.provider_name: SeenProvider(False, GENERATION) for gpu in GPUS}
        self.restart()

    def restart(self) -> None:
        """A process that remembers nothing."""
        self.store = MortalStore(self.ledger.database)
        rules = SiteHealth.model_validate({})
        self.service = HealthService(self.store, self.ledger, rules, self.clock)
        self.scrubs = ScrubService(self.service, self.ledger, GPUS, {"v100"}, lambda: f"order-{next(self.ids)}")
        self.controller = ScrubController(
            self.service, self.ledger, GPUS, {"v100"}, self._look, lambda gpu: self.given_on
        )
        self.clean: list[str] = []
        self.scrubs.cleaned.listen(self.clean.append)

    def _look(self, gpus: Sequence[Gpu]) -> dict[str, SeenProvider]:
        return {gpu.provider_name: self.placement[gpu.provider_name] for gpu in gpus}

    def returned(self, *addresses: str) -> None:
        """Their server is gone, and Nova keeps them reserved."""
        for address in addresses:
            gpu = GpuHealth(HOST, address, "v100", HealthState.IN_USE, self.clock())
            new, event = become(gpu, HealthState.RETURNED, self.clock(), "its server is gone")
            assert self.store.put(replace(new, generation=GENERATION), event)
            self.placement[provider_name(HOST, address)] = SeenProvider(True, GENERATION)

    def enforce(self) -> None:
        """What the ledger does with what is clean and not booked."""
        for name, generation in clean_providers(self.store.gpus()).items():
            if self.placement[name] == SeenProvider(True, generation):
                self.placement[name] = SeenProvider(False, generation + 1)

    def state(self, address: str) -> HealthState:
        record = self.store.gpu(HOST, address)
        assert record is not None
        return record.state

    def ask(self, *results: ScrubResult) -> list[ScrubOrder]:
        return self.scrubs.exchange(HOST, results)

    def free(self, address: str) -> bool:
        return not self.placement[provider_name(HOST, address)].reserved


def done(
    order: ScrubOrder, outcome: ScrubOutcome = ScrubOutcome.CLEAN, *functions: str, reason: str = ""
) -> ScrubResult:
    return ScrubResult(
        order.id, order.address, outcome, reason, functions or (order.address,), "bus", 1.3, 1.1, ("it answers",)
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    ledger = open_ledger(tmp_path, clock=(clock := Clock()))
    assert ledger.upkeep.leadership.try_to_lead("bookings")
    yield World(ledger, clock)
    ledger.close()


def test_from_the_end_of_a_server_to_the_next_one(world: World) -> None:
    assert world.ask() == []
    world.returned(LONE)
    world.controller.run()
    assert not world.free(LONE)
    (order,) = world.ask()
    assert (order.address, world.state(LONE)) == (LONE, HealthState.SCRUBBING)
    assert world.ask() == [order]  # the answer was lost: the same again
    world.controller.run()
    world.enforce()
    assert not world.free(LONE)
    assert world.ask(done(order)) == []
    assert (world.state(LONE), len(world.clean)) == (HealthState.CHECKED, 1)
    world.controller.run()
    assert world.state(LONE) is HealthState.CHECKED  # until it is seen released
    world.enforce()
    world.controller.run()
    assert (world.state(LONE), world.free(LONE)) == (HealthState.FINE, True)
    texts = [event.evidence for event in world.store.events(HOST, LONE) if event.after is HealthState.CHECKED]
    assert texts == ["1.3 s, of which the reset 1.1 s; it answers"]


def test_a_group_goes_together_and_hosts_do_one_thing_after_the_other(world: World) -> None:
    world.returned(PEER, LEADER, LONE)
    (order,) = world.ask()
    assert {world.state(LEADER), world.state(PEER)} == {HealthState.SCRUBBING}
    assert world.state(LONE) is HealthState.RETURNED
    (other,) = world.ask(done(order, ScrubOutcome.CLEAN, LEADER, PEER))
    assert {world.state(LEADER), world.state(PEER)} == {HealthState.CHECKED}
    assert other.address == LONE


def test_a_group_of_which_one_is_in_use_waits(world: World) -> None:
    world.returned(LEADER)
    world.store.put(GpuHealth(HOST, PEER, "v100", HealthState.IN_USE, NOON))
    assert world.ask() == []
    assert world.scrubs.exchange("gpu-2", []) == []  # it is no business of other hosts


def test_clean_is_what_says_that_it_was_this_gpu(world: World) -> None:
    world.returned(LEADER, PEER)
    (order,) = world.ask()
    world.ask(done(order, ScrubOutcome.CLEAN, LEADER))
    assert (world.state(LEADER), world.state(PEER)) == (HealthState.CHECKED, HealthState.RETURNED)


def test_what_is_booked_first_is_scrubbed_first(world: World) -> None:
    world.returned(LONE)
    world.clock.forward(seconds=1)
    world.returned(OTHER)
    lane = next(lane for lane in world.ledger.lanes() if OTHER in lane.addresses)
    booking = world.ledger.create(ask(gpu=f"{HOST}/{OTHER}"), ADA)[0]
    assert booking.lanes == (lane.id,)
    assert [order.address for order in world.ask()] == [OTHER]


@pytest.mark.parametrize("outcome", [ScrubOutcome.FAILED, ScrubOutcome.REFUSED])
def test_one_that_failed_is_observed_and_never_released(world: World, outcome: ScrubOutcome) -> None:
    world.returned(LONE)
    (order,) = world.ask()
    assert world.ask(done(order, outcome, reason="its link has come back with 8 lanes of 16")) == []
    (observation,) = world.store.open_observations()
    assert (observation.code, observation.gpu) == ("scrub-failed", f"{HOST}/{LONE}")
    assert "8 lanes of 16" in observation.evidence
    assert clean_providers(world.store.gpus()) == {}
    assert world.ask() == []  # whoever judges observations has the next word
    world.clock.forward(seconds=TIMEOUT.total_seconds())
    world.controller.run()  # nobody has taken it out of use: again
    world.clock.forward(seconds=60)
    assert len(world.ask()) == 1


def test_only_the_open_order_of_this_host_counts(world: World) -> None:
    world.returned(LONE)
    stray = ScrubOrder("stray", LONE)
    world.ask(done(stray))
    assert world.state(LONE) is HealthState.SCRUBBING  # asked for, and not believed
    (order,) = world.ask()
    world.scrubs.exchange("gpu-2", [done(order)])
    assert world.state(LONE) is HealthState.SCRUBBING
    world.ask(done(order, ScrubOutcome.UNKNOWN, reason="interrupted"))
    assert world.state(LONE) is HealthState.RETURNED
    world.clock.forward(seconds=60)
    (second,) = world.ask(done(order))  # a replay
    assert second.id != order.id
    assert world.state(LONE) is HealthState.SCRUBBING


def test_a_host_that_vanishes_is_asked_again_and_then_given_up(world: World) -> None:
    world.returned(LONE)
    for _ in range(3):
        world.clock.forward(seconds=60)
        assert len(world.ask()) == 1
        world.clock.forward(seconds=TIMEOUT.total_seconds())
        world.controller.run()
        assert world.state(LONE) is HealthState.RETURNED
    world.controller.run()
    (observation,) = world.store.open_observations()
    assert observation.code == "scrub-lost"
    assert "of 3 scrubs nobody knows what came" in observation.evidence


def test_a_host_that_never_asks_is_told_of_in_the_end(world: World) -> None:
    world.returned(LONE)
    world.clock.forward(seconds=3 * TIMEOUT.total_seconds())
    world.restart()  # while nobody could answer there is nothing to be late for
    world.clock.forward(seconds=2 * TIMEOUT.total_seconds())
    world.controller.run()
    assert world.store.open_observations() == []
    world.clock.forward(seconds=3 * TIMEOUT.total_seconds())
    world.controller.run()
    (observation,) = world.store.open_observations()
    assert (observation.code, world.state(LONE)) == ("scrub-lost", HealthState.RETURNED)


def test_a_host_that_is_busy_is_asked_again_with_pauses_and_nothing_is_lost(world: World) -> None:
    world.returned(LONE)
    pauses = []
    for _ in range(4):
        (order,) = world.ask()
        world.ask(done(order, ScrubOutcome.BUSY, reason="in use by qemu"))
        begin = world.clock()
        while not world.ask():
            world.clock.forward(seconds=5)
        pauses.append((world.clock() - begin) / timedelta(seconds=1))
        world.ask(done(world.ask()[0], ScrubOutcome.BUSY))
        world.clock.forward(seconds=TIMEOUT.total_seconds())
    assert pauses == sorted(pauses)
    assert pauses[0] == 10
    assert pauses[-1] > 100
    assert world.state(LONE) is HealthState.RETURNED


def test_one_that_is_to_be_accepted_is_scrubbed_first_and_given_to_nobody(world: World) -> None:
    """It went bad below a server and was repaired: Nova has kept it reserved since that server."""

    def told() -> GpuHealth:
        record = world.store.gpu(HOST, LONE)
        assert record is not None
        return record

    world.returned(LONE)
    for state in (HealthState.QUARANTINED, HealthState.IN_REPAIR, HealthState.TO_ACCEPT):
        assert world.store.put(*become(replace(told(), generation=None), state, world.clock(), "as it goes"))
    assert world.ask() == []
    world.controller.run()
    place = SitePlace(HOST, LONE, "v100", "slot", once=True)
    world.clock.forward(seconds=2)
    gpu_observations = {place.name: GpuObservation(reserved=True)}
    lent = Circumstances(world.clock(), gpu_observations, lent={place.name})
    assert not plan_health([place], [told()], [], world.service.rules, lent).changes, "somebody's server comes and goes"
    (change,) = plan_health(
        [place], [told()], [], world.service.rules, Circumstances(world.clock(), gpu_observations)
    ).changes
    assert world.store.put(replace(change.gpu, generation=GENERATION), *change.events)
    (order,) = world.ask()
    world.ask(done(order, ScrubOutcome.UNKNOWN))
    assert world.state(LONE) is HealthState.RETURNED
    world.clock.forward(minutes=1)
    (order,) = world.ask()
    world.ask(done(order))
    assert world.state(LONE) is HealthState.TO_ACCEPT
    name = provider_name(HOST, LONE)
    assert clean_providers(world.store.gpus()) == {name: GENERATION}, "the ledger takes Nova's reservation over"
    again = plan_health([place], [told()], [], world.service.rules, Circumstances(world.clock(), gpu_observations))
    assert not again.changes
    world.placement[name] = SeenProvider(True, GENERATION + 1)
    world.controller.run()
    assert world.state(LONE) is HealthState.RETURNED, "it was used in between"


def test_a_reservation_that_is_not_the_one_that_was_seen_is_not_released(world: World) -> None:
    world.returned(LONE)
    (order,) = world.ask()
    world.ask(done(order))
    world.placement[provider_name(HOST, LONE)] = SeenProvider(True, GENERATION + 2)  # somebody has had it since
    world.enforce()
    assert not world.free(LONE)
    world.controller.run()
    gpu = world.store.gpu(HOST, LONE)
    assert gpu is not None
    assert (gpu.state, gpu.generation) == (HealthState.RETURNED, None)


def test_what_somebody_else_releases_is_fine_and_said_so(world: World) -> None:
    world.returned(LONE)
    world.placement[provider_name(HOST, LONE)] = SeenProvider(False, GENERATION + 1)
    world.controller.run()
    gpu = world.store.gpu(HOST, LONE)
    assert gpu is not None
    assert (gpu.state, gpu.cause) == (HealthState.FINE, "somebody else has released it, without a scrub")


def test_one_that_nova_has_not_reserved_is_kept_back_and_not_given_on(world: World) -> None:
    """Nova 31, or a device_spec without one_time_use: `_handle_one_time_use` of nova 32.0.0 is not there, or has
    nothing to do, and the provider has no trait (nova/compute/pci_placement_translator.py)."""
    gpu = GpuHealth(HOST, LONE, "v100", HealthState.IN_USE, world.clock())
    assert world.store.put(*become(gpu, HealthState.RETURNED, world.clock(), "its server is gone"))
    world.given_on = True
    world.controller.run()
    (observation,) = world.store.open_observations()
    assert (observation.code, observation.gpu) == ("not-reserved", f"{HOST}/{LONE}")
    record = world.store.gpu(HOST, LONE)
    assert record is not None
    place = SitePlace(HOST, LONE, "v100", "slot", once=True)
    around = Circumstances(world.clock(), {place.name: GpuObservation()})
    (change,) = plan_health([place], [record], [observation], world.service.rules, around).changes
    assert (change.gpu.state, change.gpu.signal) == (HealthState.QUARANTINED, "not-reserved")


def test_one_that_nova_never_used_is_fine(world: World) -> None:
    """Placement gave it to a server whose claim failed on the host: Nova reserves what it allocates there only."""
    gpu = GpuHealth(HOST, LONE, "v100", HealthState.IN_USE, world.clock())
    assert world.store.put(*become(gpu, HealthState.RETURNED, world.clock(), "its server is gone"))
    world.controller.run()
    assert (world.state(LONE), world.store.open_observations()) == (HealthState.FINE, [])


def test_one_that_the_ledger_keeps_for_a_booking_is_fine(world: World) -> None:
    world.returned(LONE)
    (order,) = world.ask()
    world.ask(done(order))
    name = provider_name(HOST, LONE)
    world.ledger.upkeep.records.set_value("v100", "holds", f"{name}={GENERATION}")
    world.controller.run()
    assert (world.state(LONE), world.free(LONE)) == (HealthState.FINE, False)


def test_clocks_that_go_back_and_forth_neither_release_nor_stick(world: World) -> None:
    world.returned(LONE)
    (order,) = world.ask()
    world.clock.forward(hours=-5)
    world.controller.run()
    assert world.state(LONE) is HealthState.SCRUBBING
    world.clock.forward(seconds=TIMEOUT.total_seconds())
    world.controller.run()
    assert world.state(LONE) is HealthState.RETURNED
    world.ask(done(order))  # too late: it was asked for again
    assert world.state(LONE) is not HealthState.CHECKED
    world.clock.forward(hours=5)
    world.controller.run()
    assert not world.free(LONE)


@pytest.mark.parametrize("writes", range(12))
def test_after_a_kill_at_any_write_it_goes_on_and_is_scrubbed_before_it_is_free(world: World, writes: int) -> None:
    world.returned(LONE, LEADER, PEER)
    scrubbed: set[str] = set()
    world.store.writes_left = writes
    waiting: list[ScrubResult] = []

    def work() -> None:
        nonlocal waiting
        for _ in range(12):
            orders = world.ask(*waiting)  # the host keeps its results until they were taken
            waiting = []
            for order in orders:
                functions = (LEADER, PEER) if order.address in (LEADER, PEER) else (LONE,)
                scrubbed.update(functions)
                waiting = [done(order, ScrubOutcome.CLEAN, *functions)]
            world.controller.run()
            world.enforce()
            assert all(address in scrubbed for address in GROUPS if address != OTHER and world.free(address))

    with suppress(Killed):
        work()
    world.restart()
    work()
    assert all(world.free(address) for address in (LONE, LEADER, PEER))
    assert {world.state(address) for address in (LONE, LEADER, PEER)} == {HealthState.FINE}
