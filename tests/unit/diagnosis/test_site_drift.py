"""What counts as drift, on invented clouds; the real ones are in tests/integration."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.diagnosis.drift import drifts, find_drift, plan_fixes
from gpuyard.diagnosis.drift.facts import DeviceSeen, Root, ServerSeen, Stranger, World
from gpuyard.diagnosis.drift.fixes import FixPlan
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import GpuState, Keeping, LedgerWords
from gpuyard.model.plan import StepVerb
from gpuyard.model.world import HostService, Stock
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.nova.server_states import MigrationSeen
from gpuyard.site.load import LoadedSite
from gpuyard.site.objects import FlavorObject, LimitObject, SeenFlavor, SeenLimit
from tests.support.sites import flavor, site
from tests.support.worlds import with_device, with_host, with_server, with_stock, world_of

HOST = "gpu-server"
LEADER, PEER, LONE = f"{HOST}_0000:27:00.0", f"{HOST}_0000:28:00.0", f"{HOST}_0000:44:00.0"
FLAVORS = {
    "one": flavor(gpus={"v100": 1}),
    "pair": flavor(gpus={"v100": 2}, same_group=True),
    "cpu": flavor(),
}
PLAIN = {"flavors": FLAVORS, "projects": {"demo": {"gpus": {"v100": 6}}}, "limits": {"servers": 100}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "report": {**PLAIN, "pci_in_placement": "report", "flavors": {"one": FLAVORS["one"], "cpu": FLAVORS["cpu"]}},
    "off": {**PLAIN, "pci_in_placement": "off", "flavors": {"one": FLAVORS["one"], "cpu": FLAVORS["cpu"]}},
    "mixed": {**PLAIN, "hosts": {HOST: {"recording": f"{HOST}.json", "reserve": "largest-flavors"}}},
    "uncounted": {**PLAIN, "gpu_quotas": False, "projects": {}},
    "scrubbed": {**PLAIN, "pools": {"v100": {"models": ["10de:1db4"], "one_time_use": True}}},
}


@cache
def variant(name: str) -> LoadedSite:
    with tempfile.TemporaryDirectory() as folder:
        return site(Path(folder), VARIANTS[name])


PLAIN_SITE, MIXED_SITE = "plain", "mixed"


def found(loaded: LoadedSite, world: World) -> list[Finding]:
    return find_drift(loaded.compiled, loaded.inventories, world)


def kinds(loaded: LoadedSite, world: World) -> list[str]:
    return [item.code for item in found(loaded, world)]


def only(loaded: LoadedSite, world: World, kind: str) -> Finding:
    items = found(loaded, world)
    assert [item.code for item in items] == [kind], items
    return items[0]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cloud_as_its_site_says_has_no_drift_with_and_without_servers(name: str) -> None:
    loaded = variant(name)
    world = world_of(loaded)
    assert found(loaded, world) == []
    devices = [LONE] if name != "off" else []
    world = with_server(world, loaded, "gpu", "one", HOST, devices)
    world = with_server(world, loaded, "cpu", "cpu", HOST)
    assert found(loaded, world) == []
    assert plan_fixes(loaded.compiled, world, []) == FixPlan()


def function_of(address: str, **change: Any) -> Callable[[World], World]:
    def apply(world: World) -> World:
        device = DeviceSeen(f"{HOST}_{address}", "id-x", HOST, frozenset({"CUSTOM_X"}), free=True,
                            stock={"CUSTOM_X": Stock(1)})  # fmt: skip
        return replace(world, devices={**world.devices, device.name: replace(device, **change)})

    return apply


def of_flavor(name: str, **specs: str) -> Callable[[World], World]:
    def apply(world: World) -> World:
        made = SeenFlavor(f"id-{name}", FlavorObject(name, 1, 512, 1, extra_specs=specs))
        return replace(world, objects=replace(world.objects, flavors=(*world.objects.flavors, made)))

    return apply


def of_stranger(**change: Any) -> Callable[[World], World]:
    def apply(world: World) -> World:
        stranger = Stranger("nobody", False, "unknown", 1, {f"id-{LONE}": {"CUSTOM_GPU_V100": 1}})
        return replace(world, strangers={"nobody": replace(stranger, **change)})

    return apply


def of_migration(status: str) -> Callable[[World], World]:
    def apply(world: World) -> World:
        moved = MigrationSeen("nobody", "s", status, "resize", HOST, HOST)
        return replace(of_stranger()(world), migrations={"nobody": moved})

    return apply


def device(name: str, **change: Any) -> Callable[[World], World]:
    return lambda world: with_device(world, name, **change)


def host(**change: Any) -> Callable[[World], World]:
    return lambda world: with_host(world, HOST, **change)


def stock(name: str, value: Stock | None) -> Callable[[World], World]:
    return lambda world: with_stock(world, HOST, name, value)


def more_promised(world: World) -> World:
    return with_stock(world, HOST, "MEMORY_MB", replace(world.hosts[HOST].stock["MEMORY_MB"], ratio=1.5))


CLASS = "CUSTOM_GPU_V100"
CASES: list[tuple[str, str, Severity, Callable[[World], World]]] = [
    ("plain", "gpu-other-class", Severity.ERROR, device(PEER, classes=frozenset({CLASS}))),
    ("plain", "gpu-other-class", Severity.ERROR, device(LEADER, traits=frozenset())),
    ("plain", "gpu-held", Severity.NOTE, device(LONE, free=False, stock={CLASS: Stock(1, reserved=1)})),
    ("scrubbed", "gpu-not-reserved", Severity.ERROR, device(LONE, one_time_use=False)),
    ("plain", "gpu-counted-twice", Severity.ALARM, device(LONE, stock={CLASS: Stock(2)})),
    ("plain", "device-not-offered", Severity.ERROR, function_of("0000:99:00.0")),
    ("off", "stage-ahead", Severity.ERROR, function_of("0000:27:00.0")),
    ("report", "gpu-not-offered", Severity.ALARM, function_of("0000:28:00.0")),
    ("plain", "host-missing", Severity.ERROR, host(service=None)),
    ("plain", "host-missing", Severity.ERROR, host(provider=None)),
    ("plain", "host-down", Severity.ERROR, host(service=HostService(HOST, False, True))),
    ("plain", "host-disabled", Severity.ERROR, host(service=HostService(HOST, True, False, "fans"))),
    ("plain", "provider-config", Severity.ERROR, stock("CUSTOM_GPU_V100_COUNT", Stock(4))),
    ("plain", "provider-config", Severity.ERROR, stock("CUSTOM_GPU_V100_COUNT", Stock(6, reserved=1))),
    ("plain", "provider-config", Severity.ERROR, stock("CUSTOM_GPU_OLD_COUNT", Stock(1))),
    ("plain", "provider-config", Severity.ERROR, stock("CUSTOM_NOGPU_VCPU", Stock(1))),
    ("mixed", "provider-config", Severity.ERROR, stock("CUSTOM_NOGPU_VCPU", None)),
    ("mixed", "provider-config", Severity.ERROR, host(site_trait=False)),
    ("plain", "trait-left", Severity.ERROR, host(site_trait=True)),
    ("plain", "nova-options", Severity.ERROR, more_promised),
    ("plain", "recording-old", Severity.ERROR, stock("VCPU", Stock(3, 0, 4.0))),
    ("plain", "host-not-in-site", Severity.ERROR, lambda w: replace(w, unknown_hosts={"h": frozenset({CLASS})})),
    ("plain", "flavor-foreign-alias", Severity.ERROR, of_flavor("x", **{"pci_passthrough:alias": "v100:1"})),
    ("plain", "flavor-takes-gpu", Severity.ERROR, of_flavor("x", **{"resources_1:CUSTOM_PCI_10DE_1DB4": "1"})),
    ("mixed", "flavor-foreign-trait", Severity.ERROR, of_flavor("x", **{"trait:CUSTOM_SITE_TEST": "required"})),
    ("mixed", "image-trait", Severity.ERROR, lambda w: replace(w, images={"1": "sneaky"})),
    (
        "mixed",
        "aggregate-not-in-placement",
        Severity.ERROR,
        lambda w: replace(w, mirrored={"gpuyard-test": frozenset()}),
    ),
    ("plain", "allocation-orphaned", Severity.ERROR, of_stranger()),
    ("plain", "allocation-foreign", Severity.ERROR, of_stranger(type="CONTAINER")),
    ("plain", "allocation-of-migration", Severity.ERROR, of_migration("error")),
    ("plain", "quota-exceeded", Severity.ERROR, lambda w: replace(w, usages={"demo": {"CUSTOM_GPU_V100_COUNT": 7}})),
    ("plain", "quota-exceeded", Severity.ERROR, lambda w: replace(w, usages={"other": {"CUSTOM_GPU_V100_COUNT": 1}})),
]


@pytest.mark.parametrize(("name", "kind", "severity", "change"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_each_difference_is_the_only_one_found(
    name: str, kind: str, severity: Severity, change: Callable[[World], World]
) -> None:
    loaded = variant(name)
    item = only(loaded, change(world_of(loaded)), kind)
    assert item.severity is severity
    assert all((item.object, item.reason, item.payload["wanted"], item.payload["effect"], item.remedy)), (
        "every word of it is there"
    )
    assert drifts([item]) == (severity is not Severity.NOTE)


@pytest.mark.parametrize(
    "change",
    [
        of_stranger(exists=True),
        of_migration("finished"),
        of_migration("migrating"),
        device(LONE, free=False, holders={"nobody": 1}),
        lambda world: replace(world, usages={"demo": {"CUSTOM_GPU_V100_COUNT": 6}}),
        of_flavor("x", **{"pci_passthrough:alias": "v100:2", "resources:CUSTOM_GPU_V100_COUNT": "2"}),
        of_flavor("x", **{"pci_passthrough:alias": "nic:2"}),
    ],
)
def test_what_is_no_drift(change: Callable[[World], World]) -> None:
    loaded = variant("plain")
    assert kinds(loaded, change(world_of(loaded))) == []


def test_the_scrub_after_a_server_is_a_hold_and_not_before() -> None:
    loaded = variant("scrubbed")
    world = with_device(world_of(loaded), LONE, free=False, stock={CLASS: Stock(1, reserved=1)})
    assert "scrub" in only(loaded, world, "gpu-held").reason
    assert kinds(loaded, with_server(world, loaded, "s", "one", HOST, [LONE])) == []


def test_lost_gpus_of_a_host_are_one_difference() -> None:
    loaded = variant("plain")
    world = world_of(loaded)
    left = {name: seen_device for name, seen_device in world.devices.items() if name not in (LONE, PEER)}
    item = only(loaded, replace(world, devices=left), "gpu-lost")
    assert "0000:28:00.0, 0000:44:00.0" in item.reason


def test_a_group_with_two_servers_is_an_alarm_and_with_one_server_that_moves_it_is_not() -> None:
    loaded = variant("plain")
    one = with_server(world_of(loaded), loaded, "a", "one", HOST, [LEADER])
    two = with_server(one, loaded, "b", "one", HOST, [PEER])
    assert only(loaded, two, "group-split").severity is Severity.ALARM
    moving = replace(one, migrations={"m": MigrationSeen("m", "a", "finished", "resize", HOST, HOST)})
    moving = with_device(moving, PEER, free=False, holders={"m": 1})
    assert kinds(loaded, moving) == []


def test_what_a_server_left_on_a_host_is_no_reason_to_resize_or_delete_it() -> None:
    """It has moved away, and Placement counts it for the GPUs there still."""
    loaded = variant(PLAIN_SITE)
    world = with_server(world_of(loaded), loaded, "s", "one", HOST, [LONE, LEADER])
    world = replace(world, servers={"s": replace(world.servers["s"], host="another-host")})
    assert [kind for kind in kinds(loaded, world) if kind.startswith("server-")] == ["server-elsewhere"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("server-without-gpu", {}),
        ("server-error-holds", {"status": "ERROR"}),
        ("server-shelved-holds", {"status": "SHELVED_OFFLOADED", "host": None}),
        ("claim-failed", {"status": "ERROR", "host": None, "fault": "Claim pci failed"}),
    ],
)
def test_servers(kind: str, change: dict[str, Any]) -> None:
    loaded = variant("plain")
    devices = [] if kind in ("server-without-gpu", "claim-failed") else [LONE]
    world = with_server(world_of(loaded), loaded, "s", "one", HOST, devices)
    world = replace(world, servers={"s": replace(world.servers["s"], **change)})
    if kind == "claim-failed":  # it has nothing, so nothing else is odd
        world = with_host(world, HOST, consumers={})
    assert kinds(loaded, world) == [kind]


def test_a_server_that_nova_works_on_is_left_in_peace() -> None:
    loaded = variant("plain")
    for change in ({"status": "BUILD"}, {"task": "migrating"}, {"status": "VERIFY_RESIZE"}):
        assert kinds(loaded, with_server(world_of(loaded), loaded, "s", "one", HOST, [], **change)) == []


def test_what_a_server_has_that_is_being_unshelved_is_its_own() -> None:
    loaded = variant("plain")
    change: dict[str, Any] = {"status": "SHELVED_OFFLOADED", "host": None, "task": "spawning"}
    world = with_server(world_of(loaded), loaded, "s", "one", HOST, [LONE])
    world = replace(world, servers={"s": replace(world.servers["s"], **change)})
    assert kinds(loaded, world) == []


def test_what_is_kept_for_gpus_is_less_by_what_others_use_uncounted() -> None:
    loaded = variant("mixed")
    old = ServerSeen("old", "old", "ACTIVE", None, HOST, "id-other", "m1.tiny")
    world = with_host(world_of(loaded), HOST, consumers={"old": {"VCPU": 3, "MEMORY_MB": 4096, "DISK_GB": 10}})
    world = replace(world, servers={"old": old})
    items = {item.code: item for item in found(loaded, world)}
    assert items.keys() == {"reserve-uncounted", "servers-foreign"}
    (capacity,) = loaded.compiled.capacities
    assert items["reserve-uncounted"].reason == "old (old) use 3 vCPUs, 4096 MiB, 10 GiB and count as nothing"
    reserve = capacity.reserve
    left = f"only {reserve.vcpus - 3} vCPUs, {reserve.ram - 4096} MiB, {reserve.disk - 10} GiB"
    assert items["reserve-uncounted"].payload["effect"].startswith(left)


def test_a_limit_that_is_missing_is_said_to_let_everybody_in() -> None:
    loaded = variant("plain")
    world = world_of(loaded)
    fewer = tuple(item for item in world.objects.limits if item.limit.resource != f"class:{CLASS}_COUNT")
    items = found(loaded, replace(world, objects=replace(world.objects, limits=fewer)))
    assert [item.code for item in items] == ["limit-missing", "limit-missing"]
    assert [step.verb for item in items for step in item.payload["fix"]] == [StepVerb.CREATE, StepVerb.CREATE]
    more = (*world.objects.limits, SeenLimit("x", LimitObject(f"class:{CLASS}", 3, "other")))
    only(loaded, replace(world, objects=replace(world.objects, limits=more)), "limit-foreign")


@pytest.mark.parametrize(
    ("root", "services", "mends"),
    [
        (Root("r", HOST, (("c", "child"),), used=False), {}, True),
        (Root("r", HOST, used=True), {}, False),
        (Root("r", HOST, used=False), {HOST: HostService(HOST, True, True)}, False),
    ],
)
def test_a_provider_goes_only_when_nobody_uses_or_runs_it(
    root: Root, services: dict[str, HostService], mends: bool
) -> None:
    loaded = variant("plain")
    world = replace(world_of(loaded), leftovers=(root,), services=services)
    item = only(loaded, world, "provider-left")
    assert bool(item.payload["fix"]) is mends


consumers = st.sampled_from(["a", "b", "nobody", "m1", "m2"])


@given(
    strangers=st.dictionaries(
        consumers,
        st.builds(
            Stranger,
            id=st.just(""),
            exists=st.booleans(),
            type=st.sampled_from(["unknown", "INSTANCE", "MIGRATION", "CONTAINER"]),
            generation=st.integers(0, 3),
            amounts=st.just({f"id-{LONE}": {CLASS: 1}}),
        ),
    ),
    migrations=st.dictionaries(
        st.sampled_from(["m1", "m2"]), st.sampled_from(["finished", "error", "confirmed", "failed"])
    ),
    silent=st.booleans(),
)
def test_fixes_never_touch_a_server_or_a_migration(
    strangers: dict[str, Stranger], migrations: dict[str, str], silent: bool
) -> None:
    """Nor anything, while a cell of Nova does not answer."""
    loaded = variant("plain")
    world = replace(
        world_of(loaded),
        strangers={name: replace(stranger, id=name) for name, stranger in strangers.items()},
        migrations={n: MigrationSeen(n, "s", status, "resize", HOST, HOST) for n, status in migrations.items()},
        silent_cells=silent,
    )
    steps = plan_fixes(loaded.compiled, world, found(loaded, world)).steps
    touched = {step.name for step in steps}
    safe = {name for name, stranger in strangers.items() if not stranger.exists and name not in migrations}
    safe -= {name for name, stranger in strangers.items() if stranger.type == "CONTAINER"}
    assert touched == (set() if silent else safe)


def test_fixes_come_in_the_order_of_the_plan_and_then_what_is_nobodys() -> None:
    loaded = variant("plain")
    world = of_stranger()(world_of(loaded))
    world = replace(world, objects=replace(world.objects, flavors=(), limits=()))
    world = replace(world, leftovers=(Root("r", "gone", used=False),))
    order = [step.kind for step in plan_fixes(loaded.compiled, world, found(loaded, world)).steps]
    assert order[0] == "registered limit"
    assert order[-2:] == ["allocation", "provider"]
    assert "flavor" in order
    # A plan that is refused changes nothing, and what is nobody's goes all the same.
    refused = replace(world, objects=replace(world.objects, projects={}))
    order = [step.kind for step in plan_fixes(loaded.compiled, refused, found(loaded, refused)).steps]
    assert order == ["allocation", "provider"]


@given(st.text(alphabet="abc:,0123 ", max_size=20))
def test_any_alias_can_be_read(text: str) -> None:
    assert all(number >= 0 for number in asked_devices({"pci_passthrough:alias": text}).values())


def test_aliases_are_counted() -> None:
    assert asked_devices({"pci_passthrough:alias": "a:2, b:1,a:1"}) == {"a": 3, "b": 1}
    assert asked_devices({}) == {}


def test_what_gpuyard_itself_keeps_is_not_given_back_by_hand() -> None:
    loaded = variant("plain")
    world = device(LONE, free=False, stock={CLASS: Stock(1, reserved=1)})(world_of(loaded))

    def remedy(words: LedgerWords | None, taken: LoadedSite = loaded, observed: World = world) -> list[str]:
        findings = find_drift(taken.compiled, taken.inventories, observed, words)
        return [finding.remedy for finding in findings if finding.code == "gpu-held"]

    assert remedy({LONE: Keeping(GpuState.HELD, "held by root", "5f0c")}) == [
        "to give it back: gpuyard gpu release 5f0c"
    ]
    assert remedy({LONE: Keeping(GpuState.BOOKED, "booked", "77aa")}) == ["see the booking: gpuyard booking show 77aa"]
    (look,) = remedy({LONE: Keeping(GpuState.HELD, "quarantined: reads 0xff")})
    assert look.startswith("who is to look after it: gpuyard gpu health ")
    (by_hand,) = remedy({})
    assert by_hand.startswith("to give it back: openstack resource provider inventory set --amend")
    # Somebody has it: it is claimed, whether or not it is reserved too.
    claimed = device(LONE, free=False, stock={CLASS: Stock(1, reserved=1)}, holders={"migration": 1})(world_of(loaded))
    assert remedy({}, observed=claimed) == []


def test_a_gpu_that_waits_for_its_scrub_is_not_given_back_by_hand(tmp_path: Path) -> None:
    for watched, expected in ((True, "gpuyard gpu health "), (False, "if gpuyard itself does not keep it")):
        rules: dict[str, Any] = {"booking": {}, "health": {}} if watched else {"booking": {}}
        loaded = site(tmp_path, {**VARIANTS["scrubbed"], **rules})
        world = device(LONE, free=False, stock={CLASS: Stock(1, reserved=1)})(world_of(loaded))
        (remedy,) = [finding.remedy for finding in found(loaded, world) if finding.code == "gpu-held"]
        assert expected in remedy
        assert ("reserved=0" in remedy) is not watched


def test_every_kind_is_documented() -> None:
    root = Path(__file__).parents[3]
    source = "".join(path.read_text() for path in (root / "src/gpuyard/diagnosis/drift").glob("*.py"))
    stated = set(re.findall(r'Severity\.\w+,\s*"([a-z-]+)"', source))
    assert len(stated) > 25
    stated |= {"gpu-not-offered", "gpu-not-offered-in-use", "device-not-offered", "device-not-offered-in-use"}
    stated |= {"flavor-missing", "limit-changed", "image-changed", "aggregate-left"}
    page = (root / "docs/how-to/watch-for-drift.md").read_text()
    assert {kind for kind in stated if f"`{kind}`" not in page} == set()
    shown = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", page))
    made = {
        f"{kind}-{end}" for kind in ("flavor", "limit", "aggregate", "image") for end in ("missing", "changed", "left")
    }
    assert shown - stated - made == set(), "nothing that does not exist"
