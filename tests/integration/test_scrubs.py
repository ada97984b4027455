"""GPUs that Nova uses once, on the real services: returned, scrubbed, released in their generation, or out of use.

A lab of its own, as the example site has no such pool. The host is a recording: what its scrubs come to is said here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.health.controllers.health import Watched, open_health
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.model.booking import Ask, Person
from gpuyard.model.gpu import provider_name
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard_lab import control, portal
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.integration.conftest import start_lab
from tests.support.booked_sites import ShiftedClock, open_ledger

pytestmark = [pytest.mark.lab, pytest.mark.slow]
HOST, FLAVOR = "cld-dfa-gpu-02", "small"
ROOT = Person("u-root", "root", "p-admin", "admin", frozenset({"admin", "member", "reader"}))


@dataclass
class Once:
    """A lab with one host, whose GPUs are used once."""

    operator: CloudApi
    compiled: CompiledSite
    exercise: Exercise
    ledger: Ledger
    clock: ShiftedClock
    watched: Watched

    def look(self) -> None:
        """What the loops do, one after the other."""
        self.watched.bookings.run()
        self.watched.controller.run()
        self.watched.scrubs.run()

    def look_until(self, gpu: GpuHealth, state: HealthState) -> None:
        """Records have whole seconds: what follows from a state follows from a look of a later second."""
        end = monotonic() + 20
        while self.watched.service.gpu(gpu.name).state is not state and monotonic() < end:
            self.look()
        assert self.watched.service.gpu(gpu.name).state is state

    def gpus(self, state: HealthState) -> list[GpuHealth]:
        return [gpu for gpu in self.watched.service.store.gpus() if gpu.state is state]

    def inventory(self, gpu: GpuHealth) -> tuple[int, int]:
        """(reserved, generation) of its provider."""
        (provider,) = [
            row["uuid"] for row in self.operator.providers() if row["name"] == provider_name(gpu.host, gpu.address)
        ]
        answer = self.operator.get("placement", f"/resource_providers/{provider}/inventories")
        (row,) = answer["inventories"].values()
        return row["reserved"], answer["resource_provider_generation"]

    def used(self) -> GpuHealth:
        """A GPU that had a server, which is gone."""
        boot = self.exercise.boot(FLAVOR)
        assert boot.status == "ACTIVE", boot.fault
        self.look()
        (gpu,) = self.gpus(HealthState.IN_USE)
        assert self.inventory(gpu)[0] == 1  # Nova has reserved it
        self.exercise.delete([boot.server_id])
        self.look()
        health = self.watched.service.gpu(gpu.name)
        assert (health.state, (1, health.generation)) == (HealthState.RETURNED, self.inventory(gpu))
        return health

    def ordered(self, *results: ScrubResult) -> ScrubOrder:
        (order,) = self.watched.scrub_desk.exchange(HOST, results)
        return order


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Once]:
    folder = tmp_path_factory.mktemp("once")
    document = {
        "site": "once",
        "release": "2026.2",
        "hosts": {HOST: {"recording": str(EXAMPLE_SITE.parent / "recordings" / "t4-node.json")}},
        "pools": {"t4": {"models": ["10de:1eb8"], "one_time_use": True}},
        "flavors": {FLAVOR: {"vcpus": 2, "ram": "4 GiB", "disk": "20 GiB", "gpus": {"t4": 1}}},
        "projects": {"demo": {"gpus": {"t4": 4}}},
        "booking": {"must_book": False, "most_active": 10},
        "health": {},
    }
    site = folder / "site.yaml"
    site.write_text(json.dumps(document))
    running = start_lab(folder / "lab", site=site)
    try:
        loaded = load_site(site)
        portal.apply_site(running.lab, loaded)
        operator, user = (connect(name, running.lab.clouds_file) for name in (ADMIN_CLOUD, DEMO_CLOUD))
        compiled, clock = loaded.compiled, ShiftedClock()
        ledger = open_ledger(folder, compiled, clock)
        rules = compiled.site.health
        assert rules is not None
        taker = SnapshotTaker(operator, compiled.gpus, compiled.flavors)
        watched = open_health(compiled, rules, operator, ledger, taker, clock)
        made = Once(operator, compiled, Exercise(operator, user, compiled), ledger, clock, watched)
        made.look()
        made.look()
        yield made
        ledger.close()
    finally:
        control.down(running.settings)


def done(order: ScrubOrder, outcome: ScrubOutcome, reason: str = "") -> ScrubResult:
    return ScrubResult(order.id, order.address, outcome, reason, (order.address,), "bus", 1.3, 1.1, ("it answers",))


def test_what_came_back_clean_is_released_in_its_generation_and_free_again(once: Once) -> None:
    gpu = once.used()
    order = once.ordered()
    assert order.address == gpu.address
    once.look()
    assert once.inventory(gpu) == (1, gpu.generation)  # nothing is released on hope
    assert once.watched.scrub_desk.exchange(HOST, [done(order, ScrubOutcome.CLEAN)]) == []
    assert gpu.name in {gpu.name for gpu in once.gpus(HealthState.CHECKED)}
    once.look()
    reserved, generation = once.inventory(gpu)
    assert (reserved, generation) == (0, (gpu.generation or 0) + 1)
    once.look_until(gpu, HealthState.FINE)


def test_a_nova_that_reserves_is_no_drift(once: Once) -> None:
    devices = read_world(once.operator, once.compiled).devices
    assert {devices[gpu.provider_name].one_time_use for gpu in once.compiled.gpus} == {True}


def test_what_its_host_refuses_is_out_of_use_until_somebody_says_so_and_then_scrubbed(once: Once) -> None:
    gpu = once.used()
    order = once.ordered()
    once.watched.scrub_desk.exchange(HOST, [done(order, ScrubOutcome.REFUSED, "it is with nvidia")])
    once.look()
    health = once.watched.service.gpu(gpu.name)
    assert (health.state, health.signal) == (HealthState.QUARANTINED, "scrub-failed")
    assert once.inventory(gpu)[0] == 1
    once.watched.service.release(gpu.name, "it is with vfio-pci again", ROOT)
    once.look_until(gpu, HealthState.RETURNED)  # not clean by a word
    assert once.inventory(gpu)[0] == 1
    again = once.ordered()
    once.watched.scrub_desk.exchange(HOST, [done(again, ScrubOutcome.CLEAN)])
    once.look_until(gpu, HealthState.FINE)
    assert once.inventory(gpu)[0] == 0


def test_one_that_is_booked_is_kept_for_its_booking_when_it_is_clean(once: Once) -> None:
    gpu = once.used()
    begin = (datetime.now(UTC) + timedelta(minutes=5)).replace(microsecond=0)
    person = Person("u-ada", "ada", "p-physics", "physics", frozenset({"member"}), "ada@example.org")
    ask = Ask("t4", begin, begin + timedelta(hours=1), 1, gpu=gpu.name)
    booking = once.ledger.create(ask, person)[0]
    order = once.ordered()
    once.watched.scrub_desk.exchange(HOST, [done(order, ScrubOutcome.CLEAN)])
    once.look()
    assert once.inventory(gpu) == (1, gpu.generation)  # from Nova's to the ledger's, and nobody's in between
    once.look_until(gpu, HealthState.FINE)
    once.ledger.cancel(booking.id, ROOT)
    once.look()
    assert once.inventory(gpu)[0] == 0
