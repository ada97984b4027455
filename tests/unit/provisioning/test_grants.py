"""What gpuyard's policy files let it do, by the rules and the policy engine of the services themselves."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any
from unittest import mock

import pytest
from ruamel.yaml import YAML

from gpuyard.provisioning.access.calls import CALLS, CALLS_FOR_SHARES, CallCredentials, access_rules, prefix
from gpuyard.provisioning.access.defaults import ADMIN, DEFAULTS
from gpuyard.provisioning.access.policies import (
    FOR_NOVA,
    ROLE,
    SERVERS_ROLE,
    SPECIAL,
    additions,
    policies,
    policy_files,
)

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    glance = pytest.importorskip("glance.policies")
    keystone = pytest.importorskip("keystone.common.policies")
    neutron = pytest.importorskip("neutron.conf.policies")
    nova = pytest.importorskip("nova.policies")
    placement = pytest.importorskip("placement.policies")
    from oslo_config import cfg
    from oslo_policy import policy
    from oslo_policy._checks import registered_checks

MODULES = {"nova": nova, "placement": placement, "keystone": keystone, "glance": glance, "neutron": neutron}
SERVICES = sorted(MODULES)
PREFIXES = {"compute": "/v2.1", "placement": "", "identity": "/v3", "image": "/v2", "network": "/v2.0"}
OTHERS = {
    "project_id": "theirs", "owner": "theirs", "member_id": "theirs", "visibility": "private", "user_id": "them",
    "tenant_id": "theirs",
}  # fmt: skip
"""Something of another project, in the words of all services."""


def rules_of(service: str) -> dict[str, Any]:
    return {rule.name: rule for rule in MODULES[service].list_rules()}


@cache
def enforcer(service: str, ours: bool) -> policy.Enforcer:
    """The service's own rules, with those of our file if `ours`."""
    rules = policies()[service] if ours else {}
    made = policy.Enforcer(cfg.ConfigOpts(), use_conf=False)
    made.suppress_deprecation_warnings = made.suppress_default_change_warnings = True
    # Who imports Nova's own `nova.policy`, as another test may have, gets words that no other service's process knows.
    oslo_checks = {
        kind: check for kind, check in registered_checks.items() if check.__module__.startswith("oslo_policy.")
    }
    with mock.patch.dict(registered_checks, oslo_checks, clear=True):
        for rule in MODULES[service].list_rules():
            made.register_default(policy.RuleDefault(rule.name, rule.check_str))
        made.set_rules(policy.Rules.from_dict(dict(rules)), use_conf=False)
    made.rules.update({
        name: default.check for name, default in made.registered_rules.items() if name not in made.rules
    })  # fmt: skip
    return made


def allowed(service: str, role: str, ours: bool, **creds: object) -> set[str]:
    """Rules that let somebody pass to what is another project's. Nova and Glance have asked `context_is_admin`
    before, and say what came of it."""
    service_enforcer = enforcer(service, ours)
    who: dict[str, Any] = {"roles": [role], "project_id": "ours", "user_id": "us", "service_roles": [], **creds}
    who["is_admin"] = bool(
        "context_is_admin" in service_enforcer.rules and service_enforcer.enforce("context_is_admin", OTHERS, who)
    )
    return {name for name in rules_of(service) if service_enforcer.enforce(name, dict(OTHERS), dict(who))}


@pytest.mark.parametrize("service", SERVICES)
def test_the_defaults_that_a_file_repeats_are_those_of_the_service(service: str) -> None:
    checks_by_name = {name: rule.check_str for name, rule in rules_of(service).items()}
    assert {name: checks_by_name.get(name) for name in DEFAULTS[service]} == dict(DEFAULTS[service])


@pytest.mark.parametrize("service", ["nova", "glance"])
def test_no_rule_is_left_to_who_may_only_see(service: str) -> None:
    checks_by_name = {name: rule.check_str for name, rule in rules_of(service).items()}
    assert {name for name, check in checks_by_name.items() if ADMIN in check or "is_admin:True" in check} <= set(
        policies()[service]
    )
    assert not [name for name, check in policies()[service].items() if ADMIN in check or "is_admin:" in check]


def test_rules_that_once_went_by_who_may_see_are_written_out() -> None:
    """Nova says of rules what they were called, and asked for, before."""
    old = {rule.deprecated_rule for rule in rules_of("nova").values() if rule.deprecated_rule}
    names = {rule.name for rule in old if ADMIN in rule.check_str} & rules_of("nova").keys()
    assert "os_compute_api:os-migrate-server:migrate_live" in names
    assert names | {"os_compute_api:os-migrate-server:migrate"} <= policies()["nova"].keys()


@pytest.mark.parametrize("service", SERVICES)
def test_a_role_of_our_own_may_what_the_table_has_and_no_more(service: str) -> None:
    nobody = allowed(service, "nobody", False)
    more = allowed(service, ROLE, True) - nobody
    plain = {rule for rule, check in additions()[service].items() if check == f"role:{ROLE}"}
    seeing = {"context_is_admin"} if service in ("nova", "glance") else set()
    assert more == plain | seeing


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_else_may_more_or_less_than_before(service: str) -> None:
    for role in ("admin", "manager", "member", "reader", "service", "nobody", "advsvc"):
        for mine in ("ours", "theirs"):
            where = {"project_id": mine, "service_roles": ["service"]}
            assert allowed(service, role, True, **where) == allowed(service, role, False, **where), role


def test_where_our_servers_are_a_host_may_be_named_and_nothing_else() -> None:
    for service in SERVICES:
        more = allowed(service, SERVERS_ROLE, True) - allowed(service, "nobody", False)
        assert more == ({"compute:servers:create:requested_destination"} if service == "nova" else set())


def test_what_others_do_for_us_takes_novas_own_token() -> None:
    for service, rules in FOR_NOVA.items():
        mine = {"project_id": "theirs"} if service == "glance" else {}
        alone = allowed(service, ROLE, True, **mine)
        with_nova = allowed(service, ROLE, True, service_roles=["service"], **mine)
        assert not rules.keys() & alone
        assert rules.keys() <= with_nova


@pytest.mark.parametrize("service", SERVICES)
def test_every_rule_is_one_of_the_service_that_takes_credentials_of_a_project(service: str) -> None:
    service_rules = rules_of(service)
    for rule in additions()[service]:
        assert rule in service_rules
        assert "project" in (service_rules[rule].scope_types or ["project"]), rule


def test_special_checks_are_of_rules_of_the_table() -> None:
    assert SPECIAL.keys() <= {rule for call in CALLS for rule in call.rules}


def test_files_are_yaml_with_these_rules() -> None:
    documents = {path: YAML(typ="safe").load(text) for path, text in policy_files().items()}
    assert documents == {f"{service}/policy.yaml": rules for service, rules in policies().items()}


def test_access_rules_have_the_paths_that_services_see() -> None:
    prefixes = PREFIXES
    rules = access_rules(CallCredentials.PORTAL, prefixes, False)
    assert {"service": "compute", "method": "GET", "path": "/v2.1/servers/{server}"} in rules
    assert {"service": "placement", "method": "GET", "path": "/usages"} in rules
    assert {"service": "placement", "method": "GET", "path": "/"} in rules
    assert not [rule for rule in rules if "*" in rule["path"] or not rule["path"].startswith("/")]
    assert len({tuple(sorted(rule.items())) for rule in rules}) == len(rules)
    assert not [rule for rule in rules if rule["service"] == "network"]
    assert {
        rule["method"]
        for rule in access_rules(CallCredentials.SERVERS, prefixes, False)
        if rule["service"] == "network"
    } == {"GET"}


def test_allocations_are_written_only_for_a_site_with_shares() -> None:
    """It is the one right that could take a GPU from somebody's server."""
    rules = {rule for call in CALLS_FOR_SHARES for rule in call.rules}
    assert rules == {"placement:allocations:update", "placement:allocations:delete"}
    assert not rules & policies()["placement"].keys()
    assert {policies(shares=True)["placement"][rule] for rule in rules} == {f"rule:admin_or_service_api or role:{ROLE}"}
    for door in CallCredentials:
        paths = [
            {"service": "placement", "method": method, "path": "/allocations/{consumer}"}
            for method in ("PUT", "DELETE")
        ]
        assert not [path for path in paths if path in access_rules(door, PREFIXES, False)]
        assert all(path in access_rules(door, PREFIXES, True) for path in paths) is (door is CallCredentials.PORTAL)


@pytest.mark.parametrize(
    ("service", "address", "found"),
    [
        ("compute", "http://cloud:8774/v2.1", "/v2.1"),
        ("compute", "http://cloud:8774/v2.1/0123456789abcdef", "/v2.1/*"),
        ("compute", "https://cloud/compute/v2.1/", "/compute/v2.1"),
        ("placement", "http://cloud:8780", ""),
        ("placement", "https://cloud/placement", "/placement"),
        ("identity", "http://cloud:5000", "/v3"),
        ("identity", "https://cloud/identity/v3", "/identity/v3"),
        ("image", "http://cloud:9292", "/v2"),
        ("network", "http://cloud:9696/", "/v2.0"),
    ],
)
def test_the_path_of_an_api_follows_from_the_catalogue(service: str, address: str, found: str) -> None:
    assert prefix(service, address, "0123456789abcdef") == found
