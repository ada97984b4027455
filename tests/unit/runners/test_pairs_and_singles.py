"""Runners with a whole group, and runners with one GPU or several from anywhere, do not take each other's GPUs,
whatever Nova chooses; nor do servers of people, which have plain flavors, take a group that a runner has leased before
Nova is asked for that runner's server.

What Nova may choose is its own rule (nova 34.0.0): an alias becomes one group of requests per device, of its resource
class and with its required traits, and nothing else can be said (nova/objects/request_spec.py,
`generate_request_groups_from_pci_requests`, which has a TODO for forbidden traits); the scheduler takes the first
allocation candidate of a host (nova/scheduler/manager.py, `allocation_candidates[0]`), in whatever order Placement has
them. No weigher tells devices of a host apart. So here any device that fits may be chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.bookings.controllers.group_holds import open_group_holds
from gpuyard.bookings.controllers.site_ledger import open_ledger
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.model.booking import Booking
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.servers import ServerError, ServerProblem, ServerWish
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.controllers.slot_kinds import AGAIN_S, SlotKinds, open_slot_kinds
from gpuyard.runners.records import ServerChoice
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import LONE_TRAIT
from gpuyard.site.objects import MOST_VARIANTS
from gpuyard_lab.github.records import JobOrder
from tests.support.clouds import SmallCloud
from tests.support.simulated_runners import TOKEN, Clock, SimulatedRunners, runner_site
from tests.support.sites import flavor, site
from tests.support.sysfs import V100, Sysfs, epyc

POOL = "v100"
SINGLE, PAIR = ServerChoice(POOL, "gpu_tiny", "tiny", 1), ServerChoice(POOL, "gpu_pair", "tiny", 2, same_group=True)
TWO = ServerChoice(POOL, "gpu_two", "tiny", 2)
WISHES = {(choice.gpus, choice.same_group): choice for choice in (SINGLE, PAIR, TWO)}
SETS: dict[str, Any] = {
    "sets": {
        "gpuyard-v100": {"flavors": ["gpu_tiny"], "images": ["tiny"]},
        "gpuyard-pair": {"flavors": ["gpu_pair"], "images": ["tiny"]},
    }
}


@dataclass
class AnyNova:
    """The devices of a site as Nova's own options tell of them, and a scheduler that chooses as it is told to."""

    compiled: CompiledSite
    taken: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Server -> (host, address)."""
    reserved: Callable[[], Collection[tuple[str, str]]] = tuple
    """(host, address) of GPUs that are held in Placement."""

    def __post_init__(self) -> None:
        self.aliases: dict[str, dict[str, str]] = {}
        self.devices: dict[tuple[str, str], dict[str, str]] = {}
        for options in self.compiled.options:
            for option in options.options:
                if (option.section, option.key) == ("pci", "alias"):
                    spec = json.loads(option.value)
                    self.aliases[spec["name"]] = spec
                elif (option.section, option.key) == ("pci", "device_spec"):
                    spec = json.loads(option.value)
                    self.devices[options.host or "", spec["address"]] = spec

    def create(self, server: str, flavor: str, choice: int) -> bool:
        """False: no valid host."""
        (specs,) = (site_flavor.extra_specs for site_flavor in self.compiled.flavors if site_flavor.name == flavor)
        needs = [self.aliases[name] for name, count in asked_devices(specs).items() for _ in range(count)]
        busy = {gpu for gpus in self.taken.values() for gpu in gpus} | {*self.reserved()}
        candidates = []
        for host in self.compiled.site.hosts:
            free = {gpu: spec for gpu, spec in self.devices.items() if gpu[0] == host and gpu not in busy}
            able = [[gpu for gpu, spec in free.items() if _fits(need, spec)] for need in needs]
            candidates += [gpus for gpus in product(*able) if len({*gpus}) == len(gpus)]
        if not candidates:
            return False
        self.taken[server] = list(candidates[choice % len(candidates)])
        return True


def _fits(need: Mapping[str, str], device: Mapping[str, str]) -> bool:
    """The set of one letter is in one group of a host, which Placement has by the trait."""
    traits = {trait for trait in need.get("traits", "").split(",") if trait}
    return need["resource_class"] == device["resource_class"] and traits <= {*device.get("traits", "").split(",")}


@dataclass
class Race:
    """Leases, and servers that Nova is asked for later and in any order."""

    compiled: CompiledSite
    ledger: Ledger
    clock: Clock
    in_slots: bool = True
    held: bool = False
    """Whether groups are held from their leases on."""
    waiting: list[Booking] = field(default_factory=list)
    running: list[Booking] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Flavors for which there was no valid host."""
    number: int = 0

    def __post_init__(self) -> None:
        cloud = SmallCloud(self.compiled)
        api: Any = cloud
        names = {gpu.provider_name: (gpu.host, gpu.address) for gpu in self.compiled.gpus}
        self.nova = AnyNova(self.compiled, reserved=lambda: [names[name] for name in cloud.reserved])
        self.site = RunnerSite(self.compiled, "p-runners")
        self.groups = open_group_holds(self.compiled, self.ledger, api)

    def lease(self, choice: ServerChoice) -> None:
        self.number += 1
        end = self.clock() + timedelta(hours=1)
        try:
            lease = self.ledger.leases.take(
                POOL, choice.gpus, choice.same_group, end, f"r{self.number}", "p-runners", "runners", "", yields=False
            )
        except RefusedError:
            return
        self.waiting.append(lease)
        if self.held:
            self.groups.place(lease.id)

    def post(self, which: int, choice: int) -> None:
        if not self.waiting:
            return
        lease = self.ledger.get(self.waiting.pop(which % len(self.waiting)).id)
        lanes = {lane.id: lane for lane in self.ledger.lanes(POOL)}
        wish = WISHES[lease.ask.gpus, lease.ask.same_group]
        flavor = self.site.nova_flavors(wish, [lanes[id] for id in lease.lanes], in_slots=self.in_slots)[0]
        if self.held:
            assert self.groups.lift(lease.id) == ""
        if self.nova.create(lease.server, flavor, choice):
            self.running.append(lease)
        else:
            self.lost.append(flavor)
            self.ledger.leases.end(lease.id, "no valid host")

    def person(self, choice: int) -> None:
        """Somebody starts a server with one GPU, and the loop of bookings sees it."""
        self.number += 1
        self.nova.create(f"p{self.number}", "gpu_tiny", choice)
        self.see()

    def see(self) -> None:
        """The loop of bookings looks."""
        lane_of = {(lane.host, gpu): lane.id for lane in self.ledger.lanes(POOL) for gpu in lane.addresses}
        claims = {
            booking.id: tuple(sorted({lane_of[gpu] for gpu in self.nova.taken[booking.server]}))
            for booking in self.running
        }
        self.ledger.upkeep.record_claims(claims)
        others = {lane_of[gpu] for server, gpus in self.nova.taken.items() if server[0] == "p" for gpu in gpus}
        self.ledger.leases.tell(POOL, "", others)

    def end(self, which: int) -> None:
        if self.running:
            lease = self.running.pop(which % len(self.running))
            del self.nova.taken[lease.server]
            self.ledger.leases.end(lease.id, "its job is over")

    def clear(self) -> None:
        for lease in (*self.waiting, *self.running):
            self.ledger.leases.end(lease.id, "the end")
        self.ledger.leases.tell(POOL, "", ())
        for word in ("holds", "lifted"):
            self.ledger.upkeep.records.set_value(POOL, word, None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledSite:
    return runner_site(tmp_path_factory.mktemp("site"), SETS)


class Ground:
    """What races are run on. Its repr is short: Hypothesis shows it beside what made a test fail."""

    def __init__(self, compiled: CompiledSite, ledger: Ledger, clock: Clock) -> None:
        self.compiled, self.ledger, self.clock = compiled, ledger, clock

    def race(self, *, in_slots: bool = True, held: bool = False) -> Race:
        return Race(self.compiled, self.ledger, self.clock, in_slots, held)


@pytest.fixture(scope="module")
def ground(compiled: CompiledSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    clock = Clock()
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with closing(open_ledger(compiled, f"sqlite:///{path}", clock)) as made:
        yield Ground(compiled, made, clock)


def test_a_pair_lost_to_singles_that_nova_put_on_leaders(ground: Ground) -> None:
    """What was wrong: lone GPUs are free, and both singles are put on the leaders of the groups. With the traits they
    cannot be."""
    for in_slots, lost in ((False, ["gpu_pair-a", "gpu_pair-b"]), (True, [])):
        race = ground.race(in_slots=in_slots)
        for choice in (SINGLE, SINGLE, PAIR, PAIR):
            race.lease(choice)
        for _ in range(2):
            leaders = [n for n in range(4) if _is_leader(race, n)] or [0]
            race.post(0, leaders[0])
        race.post(0, 0)
        race.post(0, 0)
        assert sorted(race.lost) == lost
        race.clear()


def machine(**groups: int) -> Sysfs:
    """A host with V100: address of the first of a group -> how many GPUs it has."""
    made = Sysfs()
    for number, (bus, size) in enumerate(groups.items()):
        for slot in range(size):
            made.function(f"0000:{bus[1:]}:{slot:02x}.0", V100, group=20 + number)
    return made


def site_of(folder: Path, **hosts: Sysfs) -> CompiledSite:
    """With runners, and flavors with one V100, two from anywhere, and a whole group of two."""
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    sets = {choice.flavor: {"flavors": [choice.flavor], "images": ["tiny"]} for choice in WISHES.values()}
    enrolment = {"organization": "demo", "url": "https://github.test", "token_file": "token"}
    document = {
        "flavors": {
            choice.flavor: flavor(gpus={POOL: choice.gpus}, same_group=choice.same_group) for choice in WISHES.values()
        },
        "images": {"tiny": {"properties": {"hw_machine_type": "q35"}}},
        "booking": {},
        "runners": {"project": "github-runners", "network": "none", "enrolments": [enrolment], "sets": sets},
    }
    return site(folder, document, hosts).compiled


@pytest.fixture(scope="module", params=["two hosts", "groups alone"])
def grounds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Two hosts with lone GPUs and groups; one whose GPUs are all in groups, of two sizes."""
    folder = tmp_path_factory.mktemp("grounds")
    hosts = {"gpu-1": epyc(), "gpu-2": machine(b41=2, b51=1, b61=1, b71=1)}
    if request.param == "groups alone":
        hosts = {"gpu-1": machine(b41=2, b51=2, b61=3), "gpu-2": machine(b41=2, b51=3)}
    made, clock = site_of(folder / "site", **hosts), Clock()
    with closing(open_ledger(made, f"sqlite:///{folder / 'ledger.db'}", clock)) as ledger:
        yield Ground(made, ledger, clock)


def test_a_pair_lost_to_a_runner_with_two_gpus_from_anywhere(tmp_path: Path) -> None:
    """What was wrong: two lone GPUs are free, and the runner is put on the leaders of both groups."""
    made, clock = site_of(tmp_path / "site", gpu=machine(b41=2, b51=2, b61=1, b71=1)), Clock()
    with closing(open_ledger(made, f"sqlite:///{tmp_path / 'ledger.db'}", clock)) as ledger:
        for in_slots, lost in ((False, ["gpu_pair-a", "gpu_pair-b"]), (True, [])):
            race = Ground(made, ledger, clock).race(in_slots=in_slots)
            for choice in (PAIR, PAIR, TWO):
                race.lease(choice)
            assert len(race.waiting) == 3
            race.post(2, 0)  # of all ways to have two: the leaders of A and B
            race.post(0, 0)
            race.post(0, 0)
            assert sorted(race.lost) == lost
            race.clear()


def test_a_pair_lost_to_a_single_where_all_gpus_are_in_groups(tmp_path: Path) -> None:
    """What was wrong: a single that leases B's leader is put on A's, which a pair has leased."""
    made, clock = site_of(tmp_path / "site", gpu=machine(b41=2, b51=2)), Clock()
    api: Any = SmallCloud(made)
    kinds = open_slot_kinds(made, api)
    assert kinds.known(POOL), "each group of a host has a trait of its own"
    with closing(open_ledger(made, f"sqlite:///{tmp_path / 'ledger.db'}", clock)) as ledger:
        for in_slots, many in ((False, 1), (kinds.known(POOL), 0)):
            race = Ground(made, ledger, clock).race(in_slots=in_slots)
            for choice in (PAIR, SINGLE):
                race.lease(choice)
            (lane,) = race.waiting[0].lanes
            (leader,) = (ledger_lane.addresses[0] for ledger_lane in ledger.lanes(POOL) if ledger_lane.id == lane)
            race.post(1, ["0000:41:00.0", "0000:51:00.0"].index(leader))
            race.post(0, 0)
            assert len(race.lost) == many
            race.clear()


def _is_leader(race: Race, choice: int) -> bool:
    """Whether Nova's choice of that number for the flavor of any V100 is the leader of a group."""
    assert race.nova.create("tried", "gpu_tiny", choice)
    (gpu,) = race.nova.taken.pop("tried")
    return "SET" in race.nova.devices[gpu].get("traits", "")


def lives(*kinds: ServerChoice, people: bool = False) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """What happens to leases of these kinds, and whether people start servers besides."""
    steps = [
        st.tuples(st.just("lease"), st.sampled_from(kinds)),
        st.tuples(st.just("post"), st.integers(0, 5), st.integers(0, 11)),
        st.tuples(st.just("see")),
        st.tuples(st.just("end"), st.integers(0, 5)),
    ]
    if people:
        steps.append(st.tuples(st.just("person"), st.integers(0, 11)))
    return st.lists(st.one_of(steps), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=lives(SINGLE, PAIR))
def test_every_lease_finds_its_kind_of_slot_whatever_nova_chooses(ground: Ground, steps: list[tuple[Any, ...]]) -> None:
    race = ground.race()
    try:
        for name, *words in steps:
            getattr(race, name)(*words)
        while race.waiting:
            race.post(0, 3)
        assert race.lost == []
    finally:
        race.clear()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=lives(SINGLE, PAIR, TWO))
def test_only_who_wants_several_of_one_host_from_anywhere_may_find_none(
    grounds: Ground, steps: list[tuple[Any, ...]]
) -> None:
    """Of its kinds there are enough, but Nova may have put singles on its host."""
    race = grounds.race()
    try:
        for name, *words in steps:
            getattr(race, name)(*words)
        while race.waiting:
            race.post(0, 3)
        assert [flavor_name for flavor_name in race.lost if not flavor_name.startswith("gpu_two-")] == []
    finally:
        race.clear()


def test_a_pair_lost_its_group_to_somebodys_plain_flavor(ground: Ground) -> None:
    """What was wrong: the group of a pair's lease is free for as long as GitHub takes to register the runner."""
    for held, lost in ((False, 2), (True, 0)):
        race = ground.race(held=held)
        for _ in range(2):
            race.lease(PAIR)
        assert len(race.waiting) == 2
        for _ in range(2):
            race.person(next((number for number in range(4) if _is_leader(race, number)), 0))
        assert len(race.nova.taken) == 2, "lone GPUs are free"
        race.post(0, 0)
        race.post(0, 0)
        assert len(race.lost) == lost
        race.clear()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=lives(SINGLE, PAIR, people=True))
def test_no_pair_loses_its_group_to_anybody(ground: Ground, steps: list[tuple[Any, ...]]) -> None:
    """Runners with one GPU may find none: people may have the lone ones that they have leased."""
    race = ground.race(held=True)
    try:
        for name, *words in steps:
            getattr(race, name)(*words)
        while race.waiting:
            race.post(0, 3)
        assert [flavor_name for flavor_name in race.lost if flavor_name.startswith("gpu_pair")] == []
    finally:
        race.clear()


def test_runners_of_several_gpus_have_a_flavor_for_each_choice_of_kinds_that_a_host_has(tmp_path: Path) -> None:
    made = site_of(tmp_path / "site", gpu=epyc(), other=machine(b41=2, b51=1))
    variants = {flavor.name: flavor for flavor in made.flavors if flavor.variant_of == "gpu_two"}
    devices = {name: asked_devices(variant.extra_specs) for name, variant in variants.items()}
    assert devices == {
        "gpu_two-lone": {"v100-lone": 2},
        "gpu_two-lone-set-a": {"v100-lone": 1, "v100-set-a": 1},
        "gpu_two-lone-set-b": {"v100-lone": 1, "v100-set-b": 1},
        "gpu_two-set-a-set-b": {"v100-set-a": 1, "v100-set-b": 1},
    }
    assert {variant.extra_specs["resources:CUSTOM_GPU_V100_COUNT"] for variant in variants.values()} == {"2"}
    assert not any(variant.public for variant in variants.values())


def test_a_flavor_has_no_more_variants_than_anybody_can_look_over(tmp_path: Path) -> None:
    many = {f"b{0x41 + number:02x}": 2 for number in range(16)}
    made = site_of(tmp_path / "site", gpu=machine(**many, b11=1, b12=1))
    variant_names = [flavor.name for flavor in made.flavors if flavor.variant_of == "gpu_two"]
    assert len(variant_names) == MOST_VARIANTS
    assert variant_names[:2] == ["gpu_two-lone", "gpu_two-lone-set-a"], "those that leave most groups whole"


def test_runners_of_one_gpu_have_a_flavor_for_each_kind_of_slot(compiled: CompiledSite) -> None:
    """Nobody else sees them, and the classes that limits count are asked for as by the flavor that they stand for."""
    plain = next(flavor for flavor in compiled.flavors if flavor.name == "gpu_tiny")
    made = {flavor.name: flavor for flavor in compiled.flavors if flavor.variant_of == "gpu_tiny"}
    assert sorted(made) == ["gpu_tiny-lone", "gpu_tiny-set-a", "gpu_tiny-set-b"]
    assert asked_devices(made["gpu_tiny-lone"].extra_specs) == {"v100-lone": 1}
    assert asked_devices(made["gpu_tiny-set-b"].extra_specs) == {"v100-set-b": 1}
    for variant in made.values():
        assert not variant.public
        assert variant.projects == {"github-runners"}
        assert (variant.vcpus, variant.ram, variant.disk) == (plain.vcpus, plain.ram, plain.disk)
        assert variant.extra_specs["resources:CUSTOM_GPU_V100_COUNT"] == "1"


def test_a_flavor_that_nova_refuses_is_followed_by_the_plain_one(tmp_path: Path) -> None:
    """As when it is not made yet, or Nova's API does not know its alias yet: 400 (nova/pci/request.py raises
    PciRequestAliasNotDefined, which nova/api/openstack/compute/servers.py answers so)."""
    world = SimulatedRunners(tmp_path, in_slots=True)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    create, flavor_names = world.nova.create, []

    def refuse(wish: ServerWish) -> str:
        flavor_names.append(wish.flavor)
        if wish.flavor != "gpu_tiny":
            raise ServerError("400 PCI alias v100-lone is not defined", 400, ServerProblem.REFUSED)
        return create(wish)

    world.nova.create = refuse  # type: ignore[method-assign]
    world.github.forge.push("demo/science", [JobOrder(("gpuyard-v100",), 10, "success")])
    world.until(lambda: bool(world.nova.posts))
    assert flavor_names == ["gpu_tiny-lone", "gpu_tiny"]
    world.until(world.at_rest)


def test_they_are_used_once_placement_has_the_trait(compiled: CompiledSite) -> None:
    """Placement answers 400 for a trait that it has never heard of (placement 16: TraitNotFound, "No such trait(s)", of
    which placement/handlers/resource_provider.py makes one)."""
    cloud, time = SmallCloud(compiled), [0.0]
    lone = {gpu.provider_name for gpu in compiled.gpus if gpu.marked_lone}
    api: Any = cloud
    kinds: SlotKinds = open_slot_kinds(compiled, api)
    kinds.steady = lambda: time[0]
    everything, marked = cloud.providers, set[str]()

    def providers(required: str = "") -> list[dict[str, Any]]:
        if required and not marked:
            raise CloudError("400 No such trait(s)", 400)
        assert required in ("", LONE_TRAIT)
        return [row for row in everything() if not required or row["name"] in marked]

    cloud.providers = providers  # type: ignore[method-assign]
    assert not kinds.known(POOL)
    marked |= {min(lone)}
    time[0] += AGAIN_S
    assert not kinds.known(POOL), "one host is deployed, another is not"
    marked |= lone
    assert not kinds.known(POOL), "not asked again so soon"
    time[0] += AGAIN_S
    assert kinds.known(POOL)
    assert not kinds.known("t4"), "it has no groups"
