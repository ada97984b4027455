"""gpuyard's own user, made by `gpuyard site bootstrap` on the real services: it can do what the portal does, and no
more, by policies alone and by access rules too."""

from __future__ import annotations

import json
import re
import secrets
import stat
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from gpuyard.bookings.controllers.reclaim_servers import Reclaimer
from gpuyard.cli.main import app
from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.model.booking import ReclaimAction
from gpuyard.model.moments import iso_text
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.disabled_reason import Purpose
from gpuyard.openstack.host_maintenance import MaintenanceCloud
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.reader import Reader, unless_gone
from gpuyard.openstack.servers import NovaServers, ServerWish, open_servers_project
from gpuyard.provisioning.access.accounts import CLOUD, LIMITS_CLOUD, LIMITS_USER, USER
from gpuyard.provisioning.access.calls import CALLS, AllowedCall, CallCredentials
from gpuyard.provisioning.access.policies import LIMITS_ROLE, ROLE, SERVERS_ROLE, policy_files
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import load_site
from gpuyard.usage.read_lives import LifeReader, pools_by_alias
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.plan import IMAGE
from tests.integration.booked_lab import FLAVOR, PASSWORD, POOL, PREFIX, BookedLab, Open
from tests.integration.conftest import RunningLab
from tests.integration.test_enforcement import MUST, opened, settle, start
from tests.integration.test_reclaim import case, overstay, run_until_gone
from tests.support.booked_sites import booked_site
from tests.support.portal_processes import portals, token_of, until
from tests.support.runner_projects import limit

__all__ = ["opened"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]

RUNNERS, ACCEPTANCE = "granted-ci", "granted-acceptance"
MORE = {
    "runners": {"project": RUNNERS, "enrolments": [{"organization": "conda-forge", "token_file": "token"}]},
    "health": {"acceptance": {"project": ACCEPTANCE, "image": IMAGE}},
}
DOORS = {CLOUD: CallCredentials.PORTAL, LIMITS_CLOUD: CallCredentials.LIMITS}


@dataclass
class Granted:
    """A cloud with gpuyard's user in it."""

    site: Path
    clouds: Path
    output: str = ""
    """What the command said that made it."""
    seen: set[AllowedCall] = field(default_factory=set)
    """Rows of the table that were used."""
    unknown: set[tuple[str, ...]] = field(default_factory=set)
    """Calls that are in no row."""

    @cached_property
    def api(self) -> CloudApi:
        return connect(CLOUD, self.clouds)

    def run(self, *more: str) -> str:
        arguments = ["site", "bootstrap", "--site", str(self.site), "--clouds", str(self.clouds), *more]
        done = CliRunner().invoke(app, [*arguments, "--os-cloud", ADMIN_CLOUD])
        assert done.exit_code == 0, f"{done.output}{done.exception!r}"
        return done.output

    def note(self, cloud: str, method: str, service: str, path: str) -> None:
        credentials = DOORS.get(cloud, CallCredentials.SERVERS)
        if (credentials, service, path) == (CallCredentials.PORTAL, "identity", "/limits") and method == "GET":
            return  # goes through another door
        if path == "/auth/tokens" and method == "POST":
            return  # is made without credentials of ours
        candidates = [
            call for call in CALLS if (call.door, call.service, call.method) == (credentials, service, method)
        ]
        rows = [call for call in candidates if re.fullmatch(re.sub(r"{\w+}", "[^/]+", call.path), path)]
        exact = [row for row in rows if row.path == path] or rows
        self.seen.update(exact)
        if not exact:
            self.unknown.add((credentials, service, method, path))


def deploy(lab: RunningLab, files: Mapping[str, str]) -> None:
    """Services read their policy files again when these change."""
    for name, text in files.items():
        (lab.lab.etc / name).write_text(text)


def clean(operator: CloudApi) -> None:
    """Nothing is left of gpuyard's accounts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _clean(operator)


def _clean(operator: CloudApi) -> None:
    for kind, names in (
        ("user", {USER, LIMITS_USER}), ("project", {USER, RUNNERS, ACCEPTANCE}),
        ("role", {ROLE, SERVERS_ROLE, LIMITS_ROLE}),
    ):  # fmt: skip
        for row in operator.get("identity", f"/{kind}s")[f"{kind}s"]:
            if row["name"] in names:
                operator.request("DELETE", "identity", f"/{kind}s/{row['id']}")


@pytest.fixture(scope="module")
def granted(
    lab: RunningLab, operator: CloudApi, applied: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Granted]:
    folder = tmp_path_factory.mktemp("granted")
    booked_site(folder, MUST, {}, **MORE)
    made = Granted(folder / "site.yaml", folder / "own.yaml")
    clean(operator)
    with pytest.MonkeyPatch.context() as patch:
        try:
            deploy(lab, policy_files())
            made.output = made.run("--yes")
            original = CloudApi.request

            def request(self: CloudApi, method: str, service: str, path: str, *more: Any, **named: Any) -> Any:
                if self.name in DOORS or self.name.startswith(f"{CLOUD}-in-"):
                    made.note(self.name, method, service, path)
                return original(self, method, service, path, *more, **named)

            patch.setattr(CloudApi, "request", request)
            yield made
        finally:
            deploy(lab, dict.fromkeys(policy_files(), "{}\n"))
            clean(operator)


@pytest.fixture
def kept(granted: Granted, opened: Open) -> BookedLab:
    """A lab whose bookings are kept with gpuyard's own credentials."""
    booked = opened(MUST)
    operator, booked.operator = booked.operator, granted.api
    booked.restart()
    booked.operator = operator
    return booked


def secrets_of(clouds: Path) -> dict[str, str]:
    entries = yaml(clouds)["clouds"]
    return {
        name: entry["auth"].get("application_credential_secret") or entry["auth"]["password"]
        for name, entry in entries.items()
    }  # fmt: skip


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def test_the_credentials_are_for_their_owner_only_and_shown_nowhere(granted: Granted) -> None:
    assert stat.S_IMODE(granted.clouds.stat().st_mode) == 0o600
    secrets = secrets_of(granted.clouds)
    assert set(secrets) == {CLOUD, LIMITS_CLOUD, f"{CLOUD}-in-{RUNNERS}", f"{CLOUD}-in-{ACCEPTANCE}"}
    assert not [secret for secret in secrets.values() if secret in granted.output]
    assert "not yet" not in granted.output, granted.output


def test_a_second_run_has_nothing_to_do(granted: Granted) -> None:
    before = granted.clouds.read_text()
    assert "Nothing to do" in granted.run("--yes")
    assert granted.clouds.read_text() == before


def test_bookings_come_true_and_gpus_come_back(granted: Granted, kept: BookedLab) -> None:
    boot = overstay(kept)
    assert kept.limits() == {}
    warned = case(kept, boot)
    assert warned.due is not None
    assert kept.server(boot.server_id)["metadata"]["gpuyard"]
    kept.clock.until(warned.due)
    run_until_gone(kept, boot, "SHELVED_OFFLOADED")
    (image,) = kept.operator.get("image", "/images", instance_uuid=boot.server_id)["images"]
    assert image["owner"] == kept.people["ada"].project_id
    now = datetime.now(UTC)
    lives = LifeReader(granted.api, pools_by_alias(kept.compiled)).read(now - timedelta(hours=1), now)
    assert {deed.action for deed in lives[boot.server_id].deeds} >= {"create", "shelve"}
    assert lives[boot.server_id].server.user == "ada"
    kept.exercises["ada"].delete([boot.server_id])


def test_a_gpu_is_held_before_a_booking_and_a_second_booking_raises_the_limit(kept: BookedLab) -> None:
    first = kept.book("ada", hours=3)
    second = kept.book("eve", start=3600 + 600, hours=1)
    start(kept, first)
    assert kept.limits() == {"physics": 1}
    kept.clock.until(second.ask.start)
    settle(kept)
    assert kept.limits() == {"physics": 2}


def test_servers_of_others_are_stopped_and_deleted(granted: Granted, kept: BookedLab) -> None:
    boot = overstay(kept)
    reclaimer, open_case = Reclaimer(granted.api), case(kept, boot)
    reclaimer.take_warning_off(boot.server_id)
    assert kept.server(boot.server_id)["metadata"] == {}
    assert reclaimer.act(replace(open_case, action=ReclaimAction.STOP)) == "os-stop"
    kept.exercises["ada"].wait_for_status(boot.server_id, "SHUTOFF")
    assert reclaimer.act(replace(open_case, action=ReclaimAction.SNAPSHOT_AND_DELETE)) == "createImage"
    assert reclaimer.act(replace(open_case, action=ReclaimAction.DELETE)) in ("delete", "")
    kept.exercises["ada"].delete([boot.server_id])


def test_a_server_that_is_deleted_takes_its_port_with_it(granted: Granted, kept: BookedLab) -> None:
    """Nova asks Neutron on our behalf, which must show it ports of others."""
    kept.book("ada", start=0)
    kept.controller.run()
    ada = kept.apis["ada"]
    network = ada.request("POST", "network", "/networks", {"network": {"name": "granted"}})["network"]["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.7.0.0/24"}
    ada.request("POST", "network", "/subnets", {"subnet": subnet})
    exercise = kept.exercises["ada"]
    body = {"name": f"{PREFIX}ada-port", "imageRef": exercise._image, "networks": [{"uuid": network}]}
    flavor = next(row["id"] for row in ada.pages("compute", "/flavors", "flavors") if row["name"] == FLAVOR)
    try:
        id = ada.request("POST", "compute", "/servers", {"server": {**body, "flavorRef": flavor}})["server"]["id"]
        exercise.wait_for_status(id, "ACTIVE")
        assert ada.get("network", "/ports", device_id=id)["ports"]
        granted.api.request("DELETE", "compute", f"/servers/{id}")
        exercise._until(lambda: not ada.get("network", "/ports", network_id=network)["ports"], "Neutron")
    finally:
        exercise.clear()
        kept.operator.request("DELETE", "network", f"/networks/{network}")


def test_the_portal_shows_what_it_shows(granted: Granted, kept: BookedLab) -> None:
    loaded = load_site(granted.site)
    room = CapacityReader(granted.api, loaded)
    assert len(room.read(datetime.now(UTC)).hosts) == len(loaded.site.hosts)
    asker = room.asker("physics", ["servers"])
    assert asker.id == kept.people["ada"].project_id
    mine, theirs = read_objects(granted.api, kept.compiled), read_objects(kept.operator, kept.compiled)
    assert sorted(map(str, mine.flavors)) == sorted(map(str, theirs.flavors))
    assert sorted(map(str, mine.limits)) == sorted(map(str, theirs.limits))
    assert (mine.aggregates, mine.images, mine.hosts, mine.projects) == (
        theirs.aggregates, theirs.images, theirs.hosts, theirs.projects,
    )  # fmt: skip


def test_the_portal_is_served_with_them(granted: Granted, lab: RunningLab, opened: Open, tmp_path: Path) -> None:
    """As a process that has no other credentials: somebody books, the booking begins, and the server is shown."""
    booked = opened(MUST)
    with portals(1, tmp_path, granted.clouds, f"sqlite:///{tmp_path / 'ledger.db'}", CLOUD) as (portal,):
        token = token_of(lab.lab.endpoint("keystone"), "ada", PASSWORD, "physics")
        now = datetime.now(UTC)
        wish = json.dumps({"pool": POOL, "start": iso_text(now), "end": iso_text(now + timedelta(hours=1))}).encode()
        headers = {"X-Auth-Token": token, "Content-Type": "application/json"}
        status, _, body = portal.ask("POST", "/v1/bookings", wish, headers)
        assert status == 201, body
        until(lambda: booked.limits() == {"physics": 1})
        boot = booked.boot("ada")
        assert boot.status == "ACTIVE", boot.fault
        until(lambda: boot.server_id in portal.ask("GET", "/v1/gpus", headers=headers)[2].decode())
        booked.exercises["ada"].delete([boot.server_id])
        assert portal.is_ready()
    log = portal.log.read_text()
    assert not [line for line in log.splitlines() if re.search(r"Traceback|: 40[13] ", line)], log


def test_a_host_is_closed_for_its_maintenance_and_opened_again(granted: Granted, kept: BookedLab) -> None:
    kept.book("ada", start=0)
    kept.controller.run()
    boot = kept.boot("ada")
    row = kept.server(boot.server_id)
    host, cloud = row["OS-EXT-SRV-ATTR:host"], MaintenanceCloud(granted.api)
    provider = next(provider["uuid"] for provider in kept.operator.providers() if provider["name"] == host)
    cloud.close(host)
    try:
        tag = ComputeService(kept.operator, host).tag
        assert tag is not None
        assert tag.purpose is Purpose.MAINTENANCE
        assert {server.name for server in cloud.servers(host, provider).values()} == {row["name"]}
    finally:
        cloud.open(host)
    assert ComputeService(kept.operator, host).look().enabled
    kept.exercises["ada"].delete([boot.server_id])


def test_people_are_known_and_let_in(granted: Granted, kept: BookedLab) -> None:
    people, ada = KeystonePeople(granted.api), kept.people["ada"]
    assert people.log_in("ada", PASSWORD, "Default").user_id == ada.user_id
    account = people.account(ada.user_id)
    assert account is not None
    assert [(membership.project, membership.roles) for membership in account.memberships] == [
        ("physics", frozenset({"member", "reader"}))
    ]
    token = str(kept.apis["ada"]._connection.session.get_token())
    facts = people.token(token)
    assert facts is not None
    assert facts.user == "ada"
    assert people.token("of-nobody") is None
    assert people.users("ada") == [ada.user_id]
    assert people.users("nobody@Default") == []
    assert [project.id for project in people.projects("physics")] == [ada.project_id]
    assert [project.name for project in people.projects(ada.project_id)] == ["physics"]
    assert people.revoked(), "passwords of our own users were changed"


def test_servers_of_our_own_are_started_in_their_projects_and_nowhere_else(
    granted: Granted, operator: CloudApi
) -> None:
    for project, host in ((RUNNERS, ""), (ACCEPTANCE, "gpu-v100")):
        api, identity = open_servers_project(granted.api, project)
        assert api.project == identity
        servers = NovaServers(api, "example", "none")
        with limit(operator, identity, CUSTOM_GPU_V100=100, CUSTOM_GPU_V100_COUNT=100):
            named = next(iter(load_site(granted.site).site.hosts)) if host else ""
            id = servers.create(ServerWish("ours", "gpu_tiny", IMAGE, "#cloud-config\n", host=named))
            try:
                assert [server.id for server in servers.ours()] == [id]
                assert isinstance(servers.console(id), str)
            finally:
                servers.delete(id)


FORBIDDEN = (
    ("identity", "POST", "/users", {"user": {"name": "mallory", "domain_id": "default"}}),
    ("identity", "PATCH", "/users/{ada}", {"user": {"password": "mine-now"}}),
    ("identity", "DELETE", "/users/{ada}", None),
    ("identity", "POST", "/projects", {"project": {"name": "mallory", "domain_id": "default"}}),
    ("identity", "DELETE", "/projects/{physics}", None),
    ("identity", "PUT", "/projects/{physics}/users/{us}/roles/{admin}", None),
    ("identity", "PUT", "/system/users/{us}/roles/{admin}", None),
    ("identity", "POST", "/roles", {"role": {"name": "mallory"}}),
    ("identity", "GET", "/users/{ada}/application_credentials", None),
    ("identity", "POST", "/services", {"service": {"type": "x", "name": "x"}}),
    ("identity", "PATCH", "/registered_limits/{registered}", {"registered_limit": {"default_limit": 7}}),
    ("compute", "DELETE", "/os-services/{service}", None),
    ("compute", "GET", "/os-hypervisors/{hypervisor}", None),
    ("compute", "POST", "/flavors", {"flavor": {"name": "x", "vcpus": 1, "ram": 1, "disk": 1}}),
    ("compute", "DELETE", "/flavors/{flavor}", None),
    ("compute", "POST", "/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": "b"}}),
    ("compute", "POST", "/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "x"}}),
    ("compute", "POST", "/os-aggregates", {"aggregate": {"name": "x"}}),
    ("compute", "PUT", "/os-quota-sets/{physics}", {"quota_set": {"instances": 1000}}),
    ("compute", "GET", "/os-keypairs?user_id={ada}", None),
    ("compute", "GET", "/servers/{server}/diagnostics", None),
    ("compute", "GET", "/servers/{server}/os-interface", None),
    ("compute", "PUT", "/servers/{server}", {"server": {"name": "mine"}}),
    ("compute", "POST", "/servers", {"server": {"name": "x", "flavorRef": "{flavor}", "imageRef": "{image}",
                                                "networks": "none"}}),
    ("placement", "POST", "/resource_providers", {"name": "x"}),
    ("placement", "DELETE", "/resource_providers/{hypervisor}", None),
    ("placement", "DELETE", "/resource_providers/{hypervisor}/inventories", None),
    ("placement", "DELETE", "/allocations/{server}", None),
    ("placement", "PUT", "/traits/CUSTOM_MINE", None),
    ("image", "POST", "/images", {"name": "x", "container_format": "bare", "disk_format": "raw"}),
    ("image", "GET", "/images/{image}/file", None),
    ("image", "DELETE", "/images/{image}", None),
    ("image", "PATCH", "/images/{image}", [{"op": "replace", "path": "/name", "value": "x"}]),
    ("network", "POST", "/networks", {"network": {"name": "x"}}),
)  # fmt: skip
ACTIONS: tuple[dict[str, Any], ...] = (
    {"os-getConsoleOutput": {}}, {"changePassword": {"adminPass": "x"}}, {"reboot": {"type": "HARD"}},
    {"os-start": None}, {"rebuild": {"imageRef": "{image}"}}, {"resize": {"flavorRef": "{flavor}"}}, {"lock": None},
    {"unshelve": None}, {"rescue": None}, {"forceDelete": None}, {"os-resetState": {"state": "error"}},
    {"migrate": None}, {"evacuate": {}}, {"os-migrateLive": {"host": None, "block_migration": "auto"}},
    {"addSecurityGroup": {"name": "x"}},
)  # fmt: skip
"""Of somebody else's server. By its path access rules cannot tell them from what we may."""


def test_what_it_may_not_it_cannot(granted: Granted, kept: BookedLab) -> None:
    """With its credentials, and as the same user without their access rules, when policies stand alone."""
    operator = kept.operator
    kept.book("ada", start=0)
    kept.controller.run()
    boot = kept.boot("ada")
    words = some_of_everything(operator) | {
        "ada": kept.people["ada"].user_id, "physics": kept.people["ada"].project_id, "server": boot.server_id,
    }  # fmt: skip
    password = secrets.token_urlsafe(24)
    operator.request("PATCH", "identity", f"/users/{words['us']}", {"user": {"password": password}})
    bare = operator.as_user(USER, password, words["own"])
    end = monotonic() + 30
    while status_of(bare, "GET", "identity", "/services") is not None:  # a token may be taken for one from before
        assert monotonic() < end
        sleep(0.2)
    forbidden = [*FORBIDDEN, *(("compute", "POST", "/servers/{server}/action", body) for body in ACTIONS)]
    wrong = []
    for service, method, path, body in forbidden:
        where, what = filled(path, words), filled(body, words)
        for who, fine in ((granted.api, {401}), (bare, {403, 404})):
            headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"} if method == "PATCH" else None
            rules_do_not_tell = who is granted.api and any(
                (service, method) == (call.service, call.method) and call.path in (path, "/images/{image}" if
                "/images/" in path else "") for call in CALLS if call.door is CallCredentials.PORTAL
            )  # fmt: skip
            status = status_of(who, method, service, where, what, headers if service == "image" else None)
            if status not in (fine | {403, 404} if rules_do_not_tell else fine):
                wrong.append((service, method, path, body, "bare" if who is bare else "rules", status))
    assert not wrong
    kept.exercises["ada"].delete([boot.server_id])


def test_who_reads_limits_can_do_nothing_else(granted: Granted) -> None:
    limits = connect(LIMITS_CLOUD, granted.clouds)
    assert isinstance(limits.get("identity", "/limits")["limits"], list)
    for service, path in (
        ("identity", "/users"), ("identity", "/projects"), ("compute", "/os-services"),
        ("compute", "/servers/detail?all_tenants=1"), ("placement", "/resource_classes"),
    ):  # fmt: skip
        assert status_of(limits, "GET", service, path) in (401, 403), (service, path)


def some_of_everything(operator: CloudApi) -> dict[str, str]:
    """Ids of what there is in the lab."""
    (us,) = operator.get("identity", "/users", name=USER)["users"]
    (own,) = operator.get("identity", "/projects", name=USER)["projects"]
    image = operator.get("image", "/images", name=IMAGE)["images"][0]
    return {
        "us": us["id"], "own": own["id"], "image": image["id"],
        "admin": operator.get("identity", "/roles", name="admin")["roles"][0]["id"],
        "registered": operator.get("identity", "/registered_limits")["registered_limits"][0]["id"],
        "service": operator.get("compute", "/os-services")["services"][0]["id"],
        "hypervisor": operator.get("compute", "/os-hypervisors")["hypervisors"][0]["id"],
        "flavor": operator.get("compute", "/flavors")["flavors"][0]["id"],
    }  # fmt: skip


def filled(what: Any, words: Mapping[str, str]) -> Any:
    if isinstance(what, str):
        return re.sub(r"{(\w+)}", lambda match: words[match[1]], what)
    if isinstance(what, dict):
        return {key: filled(value, words) for key, value in what.items()}
    return [filled(item, words) for item in what] if isinstance(what, list) else what


def status_of(api: CloudApi, method: str, service: str, path: str, body: Any = None, headers: Any = None) -> int | None:
    """Of a refusal; None when it was done."""
    try:
        ASK(api, method, service, path, body, headers=headers)
    except CloudError as error:
        return error.status
    return None


ASK = CloudApi.request
"""Unobserved: what is forbidden is no call of ours."""


def test_new_credentials_end_the_old_ones(granted: Granted, operator: CloudApi) -> None:
    old = secrets_of(granted.clouds)
    before = granted.clouds.with_name("before.yaml")
    before.write_bytes(granted.clouds.read_bytes())
    connect(CLOUD, before).token()
    output = granted.run("--yes", "--rotate")
    del granted.api  # as a portal that is started anew
    new = secrets_of(granted.clouds)
    assert not set(old.values()) & set(new.values())
    assert not [secret for secret in new.values() if secret in output]
    assert connect(CLOUD, granted.clouds).get("identity", "/services")
    for cloud in old:
        with pytest.raises(CloudError, match="does not accept the credentials"):
            connect(cloud, before).token()
    user = some_of_everything(operator)["us"]
    left = operator.get("identity", f"/users/{user}/application_credentials")["application_credentials"]
    assert len(left) == 3, "nothing is left behind"


def test_credentials_that_do_not_work_do_not_end_those_that_do(
    granted: Granted, lab: RunningLab, operator: CloudApi
) -> None:
    before, user = granted.clouds.read_bytes(), some_of_everything(operator)["us"]
    credentials = operator.get("identity", f"/users/{user}/application_credentials")["application_credentials"]
    deploy(lab, {"placement/policy.yaml": "{}\n"})
    arguments = ["site", "bootstrap", "--site", str(granted.site), "--clouds", str(granted.clouds), "--os-cloud"]
    done = CliRunner().invoke(app, [*arguments, ADMIN_CLOUD, "--yes", "--rotate"])
    deploy(lab, policy_files())
    assert "the old ones stay" in str(done.exception)
    assert "GET placement /resource_classes is refused" in str(done.exception)
    assert granted.clouds.read_bytes() == before
    assert connect(LIMITS_CLOUD, granted.clouds).get("identity", "/limits")
    assert credentials == operator.get("identity", f"/users/{user}/application_credentials")["application_credentials"]


def test_every_call_is_in_the_table_and_every_row_is_used(granted: Granted) -> None:
    """Of what the tests before this one have done."""
    # What takes another cloud than this one: hosts that share what they have, private flavors, no region in
    # clouds.yaml, networks of runners, images that were shared with their project.
    with Reader(granted.api) as cloud:
        cloud.usages(next(iter(cloud.providers())))
        unless_gone(lambda: cloud.access(cloud.flavors()[0].id), frozenset[str]())
    assert granted.api.get("identity", "/endpoints")["endpoints"]
    api, _ = open_servers_project(granted.api, RUNNERS)
    assert isinstance(api.get("network", "/networks")["networks"], list)
    image = api.get("image", "/images", name=IMAGE)["images"][0]["id"]
    assert not unless_gone(lambda: api.get("image", f"/images/{image}/members/{api.project}"), dict[str, Any]()), (
        "it is public"
    )
    assert not granted.unknown
    assert not [call for call in CALLS if call not in granted.seen]
