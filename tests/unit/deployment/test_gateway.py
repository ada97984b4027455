"""What 'gpuyard gateway render' writes: for nginx, for the two ends of the tunnel, and for people."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from glance.common.config import common_opts
from hypothesis import given
from hypothesis import strategies as st
from openstack.block_storage.v3 import (
    availability_zone,
    backup,
    capabilities,
    cluster,
    default_type,
    extension,
    group_type,
    limits,
    manageable_volume,
    message,
    qos_spec,
    quota_class_set,
    service,
    snapshot,
    transfer,
    type,
    volume,
)
from openstack.resource import Resource
from oslo_config import cfg
from pydantic import ValidationError
from typer.testing import CliRunner

from gpuyard.cli.main import app, run
from gpuyard.deployment.gateway.nginx import PORTAL_HEADERS
from gpuyard.deployment.gateway.openings import OPENINGS
from gpuyard.deployment.gateway.steps import endpoint_commands, steps, takes_webhooks, whether_needed
from gpuyard.deployment.gateway.tree import HEADER, plan, tree
from gpuyard.deployment.gateway.tunnel import tunnel_files
from gpuyard.deployment.gateway.units import gateway_files
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.runtime.config_files import write
from gpuyard.site.gateway_rules import (
    ConsoleName,
    GatewayLimits,
    PublicEndpoint,
    SiteGateway,
    SshTunnel,
    WireGuardTunnel,
)
from gpuyard.site.problems import SiteError
from gpuyard_lab.identity import PORTAL_TYPE
from tests.support.gateways import (
    CINDER,
    CONSOLES,
    DASHBOARD,
    KEY_OF_CLOUD,
    KEY_OF_GATEWAY,
    PORTAL,
    SERVICES,
    SSH,
    SSH_KEY,
    VARIANTS,
    WIREGUARD,
    gateway,
    lets_through,
    nginx,
    rendered,
    with_nginx,
)
from tests.support.sites import flavor, site
from tests.unit.server import test_portal_authorization as portal_access

ROOT = Path(__file__).parents[3]
ALL = VARIANTS["all"]


# nginx.


@pytest.mark.parametrize(("variant", "webhook"), [*((name, False) for name in VARIANTS), ("everything said", True)])
def test_nginx_takes_each_variant(variant: str, webhook: bool, tmp_path: Path) -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("no nginx; tests/integration/test_gateway.py installs it")
    with_nginx(tmp_path, rendered(VARIANTS[variant], webhook))
    done = subprocess.run(nginx(tmp_path, "-t"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"\[(emerg|alert|crit|error|warn)\]", done.stderr), done.stderr


USED = [
    ("identity", "POST", "/v3/auth/tokens"),
    ("identity", "GET", "/v3/"),
    ("identity", "GET", "/v3/users/6f3c/application_credentials?name=ci%20one"),
    ("compute", "GET", "/"),
    ("compute", "GET", "/v2.1/servers/detail?limit=1&marker=a-b&all_tenants=1"),
    ("compute", "POST", "/v2.1/servers"),
    ("compute", "DELETE", "/v2.1/servers/0ab3c8d1-1111-2222-3333-0123456789ab"),
    ("compute", "GET", "/v2.1/os-keypairs/ada%40laptop"),
    ("compute", "DELETE", "/v2.1/os-keypairs/my%20key.pub"),
    ("image", "PUT", "/v2/images/0ab3/file"),
    ("image", "PATCH", "/v2/images/0ab3"),
    ("network", "GET", "/v2.0/networks?name=x"),
    ("network", "PUT", "/v2.0/routers/0ab3/add_router_interface"),
    ("portal", "GET", "/"),
    ("portal", "GET", "/gpu?host=gpu-1&address=0000%3A27%3A00.0"),
    ("portal", "POST", "/v1/health/gpu-1/0000%3A27%3A00.0/report"),
    ("portal", "GET", "/v1/jobs/conda-forge/x/17/log"),
    ("portal", "GET", "/ical/Zm9v-_.ics"),
    ("portal", "POST", "/login"),
]
# What Horizon 27 has for people with a project: openstack_auth/urls.py, openstack_dashboard/dashboards/project,
# openstack_dashboard/api/rest/*.py; of consoles what noVNC 1.6 and spice-html5 0.3 ask for.
USED_BY_BROWSERS = [
    ("dashboard", "GET", "/"),
    ("dashboard", "POST", "/auth/login/"),
    ("dashboard", "GET", "/auth/logout/"),
    ("dashboard", "GET", "/auth/switch/6f3c/?next=/project/"),
    ("dashboard", "GET", "/static/dashboard/css/output.0a1b2c.css"),
    ("dashboard", "GET", "/i18n/js/horizon+openstack_dashboard/"),
    ("dashboard", "POST", "/i18n/setlang/"),
    ("dashboard", "GET", "/project/instances/0ab3/?tab=instance_details__console"),
    ("dashboard", "POST", "/project/instances/"),
    ("dashboard", "POST", "/project/volumes/create/"),
    ("dashboard", "GET", "/project/api_access/clouds.yaml/"),
    ("dashboard", "POST", "/identity/application_credentials/create/"),
    ("dashboard", "GET", "/api/settings/"),
    ("dashboard", "POST", "/api/policy/"),
    ("dashboard", "GET", "/api/keystone/user-session/"),
    ("dashboard", "POST", "/api/nova/servers/"),
    ("dashboard", "POST", "/api/nova/servers/0ab3/console-info/"),
    ("dashboard", "DELETE", "/api/nova/keypairs/my%20key"),
    ("dashboard", "PUT", "/api/glance/images/"),
    ("dashboard", "PATCH", "/api/network/floatingip/"),
    ("image", "OPTIONS", "/v2/images/0ab3/file"),
    ("novnc", "GET", "/vnc_lite.html?path=%3Ftoken%3D6f1d"),
    ("novnc", "GET", "/core/decoders/tight.js"),
    ("novnc", "GET", "/?token=6f1d"),
    ("spice", "GET", "/spice_auto.html?token=6f1d&title=one%280ab3%29"),
    ("spice", "GET", "/src/main.js"),
    ("spice", "GET", "/websockify?token=6f1d"),
    ("serial", "GET", "/?token=6f1d"),
]
UNUSED_BY_BROWSERS = [
    ("dashboard", "GET", "/admin/"),
    ("dashboard", "GET", "/admin/hypervisors/"),
    ("dashboard", "POST", "/admin/flavors/create/"),
    ("dashboard", "GET", "/identity/domains/"),
    ("dashboard", "GET", "/identity/roles/"),
    ("dashboard", "POST", "/identity/projects/create"),
    ("dashboard", "POST", "/identity/users/create/"),
    ("dashboard", "GET", "/auth/switch_system_scope/"),
    ("dashboard", "POST", "/auth/websso/"),
    ("dashboard", "POST", "/api/keystone/users/"),
    ("dashboard", "GET", "/api/keystone/users/6f3c"),
    ("dashboard", "PUT", "/api/keystone/projects/a/b/c"),
    ("dashboard", "GET", "/api/x/keystone/users/"),
    ("dashboard", "POST", "/api/nova/flavors/"),
    ("dashboard", "PATCH", "/api/nova/flavors/a/extra-specs/"),
    ("dashboard", "PATCH", "/api/nova/quota-sets/a"),
    ("dashboard", "GET", "/api/nova/services/"),
    ("dashboard", "PATCH", "/api/cinder/quota-sets/a"),
    ("dashboard", "POST", "/api/neutron/qos_policies/"),
    ("dashboard", "PUT", "/project/instances/"),
    ("dashboard", "POST", "/static/x.css"),
    ("dashboard", "GET", "/horizon/../admin/"),
    ("image", "OPTIONS", "/v2/images"),
    ("novnc", "POST", "/"),
    ("novnc", "GET", "/record/x"),
    ("spice", "PUT", "/websockify"),
    ("serial", "GET", "/vnc_lite.html"),
    ("serial", "GET", "/websockify"),
]
UNUSED = [
    ("identity", "POST", "/v3/users"),
    ("identity", "GET", "/v3/users"),
    ("identity", "PATCH", "/v3/users/6f3c"),
    ("identity", "PUT", "/v3/projects/a/users/b/roles/c"),
    ("identity", "GET", "/v3/role_assignments"),
    ("identity", "POST", "/v3/OS-TRUST/trusts"),
    ("identity", "GET", "/v3/credentials"),
    ("identity", "GET", "/v2.0/tokens"),
    ("identity", "GET", "/v3/users/x/password"),
    ("identity", "GET", "/v3/auth/OS-FEDERATION/websso/openid"),
    ("compute", "GET", "/v2.1/os-services"),
    ("compute", "PUT", "/v2.1/os-services/1"),
    ("compute", "GET", "/v2.1/os-hypervisors/detail"),
    ("compute", "GET", "/v2.1/os-aggregates"),
    ("compute", "POST", "/v2.1/os-server-external-events"),
    ("compute", "PUT", "/v2.1/os-quota-sets/p"),
    ("compute", "POST", "/v2.1/flavors"),
    ("compute", "GET", "/v2.1/servers/x/migrations"),
    ("compute", "OPTIONS", "/v2.1/servers"),
    ("compute", "PATCH", "/v2.1/servers/x"),
    ("image", "POST", "/v2/tasks"),
    ("image", "POST", "/v2/images/0ab3/import"),
    ("image", "PUT", "/v2/images/0ab3/stage"),
    ("image", "POST", "/v2/images/0ab3/locations"),
    ("image", "DELETE", "/v2/cache/x"),
    ("network", "GET", "/v2.0/agents"),
    ("network", "PUT", "/v2.0/quotas/p"),
    ("placement", "GET", "/"),
    ("placement", "GET", "/resource_providers"),
    ("portal", "GET", "/metrics"),
    ("portal", "GET", "/readyz/"),
    ("portal", "POST", "/v1/hosts/gpu-1/looks"),
    ("portal", "POST", "/v1/agents/enrol"),
    ("portal", "POST", "/v1/github/webhook"),
    ("portal", "PUT", "/v1/bookings"),
    ("portal", "POST", "/static/pages.css"),
]
TRICKS = [
    "/v2.1/servers/../os-services",
    "/v2.1/servers/%2e%2e/os-services",
    "/v2.1/servers/.%2e/os-services",
    "/v2.1/servers/x/../../os-services",
    "/v2.1//servers",
    "//v2.1/servers",
    "/v2.1/./servers",
    "/v2.1/servers;/../os-services",
    "/v2.1/servers/..;/os-services",
    "/v2.1/servers%2f..%2fos-services",
    "/v2.1/servers%2Fdetail",
    "/v2.1/servers/%5c..%5cos-services",
    "/v2.1/servers/a\\..\\b",
    "/v2.1/%73ervers",
    "/v2.1/servers/%00",
    "/v2.1/servers/%0d%0aHost:x",
    "/v2.1/servers/%c0%af",
    "/v2.1/servers/a%252fb",
    "/v2.1/servers/a#b",
    "/v2.1/servers/ü",
    "/v2.1/servers/a b",
    "/v2.1/servers?a=b c",
    "v2.1/servers",
    "http://cloud.example.org/v2.1/servers",
    "*",
    "",
]


@pytest.mark.parametrize(("door", "method", "path"), USED)
def test_what_clients_need_passes(door: str, method: str, path: str) -> None:
    assert lets_through(rendered(ALL), door)(method, path)


@pytest.mark.parametrize(("door", "method", "path"), UNUSED)
def test_what_they_do_not_need_does_not(door: str, method: str, path: str) -> None:
    assert not lets_through(rendered(ALL), door)(method, path)


@pytest.mark.parametrize(("door", "method", "path"), USED_BY_BROWSERS)
def test_what_pages_of_horizon_and_consoles_need_passes(door: str, method: str, path: str) -> None:
    assert lets_through(BROWSERS, door)(method, path)


@pytest.mark.parametrize(("door", "method", "path"), UNUSED_BY_BROWSERS)
def test_what_they_do_not_need_passes_for_operators_of_horizon_alone(door: str, method: str, path: str) -> None:
    conf = rendered(VARIANTS["everything said"] | {"single_sign_on": False})
    assert not lets_through(BROWSERS, door)(method, path)
    assert lets_through(conf, door)(method, path, operator=True) == (door == "dashboard" and ".." not in path)


def test_single_sign_on_opens_its_pages_of_horizon() -> None:
    passes = lets_through(rendered(VARIANTS["everything said"]), "dashboard")
    assert passes("POST", "/auth/websso/")
    assert passes("GET", "/auth/error/")


BROWSERS = rendered(VARIANTS["browsers"])
PREFIXES = ("/v3", "/v3/6f3c0a")
"""What block-storage and volumev3 have in the catalogue before the path."""


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("resource", [
    backup.Backup, message.Message, snapshot.Snapshot, transfer.Transfer, volume.Volume, limits.Limits, type.Type,
    availability_zone.AvailabilityZone, extension.Extension,
], ids=lambda resource: resource.__name__)  # fmt: skip
def test_what_the_sdk_asks_cinder_for_its_members_passes(prefix: str, resource: builtins.type[Resource]) -> None:
    """openstacksdk, block_storage/v3: paths and methods of the resources that have no need of an administrator."""
    passes, path = lets_through(BROWSERS, "block-storage"), prefix + resource.base_path
    readers = resource in (type.Type,)  # which administrators make
    if resource.allow_list:
        assert passes("GET", f"{path}?limit=1")
    if resource.allow_fetch:
        assert passes("GET", path if resource is limits.Limits else f"{path}/0ab3")
    if resource.allow_create:
        assert passes("POST", path) != readers
    if resource.allow_commit:
        assert passes("PUT", f"{path}/0ab3") != readers
    if resource.allow_delete:
        assert passes("DELETE", f"{path}/0ab3") != readers


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("resource", [
    capabilities.Capabilities, cluster.Cluster, default_type.DefaultType, group_type.GroupType,
    manageable_volume.ManageableVolume, qos_spec.QoSSpec, quota_class_set.QuotaClassSet, service.Service,
], ids=lambda resource: resource.__name__)  # fmt: skip
def test_what_the_sdk_asks_cinder_for_administrators_does_not(prefix: str, resource: builtins.type[Resource]) -> None:
    passes = lets_through(BROWSERS, "block-storage")
    for path in (prefix + resource.base_path, f"{prefix}{resource.base_path}/0ab3"):
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert not passes(method, path), path


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/volumes/0ab3/action"), ("GET", "/volumes/detail"), ("GET", "/volumes/summary"),
    ("POST", "/backups/0ab3/restore"), ("POST", "/os-volume-transfer/0ab3/accept"), ("GET", "/types/default"),
    ("GET", "/os-quota-sets/6f3c?usage=True"), ("PUT", "/snapshots/0ab3/metadata"),
])  # fmt: skip
def test_what_else_clients_ask_cinder_passes(method: str, path: str) -> None:
    """python-cinderclient 9: volumes.py, volume_backups_restore.py, volume_transfers.py, volume_types.py, quotas.py."""
    assert all(lets_through(BROWSERS, "block-storage")(method, prefix + path) for prefix in PREFIXES)


@pytest.mark.parametrize(("method", "path"), [
    ("PUT", "/os-quota-sets/6f3c"), ("GET", "/backups/0ab3/export_record"), ("POST", "/backups/import_record"),
    ("POST", "/snapshots/0ab3/action"), ("GET", "/attachments"), ("POST", "/types/0ab3/action"),
    ("GET", "/scheduler-stats/get_pools"), ("POST", "/types/0ab3/extra_specs"), ("GET", "/os-hosts"),
])  # fmt: skip
def test_what_cinder_has_for_administrators_and_services_does_not(method: str, path: str) -> None:
    passes = lets_through(BROWSERS, "block-storage")
    assert not any(passes(method, prefix + path) for prefix in PREFIXES)
    conf = rendered(VARIANTS["everything said"])
    assert lets_through(conf, "block-storage")(method, PREFIXES[0] + path, operator=True)


@pytest.mark.parametrize("variant", ["all", "browsers", "everything said"])
def test_no_variable_of_nginx_is_two_things(variant: str) -> None:
    """A named group of an expression sets a variable, too, and would win over the map of that name."""
    conf = rendered(VARIANTS[variant])
    names = re.findall(r"^    (?:map|geo) .*\$(\w+) \{$", conf, re.MULTILINE) + re.findall(r"\(\?<(\w+)>", conf)
    assert len(names) == len(set(names)), names


def test_websockets_are_of_consoles_alone_and_no_cookie_but_their_own_reaches_them() -> None:
    assert "$gpuyard_upgrade" not in rendered(ALL)
    servers = dict(re.findall(r"^    # (\S+)\n    server \{(.*?)^    \}", BROWSERS, re.M | re.S))
    upgraded = {name for name, text in servers.items() if "Upgrade" in text}
    assert upgraded == {"novnc", "spice", "serial"}
    cookies = {name: re.findall(r'proxy_set_header Cookie "(\S+)"', text) for name, text in servers.items()}
    assert {name: values for name, values in cookies.items() if values} == {
        "dashboard": ["$http_cookie"],
        "spice": ["$gpuyard_console_cookie"],
    }


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("operator", [False, True])
def test_no_path_that_can_be_read_in_two_ways_passes_for_anybody(path: str, operator: bool) -> None:
    for method in ("GET", "POST"):
        assert not lets_through(rendered(ALL), "compute")(method, path, operator)


@given(st.text(alphabet="/.;%2eEfF5cC\\av1?#: ", max_size=24))
def test_what_passes_has_one_meaning(path: str) -> None:
    if lets_through(PLAIN, "portal")("GET", path):
        before = path.partition("?")[0]
        assert ".." not in before.split("/")
        assert not re.search(r"//|;|\\|\s|#|%(?!20|2[Bb]|2[Cc]|3[Aa]|40)", before)


PLAIN = rendered(VARIANTS["portal"])


def test_operators_reach_all_of_an_api_and_of_the_portal_what_all_do() -> None:
    conf = rendered(VARIANTS["everything said"])
    assert "\n        198.51.100.0/24 1;\n        2001:db8:1::7/128 1;\n" in conf
    for door, method, path in UNUSED:
        passes = lets_through(conf, door)(method, path, operator=True)
        assert passes == (door != "portal" and method != "OPTIONS"), (door, method, path)


def test_the_site_may_open_more() -> None:
    passes = lets_through(rendered(VARIANTS["everything said"]), "identity")
    assert passes("POST", "/v3/OS-X/one")
    assert passes(
        "GET", "/v3/auth/OS-FEDERATION/identity_providers/campus/protocols/openid/websso?origin=https%3A%2F%2Fx"
    )
    assert not passes("DELETE", "/v3/OS-X/one")
    assert not passes("POST", "/v3/OS-X/one/two")


def test_webhooks_pass_where_the_site_takes_them() -> None:
    assert lets_through(rendered(ALL, webhook=True), "portal")("POST", "/v1/github/webhook")
    conf = rendered(VARIANTS["everything said"], webhook=True)
    (location,) = re.findall(r"location = /v1/github/webhook \{(.*?)\}", conf, re.DOTALL)
    assert "allow 140.82.112.0/20;" in location
    assert "deny all;" in location


def test_every_page_and_call_for_people_passes_and_nothing_for_machines() -> None:
    """An endpoint that the portal gets is here by itself, by the table that says who may reach it."""
    passes = lets_through(rendered(ALL), "portal")
    tables = (
        *("ACCESS", "BOOKING_ACCESS", "USAGE_ACCESS", "RUNNER_ACCESS", "BOOTABLE_ACCESS", "HEALTH_ACCESS"),
        *("MACHINE_ACCESS", "AGENT_ACCESS"),
    )
    closed = set()
    for table in tables:
        for method, path in getattr(portal_access, table):
            if not passes(method, re.sub(r"\{[^}]*\}", "x", path)):
                closed.add((method, path))
    assert closed == {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("POST", "/v1/github/webhook"),
        ("POST", "/v1/agents/samples"),
        ("POST", "/v1/agents/enrol"),
        *portal_access.MACHINE_ACCESS,
    }


def test_every_header_that_the_portal_reads_comes_through() -> None:
    served = [path for path in (ROOT / "src/gpuyard").rglob("*.py") if {"web", "dashboard"} & set(path.parts)]
    text = "\n".join(path.read_text() for path in served)
    read = re.findall(r'headers\.(?:get|getlist)\(\s*"([a-z-]+)"|alias="([A-Z][A-Za-z-]+)"|SIGNATURE = "([^"]+)"', text)
    names = {next(name for name in groups if name).lower() for groups in read}
    assert {"x-auth-token", "idempotency-key", "last-event-id"} <= names
    by_nginx = {"host", "content-length", "x-forwarded-for", "x-forwarded-proto"}
    assert names - by_nginx <= {name.lower() for name in PORTAL_HEADERS}
    webhook = (ROOT / "src/gpuyard/runners/webhook.py").read_text() + (
        ROOT / "src/gpuyard/runners/web/github_webhook.py"
    ).read_text()
    for name in re.findall(r'"(x-(?:github|hub)-[a-z0-9-]+)"', webhook, re.IGNORECASE):
        assert name.lower() in {header.lower() for header in PORTAL_HEADERS}, name


def test_nothing_that_a_client_says_of_itself_is_passed_on() -> None:
    conf = rendered(ALL)
    assert "proxy_pass_request_headers off;" in conf
    passed = set(re.findall(r'proxy_set_header (\S+) "\$http_', conf))
    assert not {
        name for name in passed if re.search(r"forwarded|real-ip|original|rewrite|user-id|role|remote", name, re.I)
    }
    assert conf.count('proxy_set_header X-Forwarded-For "$remote_addr";') == len(gateway(ALL).endpoints)
    assert 'proxy_set_header Forwarded "for=$remote_addr;proto=https;host=cloud.example.org:8774";' in conf


def test_there_is_no_row_twice() -> None:
    rows = [(opening.service, method, opening.path) for opening in OPENINGS for method in opening.methods]
    assert len(rows) == len(set(rows))
    assert all(opening.why for opening in OPENINGS)


# Values that would be something else in a configuration file.

HOSTILE = [
    "",
    " ",
    "a b",
    "a;b",
    "a\nb",
    'a"b',
    "a'b",
    "a}b",
    "a{b",
    "$host",
    "a#b",
    "a\\b",
    "`id`",
    "$(id)",
    "%i",
    "ä",
    "\0",
]
PLACES: dict[str, tuple[str, ...]] = {
    "name": ("portal", "public"),
    "dashboard": ("dashboard", "public"),
    "console": ("consoles", "novnc", "behind"),
    "behind": ("portal", "behind"),
    "allow": ("portal", "allow", "0"),
    "more": ("portal", "more", "0"),
    "all": ("allow", "0"),
    "operators": ("operators", "0"),
    "webhooks": ("webhooks_from", "0"),
    "endpoint": ("wireguard", "endpoint"),
    "address": ("wireguard", "gateway", "address"),
    "key": ("wireguard", "cloud", "key"),
    "mtu": ("wireguard", "mtu"),
    "requests": ("limits", "requests"),
    "image": ("limits", "image"),
}
SSH_PLACES = {"ssh endpoint": ("ssh", "endpoint"), "host key": ("ssh", "host_key"), "ssh key": ("ssh", "key")}
GOOD = {
    "name": "gpus.example.org",
    "dashboard": "d.example.org",
    "console": "10.0.0.1:80",
    "behind": "10.0.0.1:80",
    "more": "GET /v1",
    "key": KEY_OF_CLOUD,
    "image": "1 GiB",
}
GOOD |= {"endpoint": "a.example.org:1", "ssh endpoint": "a.example.org:1", "host key": SSH_KEY, "ssh key": SSH_KEY}


def put(document: Mapping[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(document))
    where: Any = changed
    for part in place[:-1]:
        where = where.setdefault(part, [] if place[-1] == "0" and part == place[-2] else {})
    where.append(value) if place[-1] == "0" else where.update({place[-1]: value})
    return changed


@pytest.mark.parametrize("place", [*PLACES, *SSH_PLACES])
@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_values_are_refused(place: str, bad: str) -> None:
    base, where = (ALL, PLACES[place]) if place in PLACES else (VARIANTS["ssh"], SSH_PLACES[place])
    good = GOOD.get(place, "192.0.2.7")
    ways = (bad, good + bad, bad + good) if bad else (bad,)
    for value in ways:
        if place in ("ssh key", "host key") and value.startswith(f"{SSH_KEY} "):
            continue  # a comment, which is left out
        with pytest.raises(ValidationError):
            gateway(put(base, where, value))


@given(st.sampled_from(sorted(PLACES)), st.text(max_size=60))
def test_what_is_taken_is_no_more_than_a_word(place: str, value: str) -> None:
    try:
        configuration = put(ALL, PLACES[place], value)
        files = {"nginx.conf": rendered(configuration), **tunnel_files(gateway(configuration))}
    except ValidationError:
        return
    for text in files.values():
        # Neither a line nor a block more than without it.
        assert "\0" not in text
        assert all(ord(letter) < 128 for letter in text)
    assert place in ("more",) or len(value.split()) <= 2


BAD = {
    "an address that is a name's": ({"portal": {**PORTAL, "public": "10.0.0.1"}}, "not the name of a machine"),
    "without a dot": ({"portal": {**PORTAL, "public": "localhost"}}, "not the name of a machine"),
    "port 80": ({"portal": {**PORTAL, "public": "gpus.example.org:80"}}, "port 80 leads to https"),
    "no port behind": ({"portal": {**PORTAL, "behind": "10.0.0.1"}}, "is not an address and a port"),
    "a name behind": ({"portal": {**PORTAL, "behind": "nova.internal:8774"}}, "not an IP address"),
    "IPv6 without brackets": ({"portal": {**PORTAL, "behind": "fd00::1:8080"}}, "write them as in"),
    "loopback through WireGuard": (
        {"portal": {**PORTAL, "behind": "127.0.0.1:8080"}, "wireguard": WIREGUARD},
        "would be the gateway itself",
    ),
    "nowhere": ({}, "leads nowhere"),
    "two tunnels": ({"portal": PORTAL, "wireguard": WIREGUARD, "ssh": SSH}, "two tunnels"),
    "twice in one place": (
        {"portal": PORTAL, "services": {"compute": {**SERVICES["compute"], "public": "gpus.example.org"}}},
        "portal and compute are both at gpus.example.org; give each",
    ),
    "unknown service": ({"services": {"dns": PORTAL}}, "identity"),
    "one key for both": (
        {"portal": PORTAL, "wireguard": {**WIREGUARD, "cloud": {"address": "10.99.0.2", "key": KEY_OF_GATEWAY}}},
        "both ends have the same key",
    ),
    "one address for both": (
        {"portal": PORTAL, "wireguard": {**WIREGUARD, "cloud": {"address": "10.99.0.1", "key": KEY_OF_CLOUD}}},
        "both ends have the same address",
    ),
    "an address with a mask": ({"portal": PORTAL, "allow": ["192.0.2.7/24"]}, "write '192.0.2.0/24' if all of it"),
    "a zone in a network": ({"portal": PORTAL, "allow": ["fe80::1%x; } server { listen 81"]}, "behind the %"),
    "a private key of SSH": (
        {"portal": PORTAL, "ssh": {**SSH, "key": "-----BEGIN OPENSSH PRIVATE KEY-----"}},
        "not a public key of OpenSSH",
    ),
    "half a key": ({"portal": PORTAL, "ssh": {**SSH, "key": "ssh-rsa " + SSH_KEY.split()[1]}}, "is damaged"),
    "TRACE": ({"portal": {**PORTAL, "more": ["TRACE /x"]}}, "is no request"),
    "rest in the middle": ({"portal": {**PORTAL, "more": ["GET /a/{rest}/b"]}}, "is no request"),
    "a path with dots": ({"portal": {**PORTAL, "more": ["GET /a/../b"]}}, "is no request"),
    "a request by its braces": ({"portal": {**PORTAL, "more": ["GET a"]}}, "part of a path, {rest} at the end"),
    "a URL": ({"portal": {**PORTAL, "public": "https://gpus.example.org"}}, "write the name alone"),
    "a URL behind": ({"portal": {**PORTAL, "behind": "http://10.99.0.2:80"}}, "is not an address and a port"),
    "no port of the tunnel": (
        {"portal": PORTAL, "wireguard": {**WIREGUARD, "endpoint": "gateway.example.org"}},
        "'gateway.example.org' has no port",
    ),
    "a size that is a number": ({"portal": PORTAL, "limits": {"body": 100}}, "write a whole number and a unit"),
    "the gateway behind itself": (
        {"portal": {**PORTAL, "behind": "10.99.0.1:8080"}, "wireguard": WIREGUARD},
        "is the gateway's own end",
    ),
    "a size without unit": ({"portal": PORTAL, "limits": {"image": "64"}}, "write a whole number and a unit"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_with_what_to_write(case: str, tmp_path: Path) -> None:
    document, words = BAD[case]
    with pytest.raises(SiteError, match=words) as caught:
        site(tmp_path, {"gateway": document})
    assert "gateway" in str(caught.value)


# The tunnel.


def test_wireguard_lets_through_what_the_doors_need_and_no_private_key_is_written() -> None:
    files = tunnel_files(gateway(ALL))
    ours = files["gateway/etc/gpuyard/tunnel/wireguard.conf"]
    assert "AllowedIPs = 10.99.0.2/32, 10.20.0.250/32, fd00::9/128\n" in ours
    assert KEY_OF_CLOUD in ours
    assert "Endpoint" not in ours
    theirs = files["cloud/etc/gpuyard/tunnel/wireguard.conf"]
    assert "AllowedIPs = 10.99.0.1/32\nEndpoint = gateway.example.org:51820\nPersistentKeepalive = 25\n" in theirs
    everything = "\n".join(files.values())
    assert not re.search(r"PrivateKey|PostUp|PreUp|0\.0\.0\.0/0|::/0", everything)
    assert everything.count("mtu 1380 up") == 2
    unit = files["cloud/etc/systemd/system/gpuyard-tunnel.service"]
    assert unit.index("nft -f") < unit.index("ip link add"), "the filter is there before the tunnel"
    unit = files["gateway/etc/systemd/system/gpuyard-tunnel.service"]
    assert "nft" not in unit
    for address in ("10.99.0.2/32", "10.20.0.250/32", "fd00::9/128"):
        assert unit.index(f"route replace blackhole {address} metric") < unit.index("ip link add"), "or it would leak"
    assert "ip6 daddr fd00::9 tcp dport 9696 accept" in files["cloud/etc/gpuyard/tunnel/filter.nft"]


def test_ssh_permits_the_ports_of_the_doors_alone() -> None:
    files = tunnel_files(gateway(VARIANTS["ssh"]))
    keys = files["gateway/etc/gpuyard/tunnel/authorized_keys"]
    listens = [f'permitlisten="127.0.0.1:{port}"' for port in range(15000, 15006)]
    assert keys == f"restrict,port-forwarding,{','.join(listens)} {SSH_KEY}\n"
    client = files["cloud/etc/gpuyard/tunnel/ssh_config"]
    assert re.findall(r"RemoteForward (\S+) (\S+)", client) == [
        ("127.0.0.1:15000", "127.0.0.1:8080"),
        ("127.0.0.1:15001", "10.20.0.250:5000"),
        ("127.0.0.1:15002", "10.20.0.250:8774"),
        ("127.0.0.1:15003", "10.20.0.250:9292"),
        ("127.0.0.1:15004", "[fd00::9]:9696"),
        ("127.0.0.1:15005", "10.20.0.250:8780"),
    ]
    assert files["cloud/etc/gpuyard/tunnel/known_hosts"] == f"gateway.example.org {SSH_KEY}\n"
    conf = rendered(VARIANTS["ssh"])
    assert "proxy_pass http://127.0.0.1:15002;" in conf
    assert "10.20.0.250" not in conf


@pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no sshd")
def test_sshd_and_ssh_read_what_is_written_for_them(tmp_path: Path) -> None:
    files = tunnel_files(gateway(VARIANTS["ssh"]))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "host"], check=True)
    (tmp_path / "sshd").write_text(
        f"HostKey {tmp_path}/host\n" + files["gateway/etc/ssh/sshd_config.d/50-gpuyard-tunnel.conf"]
    )
    command = ["/usr/sbin/sshd", "-T", "-f", str(tmp_path / "sshd"), "-C", "user=gpuyard-tunnel,host=x,addr=192.0.2.1"]
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "allowtcpforwarding remote" in lines
    assert f"permitlisten {' '.join(f'127.0.0.1:{port}' for port in range(15000, 15006))}" in lines
    assert {"permittty no", "gatewayports no", "allowagentforwarding no", "maxsessions 0"} <= set(lines)
    (tmp_path / "client").write_text(files["cloud/etc/gpuyard/tunnel/ssh_config"])
    lines = subprocess.run(
        ["ssh", "-G", "-F", tmp_path / "client", "gateway"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"exitonforwardfailure yes", "stricthostkeychecking true", "serveraliveinterval 15"} <= set(lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize(
    ("variant", "name", "most"),
    [
        ("all", "gateway/etc/systemd/system/gpuyard-gateway.service", 2.0),
        ("all", "gateway/etc/systemd/system/gpuyard-gateway-certificate.service", 2.0),
        ("all", "gateway/etc/systemd/system/gpuyard-tunnel.service", 2.0),
        ("all", "cloud/etc/systemd/system/gpuyard-tunnel.service", 2.0),
        ("ssh", "cloud/etc/systemd/system/gpuyard-tunnel.service", 2.0),
    ],
)
def test_units_are_exposed_no_more_than_they_must_be(variant: str, name: str, most: float, tmp_path: Path) -> None:
    files = {**gateway_files(), **tunnel_files(gateway(VARIANTS[variant]))}
    path = tmp_path / Path(name).name
    path.write_text(files[name])
    command = [
        "systemd-analyze",
        "security",
        "--offline=yes",
        f"--threshold={round(most * 10)}",
        "--no-pager",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers")
@pytest.mark.parametrize("variant", ["all", "ssh"])
def test_systemd_makes_the_users(variant: str, tmp_path: Path) -> None:
    files = {**gateway_files(), **tunnel_files(gateway(VARIANTS[variant]))}
    texts = [text for name, text in files.items() if "/sysusers.d/" in name]
    assert texts
    for text in texts:
        (tmp_path / "users.conf").write_text(HEADER + text)
        command = ["systemd-sysusers", "--dry-run", str(tmp_path / "users.conf")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "not a valid" in done.stderr) == (0, False), done.stderr


# The tree, and what people are told.


def test_a_tree_is_written_compared_and_cleaned_and_nothing_of_others_is_touched(tmp_path: Path) -> None:
    loaded = site(tmp_path, {"gateway": ALL})
    out = tmp_path / "out"
    files = tree(loaded.site)
    for change in plan(files, out):
        write(change)
    assert plan(files, out) == ()
    assert all((out / name).read_text().startswith(HEADER) for name in files)
    (out / "gateway/etc/gpuyard/tls.pem").write_text("somebody's")
    other = tree(site(tmp_path, {"gateway": VARIANTS["ssh"]}).site)
    for change in plan(other, out):
        write(change)
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        *other,
        "gateway/etc/gpuyard/tls.pem",
    }
    (out / "README.txt").write_text("mine\n")
    with pytest.raises(BlockedError, match=r"README.txt was not written by gpuyard"):
        plan(other, out)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = site(tmp_path, {"gateway": ALL}).path, tmp_path / "out"
    command = ["gateway", "render", "--site", str(path)]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0
    assert "### gateway/etc/gpuyard/gateway/nginx.conf\n" in printed.stdout
    assert CliRunner().invoke(app, [*command, "-o", str(out), "--check"]).exit_code == 3
    assert not out.exists()
    assert "+ " in CliRunner().invoke(app, [*command, "-o", str(out)]).stdout
    for more in ([], ["--check"]):
        again = CliRunner().invoke(app, [*command, "-o", str(out), *more])
        assert again.exit_code == 0
    assert (out / "README.txt").exists()
    without = site(tmp_path, {}).path
    monkeypatch.setattr("sys.argv", ["gpuyard", "gateway", "render", "--site", str(without)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "the site has no gateway; docs/how-to/" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--check compares with a folder"):
        CliRunner().invoke(app, [*command, "--check"], catch_exceptions=False)


def runners(**more: object) -> dict[str, Any]:
    enrolment = {"organization": "conda-forge", "token_file": "t", **more}
    return {
        "booking": {},
        "flavors": {"one": flavor(gpus={"v100": 1})},
        "runners": {"project": "ci", "enrolments": [enrolment], "sets": {"gpu": {"flavors": ["one"], "images": ["i"]}}},
    }


def test_it_says_whether_github_needs_it(tmp_path: Path) -> None:
    without = site(tmp_path, {"gateway": ALL}).site
    assert "GitHub jobs need no gateway: runner scale sets ask GitHub" in whether_needed(without)
    sets = site(tmp_path, {"gateway": ALL, **runners()}).site
    assert "no enrolment of the site takes webhooks" in whether_needed(sets)
    assert not takes_webhooks(sets)
    hooked = site(tmp_path, {"gateway": ALL, **runners(webhook_secrets_file="s")}).site
    assert "GitHub delivers webhooks to 1 enrolment (conda-forge)" in whether_needed(hooked)
    assert "location = /v1/github/webhook" in tree(hooked)["gateway/etc/gpuyard/gateway/nginx.conf"]


def test_people_are_told_what_keystone_must_know(tmp_path: Path) -> None:
    loaded = site(tmp_path, {"gateway": ALL}).site
    assert loaded.gateway is not None
    commands = endpoint_commands(loaded.gateway)
    assert commands[0] == (
        "openstack endpoint set --url https://cloud.example.org:5000/v3 "
        "$(openstack endpoint list --service identity --interface public -f value -c ID)"
    )
    assert f"--service {PORTAL_TYPE} " in commands[-1]
    text = steps(loaded, loaded.gateway)
    assert 'nova_public_base_endpoint: "https://cloud.example.org:8774"' in text
    assert "GPUYARD_OPTIONS='--public --gateway 10.99.0.1'" in text
    assert "TCP 80, TCP 443, TCP 5000, TCP 8774, TCP 8780, TCP 9292, TCP 9696, UDP 51820" in text
    over_ssh = site(tmp_path, {"gateway": VARIANTS["ssh"]}).site
    assert over_ssh.gateway is not None
    assert "GPUYARD_HOST=127.0.0.1\nGPUYARD_PORT=8080\nGPUYARD_OPTIONS='--gateway 127.0.0.1'\n" in steps(
        over_ssh, over_ssh.gateway
    )


def test_people_are_told_what_horizon_consoles_and_cinder_take(tmp_path: Path) -> None:
    loaded = site(tmp_path, {"gateway": VARIANTS["browsers"]}).site
    assert loaded.gateway is not None
    text = steps(loaded, loaded.gateway)
    assert 'horizon_public_endpoint: "https://dashboard.example.org"\n' in text
    assert 'cinder_public_base_endpoint: "https://cloud.example.org:8776"\n' in text
    assert "SECURE_PROXY_SSL_HEADER = ('HTTP_X_FORWARDED_SSL', 'on')\n" in text
    assert "\ngpuyard site render --kolla /etc/kolla && gpuyard site deploy\n" in text
    assert "-d cloud.example.org -d dashboard.example.org" in text
    assert (
        "openstack endpoint set --url 'https://cloud.example.org:8776/v3/%(project_id)s' "
        "$(openstack endpoint list --service volumev3 --interface public -f value -c ID)\n"
    ) in text
    assert "X-Forwarded-Ssl" not in rendered(ALL)
    assert BROWSERS.count('proxy_set_header X-Forwarded-Ssl "on";') == 1


def test_nova_tells_people_the_gateways_addresses_of_consoles(tmp_path: Path) -> None:
    def options(name: str) -> dict[tuple[str, str], str]:
        common = site(tmp_path, {"gateway": VARIANTS[name]}).compiled.options[0].options
        sections = ("vnc", "spice", "serial_console", "console")
        return {(option.section, option.key): option.value for option in common if option.section in sections}

    assert options("browsers") == {
        ("vnc", "novncproxy_base_url"): "https://cloud.example.org:6080/vnc_lite.html",
        ("spice", "html5proxy_base_url"): "https://cloud.example.org:6082/spice_auto.html",
        ("serial_console", "base_url"): "wss://cloud.example.org:6083/",
        ("console", "allowed_origins"): "dashboard.example.org",
    }
    assert options("all") == {}


DEPLOY: dict[str, Any] = {
    "interface": "eno1",
    "external_interface": "eno2",
    "vip": "10.20.0.250",
    "hosts": {"gpu-server": {"address": "10.20.0.1"}},
}


@pytest.mark.parametrize(("variables", "words"), [
    ({"enable_horizon": False}, r"gateway\.dashboard: Kolla does not deploy Horizon: enable_horizon is False in"),
    ({"enable_cinder": "no"}, r"gateway\.services\.block-storage: Kolla does not deploy Cinder: enable_cinder is 'no'"),
    ({"nova_console": "none"}, r"gateway\.consoles\.novnc: Kolla does not deploy nova-novncproxy.* set it to 'novnc'"),
    ({"enable_nova_serialconsole_proxy": "no"}, r"gateway\.consoles\.serial: .* take gateway\.consoles\.serial out of"),
])  # fmt: skip
def test_what_the_site_has_kolla_leave_out_cannot_be_at_the_gateway(
    variables: dict[str, Any], words: str, tmp_path: Path
) -> None:
    gateway_section = {"dashboard": DASHBOARD, "services": {"block-storage": CINDER}}
    gateway_section["consoles"] = {name: CONSOLES[name] for name in ("novnc", "serial")}
    with pytest.raises(SiteError, match=words):
        site(tmp_path, {"gateway": gateway_section, "deploy": {**DEPLOY, "variables": variables}})
    site(tmp_path, {"gateway": {"portal": PORTAL}, "deploy": {**DEPLOY, "variables": variables}})
    site(tmp_path, {"gateway": gateway_section, "deploy": {**DEPLOY, "variables": {"enable_cinder": "{{ maybe }}"}}})


def test_every_key_is_explained() -> None:
    text = (ROOT / "docs/how-to/reach-the-cloud-through-a-gateway.md").read_text()
    for kind in get_args(ConsoleName):
        assert f"{kind}:" in text, kind
    for model in (SiteGateway, PublicEndpoint, GatewayLimits, WireGuardTunnel, SshTunnel):
        for key in model.model_fields:
            assert re.search(rf"`{key}`|\b{key}:\s", text), f"{model.__name__}.{key}"


def test_glance_itself_reads_the_import_methods_that_the_guide_states(tmp_path: Path) -> None:
    """glance 33.0.0, common/config.py: a list that must have its brackets."""
    text = (ROOT / "docs/how-to/reach-the-cloud-through-a-gateway.md").read_text()
    (setting,) = re.findall(r"`(enabled_import_methods = [^`]*)`", text)
    file = tmp_path / "glance.conf"
    file.write_text(f"[DEFAULT]\n{setting}\n")
    settings = cfg.ConfigOpts()
    settings.register_opts(common_opts)
    settings(["--config-file", str(file)])
    assert settings.enabled_import_methods == ["glance-direct"]
