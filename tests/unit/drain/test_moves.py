"""Servers leave a host: each has a verdict with its reason, none is promised what another is, or what is booked."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.diagnosis.capacity.facts import CloudResources
from gpuyard.drain.campaign.kept_times import kept_times
from gpuyard.drain.cli.host_moves import lines
from gpuyard.drain.facts import GuestServer, KeptTime, MovesFacts
from gpuyard.drain.kept import kept_of
from gpuyard.drain.live import why_not_live
from gpuyard.drain.losses import losses
from gpuyard.drain.planner import ACTS, MovePlan, MoveRules, MoveVerdict, MoveWay, plan_moves
from gpuyard.drain.read import MovesReader
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.model.gpu import GpuRole, GpuState, GpuStatus
from gpuyard.model.world import HostService, Snapshot
from gpuyard.nova.request import request_of
from gpuyard.nova.server_states import MigrationSeen
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.disabled_reason import ClosedTag, Purpose, tag_of
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.load import LoadedSite
from tests.support.rooms import NOON, free_of, room_of, taken
from tests.support.sites import site
from tests.support.sysfs import epyc

HOUR = timedelta(hours=1)
SOURCE = "left"
DOCUMENT: dict[str, Any] = {
    "flavors": {
        "one": {"vcpus": 2, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 1}},
        "pair": {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 2}, "same_group": True},
        "cpu": {"vcpus": 4, "ram": "8 GiB", "disk": "30 GiB"},
    },
}
HOSTS = {name: epyc() for name in (SOURCE, "mid", "right")}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> LoadedSite:
    """Three hosts with six V100 each: two lone ones, and two pairs."""
    return site(tmp_path_factory.mktemp("three"), DOCUMENT, HOSTS)


def guest(loaded: LoadedSite, flavor: str, number: int = 1, **more: Any) -> GuestServer:
    nova_flavor = next(candidate for candidate in room_of(loaded).flavors if candidate.name == flavor)
    gpus = len(request_of(nova_flavor, room_of(loaded).aliases).devices)
    mine = [gpu.provider_name for gpu in loaded.compiled.gpus if gpu.host == SOURCE]
    server = GuestServer(
        f"id-{number}", f"vm-{number}", "ACTIVE", "", "p-demo", "demo", "ada", nova_flavor,
        tuple(mine[number % len(mine) :][:gpus]),
    )  # fmt: skip
    return replace(server, **more)


def lone(loaded: LoadedSite) -> CloudResources:
    """As if the hosts had no GPUs but those alone in their groups: all of a model are as good as each other."""
    resources = room_of(loaded)
    alone = {gpu.provider_name for gpu in resources.gpus if gpu.role is GpuRole.LONE}
    hosts = (
        replace(h, devices=tuple(device for device in h.devices if device.provider in alone)) for h in resources.hosts
    )
    return replace(resources, hosts=tuple(hosts), gpus=tuple(gpu for gpu in resources.gpus if gpu.role is GpuRole.LONE))


def without(resources: CloudResources, *gpus: str) -> CloudResources:
    """Others have these."""
    hosts = (
        replace(h, devices=tuple(device for device in h.devices if device.provider not in gpus))
        for h in resources.hosts
    )
    return replace(resources, hosts=tuple(hosts))


def facts(loaded: LoadedSite, *servers: GuestServer, **more: Any) -> MovesFacts:
    resources = more.pop("room", None) or lone(loaded)
    up = HostService(SOURCE, True, True)
    not_live = {server.id: "no variant driver" for server in servers}
    moves_facts = MovesFacts(NOON, SOURCE, up, servers, (), resources, free_of(resources), (), not_live)
    return replace(moves_facts, **more)


def only(plan: MovePlan) -> MoveVerdict:
    (verdict,) = plan.verdicts
    return verdict


def gpus_of(loaded: LoadedSite, *hosts: str) -> list[str]:
    return [gpu.provider_name for gpu in loaded.compiled.gpus if gpu.host in hosts]


def kept(gpus: list[str], start: timedelta, hours: float = 2, **more: Any) -> KeptTime:
    begin = NOON + start
    kept_time = KeptTime("b-1", BookingKind.BOOKING, frozenset(gpus), begin, begin + hours * HOUR, "bob (art)")
    return replace(kept_time, **more)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(Purpose), st.booleans())
def test_no_gpu_is_promised_twice_and_none_that_is_kept(
    three: LoadedSite, seed: int, purpose: Purpose, shelve: bool
) -> None:
    chance = random.Random(seed)
    resources = room_of(three)
    for _ in range(chance.randrange(8)):
        flavor, host = chance.choice(resources.flavors), chance.choice(resources.hosts).node.name
        resources = taken(resources, host, request_of(flavor, resources.aliases), chance) or resources
    others = gpus_of(three, "mid", "right")
    times = tuple(
        kept(chance.sample(others, chance.randrange(1, 4)), HOUR * chance.randrange(-5, 60), id=f"b-{n}")
        for n in range(chance.randrange(5))
    )
    names = [flavor.name for flavor in resources.flavors]
    statuses = ["ACTIVE", "ACTIVE", "SHUTOFF", "ERROR", "PAUSED", "SHELVED", "RESCUE", "VERIFY_RESIZE", "BUILD"]
    servers = tuple(
        guest(three, chance.choice(names), n, status=chance.choice(statuses)) for n in range(chance.randrange(1, 9))
    )
    rules = MoveRules(purpose, shelve)
    plan = plan_moves(facts(three, *servers, room=resources, kept=times), rules)
    assert {verdict.server.id for verdict in plan.verdicts} == {server.id for server in servers}
    assert all(verdict.reason for verdict in plan.verdicts)
    free = {device.provider for host in resources.hosts for device in host.devices}
    soon = {gpu for time in times for gpu in time.gpus if time.start < NOON + rules.ahead and time.end > NOON}
    promised = Counter(gpu for verdict in plan.verdicts for gpu in verdict.gpus)
    assert all(number == 1 for number in promised.values())
    assert promised.keys() <= free - soon - set(gpus_of(three, SOURCE))
    for verdict in plan.verdicts:
        assert verdict.target != SOURCE
        assert bool(verdict.target) == (
            verdict.way in (MoveWay.MIGRATE, MoveWay.LIVE, MoveWay.EVACUATE, MoveWay.CONFIRM)
        )
        assert (verdict.way in ACTS) == (verdict in plan.acts)
        if verdict.target and verdict.way is not MoveWay.CONFIRM:
            assert len(verdict.gpus) == len(request_of(verdict.server.flavor, resources.aliases).devices)
    # What is promised together fits together.
    for verdict in plan.verdicts:
        if verdict.target and verdict.way is not MoveWay.CONFIRM:
            room_after = taken(
                resources,
                verdict.target,
                replace(request_of(verdict.server.flavor, resources.aliases), devices=()),
                chance,
            )
            assert room_after is not None
            resources = room_after


def test_a_server_goes_where_nobody_has_booked(three: LoadedSite) -> None:
    booked = kept(gpus_of(three, "mid"), 3 * HOUR)
    verdict = only(plan_moves(facts(three, guest(three, "one"), kept=(booked,)), MoveRules()))
    assert (verdict.way, verdict.target) == (MoveWay.MIGRATE, "right")
    assert verdict.others == (("mid", f"the GPUs that are free there are {booked}"),)
    assert "booked from Mon 2026-11-23 15:00 UTC to Mon 2026-11-23 17:00 UTC: bob (art)" in verdict.others[0][1]
    assert any("programs that run" in loss for loss in verdict.losses)
    assert verdict.not_live == "no variant driver"


def test_where_some_are_booked_the_host_comes_after_those_where_none_is(three: LoadedSite) -> None:
    booked = kept([gpu.provider_name for gpu in lone(three).gpus if gpu.host == "mid"][:1], 3 * HOUR)
    verdict = only(plan_moves(facts(three, guest(three, "one"), kept=(booked,)), MoveRules()))
    assert verdict.target == "right"


def test_a_booking_far_ahead_is_not_in_the_way(three: LoadedSite) -> None:
    booked = kept(gpus_of(three, "mid", "right"), 30 * HOUR)
    server = guest(three, "one")
    assert only(plan_moves(facts(three, server, kept=(booked,)), MoveRules())).way is MoveWay.MIGRATE
    waits = only(plan_moves(facts(three, server, kept=(booked,)), MoveRules(ahead=2 * timedelta(days=1))))
    assert (waits.way, waits.when) == (MoveWay.WAIT, booked.end)
    assert "look again at Tue 2026-11-24 20:00 UTC" in waits.reason


def test_a_hold_is_no_target_either(three: LoadedSite) -> None:
    held = kept(gpus_of(three, "mid", "right"), -HOUR, kind=BookingKind.HOLD, who="fan is loud")
    waits = only(plan_moves(facts(three, guest(three, "one"), kept=(held,)), MoveRules()))
    assert waits.way is MoveWay.WAIT
    assert all("held from" in why and "fan is loud" in why for _, why in waits.others)


def test_its_own_booking_says_when_it_goes_by_itself(three: LoadedSite) -> None:
    server = guest(three, "one")
    own = kept(list(server.gpus), -HOUR, 2, id="own")
    held = kept(gpus_of(three, "mid", "right"), -HOUR, 9, kind=BookingKind.HOLD)
    waits = only(plan_moves(facts(three, server, kept=(own, held)), MoveRules()))
    assert waits.when == own.end
    assert "its own booking own ends then" in waits.reason


def test_the_largest_choose_first(three: LoadedSite) -> None:
    pairs = [guest(three, f"pair-{letter}", number) for number, letter in enumerate("abab")]
    plan = plan_moves(facts(three, guest(three, "one", 4), guest(three, "one", 5), *pairs), MoveRules())
    assert [verdict.server.flavor.name[:4] for verdict in plan.verdicts][:4] == ["pair"] * 4


# What Nova claims for a server that it moves: test_host_moves.py has it from a real one.


@pytest.mark.parametrize("state", [GpuState.HELD, GpuState.BOOKED, GpuState.STRANDED, GpuState.BLOCKED])
def test_a_host_with_a_gpu_that_is_kept_back_is_no_target(three: LoadedSite, state: GpuState) -> None:
    """Nova may claim that very one, and then the server ends in ERROR."""
    room = without(lone(three), *gpus_of(three, "right"))
    (held, *_) = (gpu for gpu in room.gpus if gpu.host == "mid")
    statuses = {**free_of(room), held.provider_name: GpuStatus(held, state, "fan is loud")}
    moves_facts = facts(three, guest(three, "one"), room=without(room, held.provider_name), statuses=statuses)
    waits = only(plan_moves(moves_facts, MoveRules()))
    assert waits.way is MoveWay.WAIT
    assert ("mid", f"Nova chooses the GPU itself, and may take {held.address}: {state.value}, fan is loud") in (
        waits.others
    )


def test_neither_is_one_with_a_peer_that_is_idle(three: LoadedSite) -> None:
    """Nova does not tell it from the GPU that Placement gave: it would split the group."""
    waits = only(plan_moves(facts(three, guest(three, "one"), room=room_of(three)), MoveRules()))
    assert waits.way is MoveWay.WAIT
    assert {why for _, why in waits.others} == {
        "Nova chooses the GPU itself, and may take 0000:28:00.0: leader or peer of a group"
    }


def test_a_pair_goes_where_no_other_gpu_of_its_model_is_idle(three: LoadedSite) -> None:
    room = room_of(three)
    pair = [gpu.provider_name for gpu in room.gpus if gpu.host == "right" and gpu.set_letter == "A"]
    rest = [name for name in gpus_of(three, "right") if name not in pair]
    server = guest(three, "pair-a")
    goes = only(plan_moves(facts(three, server, room=without(room, *rest)), MoveRules()))
    assert (goes.way, goes.target, set(goes.gpus)) == (MoveWay.MIGRATE, "right", set(pair))
    waits = only(plan_moves(facts(three, server, room=without(room, *rest[1:])), MoveRules()))
    assert waits.way is MoveWay.WAIT


def test_a_host_without_a_gpu_to_spare_comes_first(three: LoadedSite) -> None:
    """There Placement and Nova choose the same one; elsewhere Placement may count two for the server."""
    room = lone(three)
    (last, *others) = [gpu.provider_name for gpu in room.gpus if gpu.host == "right"]
    goes = only(plan_moves(facts(three, guest(three, "one"), room=without(room, *others)), MoveRules()))
    assert (goes.target, goes.gpus) == ("right", (last,))


def test_what_finds_no_room_is_shelved_only_when_that_is_wanted(three: LoadedSite) -> None:
    room = room_of(three)
    room = replace(room, hosts=tuple(host for host in room.hosts if host.node.name == SOURCE))
    server = guest(three, "one")
    assert only(plan_moves(facts(three, server, room=room), MoveRules())).way is MoveWay.WAIT
    shelved = only(plan_moves(facts(three, server, room=room), MoveRules(shelve=True)))
    assert shelved.way is MoveWay.SHELVE
    assert "there is no other host" in shelved.reason
    assert any("unshelves" in loss for loss in shelved.losses)


@pytest.mark.parametrize(
    ("change", "way", "words"),
    [
        ({"task": "rebooting"}, MoveWay.FOLLOW, "at work"),
        ({"status": "BUILD"}, MoveWay.FOLLOW, "BUILD"),
        ({"status": "ERROR"}, MoveWay.STAY, "mend it"),
        ({"status": "SOFT_DELETED"}, MoveWay.STAY, "--force"),
        ({"status": "SHELVED"}, MoveWay.STAY, "its disks and GPUs are still here; --shelve offloads it"),
        ({"status": "PAUSED"}, MoveWay.WAIT, "migrates no server that is PAUSED"),
        ({"status": "VERIFY_RESIZE"}, MoveWay.STAY, "its owner has resized it"),
        ({"ours": True}, MoveWay.WAIT, "gpuyard itself"),
    ],
)
def test_half_known_states(three: LoadedSite, change: dict[str, Any], way: MoveWay, words: str) -> None:
    verdict = only(plan_moves(facts(three, guest(three, "one", **change)), MoveRules()))
    assert verdict.way is way
    assert words in verdict.reason


@pytest.mark.parametrize("from_volume", [False, True])
def test_a_shelved_server_keeps_its_local_disks_unless_somebody_says_so(three: LoadedSite, from_volume: bool) -> None:
    """Nova's shelveOffload destroys the guest with all local disks (nova 34.0.0, compute/manager.py,
    `_shelve_offload_instance`); the image of a shelved server has its root disk alone."""
    server = guest(three, "one", status="SHELVED", from_volume=from_volume)
    server = replace(server, flavor=replace(server.flavor, ephemeral=600, swap=1024))
    lost = ("its ephemeral disk of 600 GiB is lost", "its swap of 1024 MiB is lost")
    stays = only(plan_moves(facts(three, server), MoveRules()))
    assert stays.way is MoveWay.STAY
    assert stays.reason.endswith(f"--shelve offloads it, after which {lost[0]}; {lost[1]}")
    goes = only(plan_moves(facts(three, server), MoveRules(shelve=True)))
    assert goes.way is MoveWay.SHELVE
    assert set(lost) < set(goes.losses)
    assert any("image" in loss for loss in goes.losses) is not from_volume
    assert not any("programs" in loss for loss in goes.losses), "it is off already"


def migration(**more: Any) -> MigrationSeen:
    return replace(MigrationSeen("m-1", "id-1", "finished", "migration", SOURCE, "right", NOON), **more)


@pytest.mark.parametrize(
    ("move", "since", "way", "words"),
    [
        (migration(), NOON, MoveWay.CONFIRM, "on right"),
        (migration(), NOON - HOUR, MoveWay.CONFIRM, "on right"),
        (migration(), NOON + HOUR, MoveWay.STAY, "before this drain"),
        (migration(), None, MoveWay.STAY, "before this drain"),
        (migration(kind="resize"), NOON, MoveWay.STAY, "its owner has resized it away"),
        (migration(status="confirming"), NOON, MoveWay.FOLLOW, "being confirmed"),
        (migration(server="id-2"), NOON, MoveWay.STAY, "its owner has resized it"),
    ],
)
def test_only_our_own_migrations_are_confirmed(
    three: LoadedSite, move: MigrationSeen, since: datetime | None, way: MoveWay, words: str
) -> None:
    server = guest(three, "one", status="VERIFY_RESIZE")
    verdict = only(plan_moves(facts(three, server, migrations=(move,)), MoveRules(since=since)))
    assert verdict.way is way
    assert words in verdict.reason


def test_a_dead_host_is_left_without_local_disks(three: LoadedSite) -> None:
    rules = MoveRules(Purpose.EVACUATE)
    verdict = only(plan_moves(facts(three, guest(three, "one")), rules))
    assert verdict.way is MoveWay.EVACUATE
    assert any("20 GiB is lost, unless the hosts share storage" in loss for loss in verdict.losses)
    volume = only(plan_moves(facts(three, guest(three, "one", from_volume=True)), rules))
    assert not any("is lost, unless" in loss for loss in volume.losses)
    stuck = only(plan_moves(facts(three, guest(three, "one", task="powering-off")), rules))
    assert stuck.way is MoveWay.STAY
    assert "--state active id-1" in stuck.reason
    begun = only(plan_moves(facts(three, guest(three, "one", task="rebuild_spawning", status="REBUILD")), rules))
    assert begun.way is MoveWay.FOLLOW


def test_the_losses_of_a_server_without_gpus_name_none(three: LoadedSite) -> None:
    plain = replace(guest(three, "one"), gpus=(), asks=0)
    for way in ("live-migrate", "migrate"):
        assert any("its GPUs have" in loss for loss in losses(guest(three, "one"), way))
        assert not any("GPU" in loss for loss in losses(plain, way))


def test_who_runs_can_go_while_running_where_nova_and_card_can(three: LoadedSite) -> None:
    server = guest(three, "one")
    assert only(plan_moves(facts(three, server, not_live={}), MoveRules())).way is MoveWay.LIVE
    off = replace(server, status="SHUTOFF")
    assert only(plan_moves(facts(three, off, not_live={}), MoveRules())).way is MoveWay.MIGRATE


@pytest.mark.parametrize(
    ("pool", "driver", "words"),
    [
        ({}, "nvgrace_gpu_vfio_pci", "alias v100, which its flavor asks for, is not live_migratable"),
        ({"live_migratable": True}, "nvgrace_gpu_vfio_pci", "pool v100 is not 'managed: false'"),
        ({"live_migratable": True, "managed": False}, "vfio-pci", "was recorded with vfio-pci"),
        ({"live_migratable": True, "managed": False}, None, "was recorded with no driver"),
        ({"live_migratable": True, "managed": False}, "nvgrace_gpu_vfio_pci", ""),
    ],
)
def test_what_keeps_a_server_from_moving_while_it_runs(
    tmp_path: Path, pool: dict[str, Any], driver: str | None, words: str
) -> None:
    from gpuyard.diagnosis.why.read_scheduling import site_aliases

    document = {**DOCUMENT, "pools": {"v100": {"models": ["10de:1db4"], **pool}}}
    loaded = site(tmp_path, document, HOSTS)
    (flavor,) = [flavor for flavor in loaded.compiled.flavors if flavor.name == "one"]
    (gpu, *_) = [gpu for gpu in loaded.compiled.gpus if gpu.host == SOURCE]
    inventory = loaded.inventories[SOURCE]
    inventory = replace(
        inventory, functions=tuple(replace(function, driver=driver) for function in inventory.functions)
    )
    unmanaged = {name for name, site_pool in loaded.site.pools.items() if site_pool.managed is False}
    why = why_not_live(flavor.extra_specs, [gpu], site_aliases(loaded.compiled), unmanaged, inventory)
    assert words in why
    assert bool(why) == bool(words)


@given(
    st.sampled_from(Purpose),
    st.integers(0, 10**9),
    st.booleans(),
    st.none() | st.text(max_size=100),
)
def test_a_tag_is_read_as_it_was_written(purpose: Purpose, at: int, forced: bool, before: str | None) -> None:
    tag = ClosedTag(purpose, NOON + timedelta(seconds=at), forced, before)
    assert tag_of(str(tag)) == tag
    assert len(str(replace(tag, before="x" * 300))) == 255


@pytest.mark.parametrize("reason", ["", "kernel", "gpuyard: drain", "gpuyard: drain since yesterday"])
def test_what_others_wrote_is_no_tag(reason: str) -> None:
    assert tag_of(reason) is None


def test_bookings_of_the_ledger_and_of_the_portal_say_the_same() -> None:
    ask = Ask("v100", NOON, NOON + HOUR, 2, gpu="mid/0000:27:00.0")
    booking = Booking(
        "b-1", BookingKind.BOOKING, ask, BookingState.CONFIRMED, "u", "ada", "p", "physics", NOON, NOON, lanes=(7,)
    )
    lane = Lane(7, "v100", "mid", ("0000:27:00.0", "0000:28:00.0"))
    row = {
        "id": "b-1", "kind": "booking", "gpu_names": ["mid/0000:27:00.0", "mid/0000:28:00.0"],
        "start": NOON.isoformat(), "end": (NOON + HOUR).isoformat(), "user": "ada", "project": "physics",
        "comment": "", "gpu": "mid/0000:27:00.0",
    }  # fmt: skip
    assert kept_of([booking], [lane]) == kept_times([row])


def test_what_people_read(three: LoadedSite) -> None:
    booked = kept(gpus_of(three, "mid"), 3 * HOUR)
    verdict = only(plan_moves(facts(three, guest(three, "one", from_volume=True), kept=(booked,)), MoveRules()))
    output = list(lines(verdict))
    assert output[0] == "vm-1 (id-1), ACTIVE, one, 1 GPU, of ada (demo)"
    assert output[1] == "  migrate to right: right has 1 such GPU and room for its flavor one"
    assert "    not live: no variant driver" in output
    assert output[-1].startswith("    not mid: the GPUs that are free there are booked from")
    assert not any("GiB of disk are copied" in line for line in output), "its disk is a volume"
    assert {"id", "way", "target", "losses", "others"} <= verdict.as_dict().keys()


def test_a_server_is_ours_in_our_own_project_only(tmp_path: Path) -> None:
    """Else whoever writes what we write into his server's metadata keeps a host from being drained."""
    acceptance = {"project": "accept", "image": "i"}
    loaded = site(tmp_path, DOCUMENT | {"booking": {}, "health": {"acceptance": acceptance}}, HOSTS)
    reader = MovesReader(cast("CloudApi", SimpleNamespace()), loaded, SOURCE)
    flavor = guest(loaded, "one").flavor
    row = ServerRow("s", "s", "ACTIVE", None, SOURCE, "accept", "u", flavor, None, None, "", "", ours=True)
    nothing = cast("Snapshot", SimpleNamespace(holders={}))
    assert reader._guest(row, nothing).ours
    assert not reader._guest(replace(row, project="demo"), nothing).ours
    assert not reader._guest(replace(row, ours=False), nothing).ours
