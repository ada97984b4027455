"""``gpuyard gpu why`` against real refusals: Nova says no, the cause is named and no other, and the remedy that is
named makes the server start."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from gpuyard.cli.main import app, run
from gpuyard.diagnosis.why.read import why
from gpuyard.model.errors import UsageError
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.site.load import LoadedSite, load_site
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.portal import apply_site
from tests.integration.conftest import RunningLab
from tests.support.asking import REFUSED, Cloud, kinds, remedy
from tests.support.sites import plain_site

pytestmark = [pytest.mark.lab, pytest.mark.slow]

K40C, HYPER18 = "k40c.2cores", "hyper18"
"""A flavor that one GPU of one host can serve."""


@pytest.fixture(scope="module")
def loaded() -> LoadedSite:
    return load_site(plain_site())


@pytest.fixture
def cloud(operator: CloudApi, user: CloudApi, exercise: Exercise, loaded: LoadedSite) -> Cloud:
    return Cloud(operator, user, exercise, loaded)


MakeFlavor = Callable[..., str]


@pytest.fixture
def flavor(operator: CloudApi, exercise: Exercise) -> Iterator[MakeFlavor]:
    """Makes flavors that are gone after the test, servers first."""
    made: list[str] = []

    def make(name: str, vcpus: int = 1, ram: int = 512, disk: int = 1, public: bool = True, **specs: str) -> str:
        identity = f"why-{name}"
        body = {
            "id": identity, "name": identity, "vcpus": vcpus, "ram": ram, "disk": disk,
            "os-flavor-access:is_public": public,
        }  # fmt: skip
        operator.request("POST", "compute", "/flavors", {"flavor": body})
        made.append(identity)
        if specs:
            body = {"extra_specs": specs}
            operator.request("POST", "compute", f"/flavors/{identity}/os-extra_specs", body)
        return identity

    yield make
    exercise.clear()
    for identity in made:
        operator.request("DELETE", "compute", f"/flavors/{identity}")


def without(operator: CloudApi, flavor: str, key: str) -> None:
    operator.request("DELETE", "compute", f"/flavors/{flavor}/os-extra_specs/{key}")


@pytest.fixture
def hog(operator: CloudApi, cloud: Cloud, flavor: MakeFlavor) -> Iterator[Callable[[str, int, int], str]]:
    """Puts a server of the operator on a host that leaves so much RAM (MiB) and so many vCPUs; its id."""
    servers: list[str] = []

    def put(host: str, ram: int, vcpus: int) -> str:
        path = f"/resource_providers/{cloud.provider(host)}/inventories"
        has = operator.get("placement", path)["inventories"]
        left = {
            name: int((has[name]["total"] - has[name]["reserved"]) * has[name]["allocation_ratio"]) - keep
            for name, keep in (("MEMORY_MB", ram), ("VCPU", vcpus))
        }
        left["VCPU"] = min(left["VCPU"], has["VCPU"]["max_unit"])
        name = flavor(f"hog-{host}", vcpus=left["VCPU"], ram=left["MEMORY_MB"])
        status, server = cloud.ask(name, operator, f"nova:{host}")
        servers.append(server)
        assert status == "ACTIVE"
        return server

    yield put
    for server in servers:
        cloud.delete(server)


# GPUs.


def test_all_gpus_in_use_names_the_server_and_starts_without_it(cloud: Cloud) -> None:
    holder = cloud.starts(K40C)
    explanation = cloud.refuses(K40C, "403")
    assert kinds(explanation) == {"quota"}, "the project may have one"
    assert kinds(explanation, HYPER18) == {"gpu"}
    (cause,) = explanation.hosts[0].causes
    assert "0000:86:00.0 is held by server gpuyard-exercise-why-1 (project demo, user demo)" in cause.reason
    assert explanation.first == (), "the server gives its limits back"
    (action,) = remedy(explanation).actions
    assert (action.kind, action.values["server"]) == ("delete-server", holder)
    cloud.carry_out(action)
    cloud.starts(K40C)


def test_a_gpu_of_another_project_is_no_matter_of_limits(cloud: Cloud, operator: CloudApi, flavor: MakeFlavor) -> None:
    """Two GPUs, one taken, two asked."""
    both = flavor("both", **{"pci_passthrough:alias": "k4200:2"})
    with limited(cloud, "class:CUSTOM_GPU_K4200", 3):
        holder = cloud.starts("k4200.4cores")
        explanation = cloud.refuses(both)
        assert kinds(explanation) == set()
        assert kinds(explanation, "c4130") == {"gpu"}
        assert "only 1 of the 2 GPUs of pool k4200 that it asks is free" in explanation.answer
        assert "asks 2 x CUSTOM_GPU_K4200, 1 of 2 can be had" in explanation.hosts[0].causes[0].reason
        cloud.user.request("POST", "compute", f"/servers/{holder}/action", {"shelve": None})
        cloud.exercise.wait_for_status(holder, "SHELVED_OFFLOADED")
        assert cloud.why(both).would_start, "delete or shelve, it says"
        cloud.starts(both)


def test_a_held_gpu(cloud: Cloud) -> None:
    provider = "hyper18_0000:86:00.0"
    cloud.reserve(provider, "CUSTOM_GPU_K40C", 1)
    try:
        explanation = cloud.refuses(K40C)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"gpu"})
        assert explanation.hosts[0].causes[0].payload["details"][0]["state"] == "held"
        (action,) = remedy(explanation).actions
        assert action.kind == "release-hold"
        cloud.carry_out(action)
        cloud.starts(K40C)
    finally:
        cloud.reserve(provider, "CUSTOM_GPU_K40C", 0)


def test_a_gpu_with_a_leftover_allocation(cloud: Cloud, operator: CloudApi) -> None:
    orphan = "0f1e2d3c-0000-4000-8000-000000000002"
    body = {
        "allocations": {cloud.provider("hyper18_0000:86:00.0"): {"resources": {"CUSTOM_GPU_K40C": 1}}},
        "project_id": "p", "user_id": "u", "consumer_generation": None, "consumer_type": "INSTANCE",
    }  # fmt: skip
    operator.request("PUT", "placement", f"/allocations/{orphan}", body)
    try:
        explanation = cloud.refuses(K40C)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"gpu"})
        assert orphan in explanation.hosts[0].causes[0].reason
        (action,) = remedy(explanation).actions
        assert action.kind == "delete-allocation"
        cloud.carry_out(action)
        cloud.starts(K40C)
    finally:
        drop(operator, f"/allocations/{orphan}")


def test_a_pair_whose_leader_is_taken_says_what_is_stranded(cloud: Cloud) -> None:
    for _ in range(4):
        cloud.starts("gpu_tiny")
    explanation = cloud.refuses("gpu_pair-a")
    assert (kinds(explanation), kinds(explanation, "gpu-server")) == (set(), {"gpu"})
    (cause,) = explanation.hosts[0].causes
    assert (
        "asks 1 x CUSTOM_GPU_V100 with trait CUSTOM_GPU_SET_A, 0 of 1 can be had: 0000:27:00.0 is held" in cause.reason
    )
    assert "so 0000:28:00.0 is free and of no use" in cause.reason
    cloud.carry_out(*remedy(explanation).actions)
    cloud.starts("gpu_pair-a")
    again = cloud.refuses("gpu_pair-b", "403")
    assert (kinds(again), kinds(again, "gpu-server")) == ({"quota"}, {"gpu"}), "three and a pair of six, and none free"


def test_more_gpus_than_any_host_has(cloud: Cloud, flavor: MakeFlavor) -> None:
    explanation = cloud.refuses(flavor("five", **{"pci_passthrough:alias": "v100:5"}))
    assert (kinds(explanation), kinds(explanation, "gpu-server")) == (set(), {"gpu-count"})
    assert "asks 5 x CUSTOM_GPU_V100 for one server, and the host has 4" in explanation.answer
    assert explanation.remedies == ()
    cloud.starts(flavor("four", **{"pci_passthrough:alias": "v100:4"}))


# Room.


def test_ram_that_another_server_has(cloud: Cloud, hog: Callable[[str, int, int], str]) -> None:
    server = hog(HYPER18, 3000, 4)
    explanation = cloud.refuses(K40C)
    assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"room"})
    (cause,) = explanation.hosts[0].causes
    assert cause.payload["details"][0]["class"] == "MEMORY_MB"
    assert cause.payload["details"][0]["missing"] == 4096 - 3000
    (action,) = remedy(explanation).actions
    assert action.values["server"] == server
    cloud.carry_out(action)
    cloud.starts(K40C)


def test_gpu_and_ram_together_need_both_servers(cloud: Cloud, hog: Callable[[str, int, int], str]) -> None:
    holder = cloud.starts(K40C)
    hogging = hog(HYPER18, 4096 + 3000, 4)
    with limited(cloud, "class:CUSTOM_GPU_K40C", 2):
        explanation = cloud.refuses(K40C)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"gpu", "room"})
        # The holder's own RAM is enough for its successor.
        assert [action.values["server"] for action in remedy(explanation).actions] == [holder]
        cloud.carry_out(*remedy(explanation).actions)
        cloud.starts(K40C)
    assert hogging


def test_a_flavor_that_no_host_can_hold(cloud: Cloud, flavor: MakeFlavor) -> None:
    explanation = cloud.refuses(flavor("huge", ram=900 * 1024))
    assert {kind for answer in explanation.hosts for kind in kinds(explanation, answer.host)} == {"too-big"}
    assert len(explanation.hosts) == 6
    assert explanation.remedies == ()


def test_more_of_a_class_than_one_server_may_have(cloud: Cloud, operator: CloudApi, flavor: MakeFlavor) -> None:
    """A class of the operator's own, as it goes: unknown, on no host, too small, max_unit, right.

    That it is right is said by Placement, and no server is asked for: nova-compute takes classes that it does not know
    off its host once it has read them again (nova 34.0.0, scheduler/client/report.py, `_associations_stale`: after 300
    seconds). When a server uses one, Placement refuses that with InventoryInUse, the claim of the server fails
    (compute/resource_tracker.py, `instance_claim`: `_update` after `claim_instance`), and its GPU stays taken.
    """
    name = flavor("slots", **{"resources:CUSTOM_WHY": "3", "pci_passthrough:alias": "k40c:1"})
    explanation = cloud.refuses(name)
    assert (kinds(explanation), kinds(explanation, HYPER18)) == ({"class"}, set())
    operator.request("PUT", "placement", "/resource_classes/CUSTOM_WHY")
    try:
        explanation = cloud.refuses(name)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"class"})
        path = f"/resource_providers/{cloud.provider(HYPER18)}/inventories"

        def offer(**inventory: object) -> None:
            now = operator.get("placement", path)
            body = {**now, "inventories": {**now["inventories"], "CUSTOM_WHY": inventory}}
            operator.request("PUT", "placement", path, body)

        offer(total=2)
        explanation = cloud.refuses(name)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"too-big"})
        offer(total=8, max_unit=2)
        explanation = cloud.refuses(name)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"max-unit"})
        offer(total=8, max_unit=4, reserved=6)
        explanation = cloud.refuses(name)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"too-big"})
        offer(total=8, max_unit=4)
        assert cloud.why(name).would_start
        able = operator.get("placement", "/allocation_candidates", resources="CUSTOM_WHY:3,CUSTOM_GPU_K40C:1")
        assert cloud.provider(HYPER18) in able["provider_summaries"]
    finally:
        drop(operator, f"/resource_providers/{cloud.provider(HYPER18)}/inventories/CUSTOM_WHY")
        drop(operator, "/resource_classes/CUSTOM_WHY")


def drop(operator: CloudApi, path: str) -> None:
    """Delete something of Placement that may be gone: nova-compute takes away what it does not know."""
    try:
        operator.request("DELETE", "placement", path)
    except CloudError as error:
        if error.status != 404:
            raise


# The flavor.


def test_traits(cloud: Cloud, operator: CloudApi, flavor: MakeFlavor) -> None:
    name = flavor("trait", **{"trait:CUSTOM_WHY": "required", "pci_passthrough:alias": "k40c:1"})
    explanation = cloud.refuses(name)
    assert (kinds(explanation), kinds(explanation, HYPER18)) == ({"trait"}, set())
    operator.request("PUT", "placement", "/traits/CUSTOM_WHY")
    path = f"/resource_providers/{cloud.provider(HYPER18)}/traits"
    before = operator.get("placement", path)
    try:
        explanation = cloud.refuses(name)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"trait"})
        operator.request("PUT", "placement", path, {**before, "traits": [*before["traits"], "CUSTOM_WHY"]})
        cloud.starts(name)
    finally:
        now = operator.get("placement", path)
        operator.request("PUT", "placement", path, {**now, "traits": before["traits"]})
        drop(operator, "/traits/CUSTOM_WHY")


@pytest.mark.parametrize(
    ("key", "value"), [("hw:numa_nodes", "1"), ("hw:mem_page_size", "1GB"), ("hw:cpu_policy", "dedicated")]
)
def test_numa(cloud: Cloud, operator: CloudApi, flavor: MakeFlavor, key: str, value: str) -> None:
    name = flavor("numa", **{key: value, "pci_passthrough:alias": "k40c:1"})
    explanation = cloud.refuses(name)
    assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"numa"})
    (action,) = remedy(explanation).actions
    assert action.text == f"take {key}={value} out of the flavor"
    without(operator, name, key)
    cloud.starts(name)


def test_a_trait_that_another_property_implies(cloud: Cloud, flavor: MakeFlavor) -> None:
    explanation = cloud.refuses(
        flavor("socket", **{"hw:pci_numa_affinity_policy": "socket", "pci_passthrough:alias": "k40c:1"})
    )
    assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"trait"})
    assert "COMPUTE_SOCKET_PCI_NUMA_AFFINITY" in explanation.answer


@pytest.mark.parametrize(
    ("alias", "status", "kind"),
    [("nope:1", "400", "alias-unknown"), ("k40c", "500", "alias-malformed"), ("k40c:one", "500", "alias-malformed")],
)
def test_an_alias_that_nova_does_not_take(
    cloud: Cloud, operator: CloudApi, flavor: MakeFlavor, alias: str, status: str, kind: str
) -> None:
    name = flavor("alias", **{"pci_passthrough:alias": alias})
    explanation = cloud.refuses(name, status)
    assert (kinds(explanation), explanation.hosts) == ({kind}, ())
    body = {"extra_specs": {"pci_passthrough:alias": "k40c:1"}}
    operator.request("POST", "compute", f"/flavors/{name}/os-extra_specs", body)
    cloud.starts(name)


def test_a_private_flavor(cloud: Cloud, flavor: MakeFlavor) -> None:
    name = flavor("private", public=False, **{"pci_passthrough:alias": "k40c:1"})
    explanation = cloud.refuses(name, "400")
    assert (kinds(explanation), explanation.where) == ({"access"}, (HYPER18,))
    cloud.carry_out(*explanation.first)
    cloud.starts(name)


def test_a_flavor_that_does_not_exist(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    assert cloud.ask("k40c.3cores")[0] == "400"
    with pytest.raises(UsageError, match=r"did you mean 'k40c\.2cores'"):
        cloud.why("k40c.3cores")
    with pytest.raises(UsageError, match="no project 'nobody'"):
        why(cloud.operator, cloud.loaded, K40C, "nobody")
    with pytest.raises(UsageError, match=r"same_group.*it comes out as gpu_pair-a, gpu_pair-b"):
        cloud.why("gpu_pair")


# The host.


def test_a_disabled_host_says_why_it_is_disabled(cloud: Cloud) -> None:
    cloud.service(HYPER18, status="disabled", disabled_reason="new fan")
    try:
        explanation = cloud.refuses(K40C)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"service-disabled"})
        assert "new fan" in explanation.answer
        cloud.carry_out(*remedy(explanation).actions)
        cloud.starts(K40C)
    finally:
        cloud.service(HYPER18, status="enabled")


def test_a_host_that_is_forced_down(cloud: Cloud) -> None:
    cloud.service(HYPER18, forced_down=True)
    try:
        explanation = cloud.refuses(K40C)
        assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"service-forced-down"})
        cloud.carry_out(*remedy(explanation).actions)
        cloud.starts(K40C)
    finally:
        cloud.service(HYPER18, forced_down=False)


def test_several_causes_of_one_host_are_all_named(cloud: Cloud, hog: Callable[[str, int, int], str]) -> None:
    hog(HYPER18, 3000, 1)
    cloud.reserve("hyper18_0000:86:00.0", "CUSTOM_GPU_K40C", 1)
    cloud.service(HYPER18, status="disabled")
    try:
        explanation = cloud.refuses(K40C)
        assert kinds(explanation, HYPER18) == {"service-disabled", "gpu", "room"}
        assert {action.kind for action in remedy(explanation).actions} == {
            "enable-service",
            "release-hold",
            "delete-server",
        }
        cloud.carry_out(*remedy(explanation).actions)
        cloud.starts(K40C)
    finally:
        cloud.reserve("hyper18_0000:86:00.0", "CUSTOM_GPU_K40C", 0)
        cloud.service(HYPER18, status="enabled")


def test_an_availability_zone(cloud: Cloud, operator: CloudApi) -> None:
    body = {"aggregate": {"name": "why", "availability_zone": "why-zone"}}
    identity = operator.request("POST", "compute", "/os-aggregates", body)["aggregate"]["id"]
    action = f"/os-aggregates/{identity}/action"
    try:
        operator.request("POST", "compute", action, {"add_host": {"host": HYPER18}})
        explanation = cloud.refuses("gpu_tiny", zone="why-zone")
        assert (kinds(explanation), kinds(explanation, "gpu-server")) == (set(), {"zone"})
        assert kinds(cloud.refuses("gpu_tiny", "400", zone="nowhere")) == {"zone"}
        assert cloud.why(K40C, "why-zone").would_start
        cloud.exercise.delete([cloud.starts(K40C, zone="why-zone")])
        cloud.exercise.delete([cloud.starts("gpu_tiny")])
    finally:
        operator.request("POST", "compute", action, {"remove_host": {"host": HYPER18}})
        operator.request("DELETE", "compute", f"/os-aggregates/{identity}")


# Limits.


@contextmanager
def limited(cloud: Cloud, resource: str, value: int) -> Iterator[None]:
    """The demo project's own limit for a while; those that the site makes for its classes move with it."""
    operator = cloud.operator
    project = operator.get("identity", "/projects", name="demo")["projects"][0]["id"]
    rows = operator.get("identity", "/limits", project_id=project)["limits"]
    same = {r["resource_name"]: r["resource_limit"] for r in rows if r["resource_name"].startswith(resource)}
    for name in {*same, resource}:
        cloud.limit(name, value)
    try:
        yield
    finally:
        for name, before in same.items():
            cloud.limit(name, before)
        if resource not in same:
            operator.request("DELETE", "identity", f"/limits/{cloud.limit(resource, value)}")


@pytest.mark.parametrize("resource", ["class:CUSTOM_GPU_K4200", "class:VCPU", "class:MEMORY_MB", "servers"])
def test_limits_count_as_nova_counts(cloud: Cloud, resource: str) -> None:
    asks = {"class:VCPU": 4, "class:MEMORY_MB": 16384}.get(resource, 1)
    with limited(cloud, resource, asks):
        first = cloud.starts("k4200.4cores")
        explanation = cloud.refuses("k4200.4cores", "403")
        assert (kinds(explanation), explanation.where) == ({"quota"}, ("c4130",))
        (cause,) = explanation.causes
        (numbers,) = (row for row in cause.payload["details"] if row["resource"] == resource)
        assert (numbers["limit"], numbers["in_use"], numbers["asks"]) == (asks, asks, asks)
        cloud.carry_out(*explanation.first)
        cloud.exercise.delete([cloud.starts("k4200.4cores"), first])
        assert cloud.why("k4200.4cores").would_start


def test_a_limit_that_keystone_does_not_have(lab: RunningLab, cloud: Cloud, operator: CloudApi) -> None:
    """As before the site was applied."""
    name = "class:CUSTOM_GPU_K40C_COUNT"
    for kind in ("limits", "registered_limits"):
        for row in operator.get("identity", f"/{kind}", resource_name=name)[kind]:
            operator.request("DELETE", "identity", f"/{kind}/{row['id']}")
    try:
        explanation = cloud.refuses(K40C, "403")
        (cause,) = explanation.causes
        assert "Keystone has no registered limit on it" in cause.reason
        (action,) = explanation.first
        assert (action.kind, action.text) == (
            "register-limit",
            "run 'gpuyard site apply', which makes the registered limit",
        )
    finally:
        apply_site(lab.lab, cloud.loaded)
    cloud.starts(K40C)


# A site that does not have Placement decide about GPUs.


@pytest.mark.parametrize("stage", ["off", "report"])
def test_without_placement_all_but_the_gpus_is_looked_at(
    cloud: Cloud, tmp_path: Path, hog: Callable[[str, int, int], str], stage: str
) -> None:
    text = plain_site().read_text()
    document = YAML(typ="safe").load(text)
    document["pci_in_placement"] = stage
    document["flavors"] = {name: spec for name, spec in document["flavors"].items() if not spec.get("same_group")}
    site = tmp_path / "site.yaml"
    site.write_text(json.dumps(document))
    loaded = load_site(site)
    explanation = why(cloud.operator, loaded, K40C, "demo")
    assert (explanation.would_start, explanation.gpus_looked_at, explanation.where) == (True, False, (HYPER18,))
    assert explanation.answer == f"{K40C} in project demo would start on {HYPER18} if a GPU is free there"
    assert explanation.not_looked_at[0].startswith("GPUs (alias k40c): the site does not have Placement decide")
    cloud.service(HYPER18, status="disabled", disabled_reason="new fan")
    try:
        explanation = why(cloud.operator, loaded, K40C, "demo")
        assert kinds(explanation, HYPER18) == {"service-disabled"}
    finally:
        cloud.service(HYPER18, status="enabled")
    hog(HYPER18, 3000, 4)
    assert kinds(why(cloud.operator, loaded, K40C, "demo"), HYPER18) == {"room"}


# All of it.


@pytest.mark.slow
def test_it_says_yes_exactly_when_nova_does(cloud: Cloud, flavor: MakeFlavor) -> None:
    """Random servers come and go; before each one, what is said must be what then happens."""
    chance = random.Random(4)  # the same every time
    names = [
        "gpu_tiny", "gpu_4xlarge", "gpu_pair-a", "gpu_pair-b", "t4.15cores90GB", "t4.30cores180GB", K40C,
        "k4200.4cores",
        flavor("most", vcpus=30, ram=200 * 1024, disk=400), flavor("two", **{"pci_passthrough:alias": "v100:2"}),
    ]  # fmt: skip
    running: list[str] = []
    statuses = set()
    for _ in range(24):
        if len(running) > 9 or (running and chance.random() < 0.25):
            cloud.exercise.delete([running.pop(chance.randrange(len(running)))])
        name = chance.choice(names)
        explanation = cloud.why(name)
        status, server = cloud.ask(name)
        assert explanation.would_start == (status == "ACTIVE"), (name, status, explanation)
        statuses.add(status)
        if status == "ACTIVE":
            row = cloud.operator.get("compute", f"/servers/{server}")["server"]
            assert row["OS-EXT-SRV-ATTR:host"] in explanation.where
            running.append(server)
        elif server:
            cloud.exercise.delete([server])
    assert {"ACTIVE", REFUSED} <= statuses


def test_calls_are_bounded(cloud: Cloud, flavor: MakeFlavor) -> None:
    """The table of docs/how-to/why-no-valid-host.md, counted."""
    base = 6 + 1  # flavors, hypervisors, services, aggregates, providers, sharing ones; candidates
    project = 7  # project by id, by name, service, registered limits, own limits, usage, servers

    def classes(name: str) -> int:
        return len([key for key in named(name) if key.startswith("resources:")]) + 3

    def named(name: str) -> dict[str, str]:
        (site_flavor,) = (flavor for flavor in cloud.loaded.compiled.flavors if flavor.name == name)
        return site_flavor.extra_specs

    assert why(cloud.operator, cloud.loaded, K40C).calls == base + classes(K40C) + 1
    assert cloud.why(K40C).calls == base + project + classes(K40C) + 1
    pool, with_traits, traits = 2, 2, 1
    assert cloud.why("gpu_pair-a").calls == base + project + classes("gpu_pair-a") + pool + with_traits + traits
    boots = [cloud.starts("gpu_tiny") for _ in range(4)]
    servers_of_host, names = 1, 2  # the user's and another project's; the asker's is known
    explanation = cloud.why("gpu_tiny")
    room = 2 if "room" in kinds(explanation, "gpu-server") else 0
    assert (
        explanation.calls <= base + project + classes("gpu_tiny") + pool + servers_of_host + len(boots) + names + room
    )


def test_the_command(lab: RunningLab, cloud: Cloud) -> None:
    common = ["--os-cloud", ADMIN_CLOUD, "--site", str(lab.lab.site_file), "--project", "demo"]
    yes = CliRunner().invoke(app, ["gpu", "why", K40C, *common])
    assert (yes.exit_code, yes.stdout.splitlines()[0]) == (0, "k40c.2cores in project demo would start on hyper18")
    cloud.starts(K40C)
    no = CliRunner().invoke(app, ["gpu", "why", K40C, *common])
    assert no.exit_code == 3
    assert "  - on hyper18: delete or shelve server gpuyard-exercise-why-1" in no.stdout
    assert CliRunner().invoke(app, ["gpu", "why", K40C, *common, "-f", "table"]).stdout == no.stdout
    assert CliRunner().invoke(app, ["gpu", "why", K40C, *common, "-f", "text"]).stdout == no.stdout
    data = json.loads(CliRunner().invoke(app, ["gpu", "why", K40C, *common, "-f", "json"]).stdout)
    assert list(data) == [
        "flavor", "project", "would_start", "where", "answer", "causes", "hosts", "hosts_without", "first", "remedies",
        "doubts", "not_looked_at", "calls", "gpus_looked_at",
    ]  # fmt: skip
    assert data["remedies"][0]["actions"][0]["action"] == "delete-server"
    assert "would_start: false" in CliRunner().invoke(app, ["gpu", "why", K40C, *common, "-f", "yaml"]).stdout


def test_the_command_refuses_an_unknown_flavor(
    lab: RunningLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["gpuyard", "gpu", "why", "nope", "--os-cloud", ADMIN_CLOUD, "--site", str(lab.lab.site_file)]
    )
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "has no flavor 'nope'" in capsys.readouterr().err
    assert Path(lab.lab.site_file or "").exists()
