"""Policy files that let gpuyard's own roles make the calls of calls.py, and nothing else; none of them is an admin.

Nova and Glance decide by ``context_is_admin`` in code whose servers and images somebody sees at all, so gpuyard's role
must be named there; by default that would let it do everything. Therefore their files say of every rule that goes by it
that the role admin is meant: what is left to ``context_is_admin`` is to see, and each right is given by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.provisioning.access.calls import CALLS_FOR_SHARES, calls_of
from gpuyard.provisioning.access.defaults import ADMIN, DEFAULTS

ROLE = "gpuyard"
"""The portal's role, in its own project."""
SERVERS_ROLE = "gpuyard-servers"
"""The role in projects that its own servers are in, beside ``member``."""
LIMITS_ROLE = "gpuyard-limits"
"""The role on the system; no rule names it."""

OURS = f"role:{ROLE}"
BY_NOVA = f"service_roles:service and {OURS}"
"""Nova says what to do, on our behalf, and shows a token of its own: we cannot."""
OWN = "project_id:%(project_id)s"

SPECIAL = {
    "compute:servers:create:requested_destination": f"role:{SERVERS_ROLE}",
    "get_image": f"(({OWN} or 'community':%(visibility)s or 'public':%(visibility)s) and {OURS})",
    "modify_image": f"({OWN} and {OURS})",
}
"""The rules to which another check than `OURS` is added."""

FOR_NOVA: Mapping[str, Mapping[str, str]] = {
    "glance": dict.fromkeys(("add_image", "upload_image", "add_member", "delete_image"), f"({OWN} and {BY_NOVA})"),
    "neutron": dict.fromkeys(("context_is_advsvc", "get_port", "delete_port"), f"({BY_NOVA})"),
}
"""Calls that other services must let Nova make when we have a server shelved, made an image of, or deleted."""

SERVICES = {"compute": "nova", "placement": "placement", "identity": "keystone", "image": "glance"}
"""Type in the catalogue -> service. Neutron's calls are made as a member, which it lets pass."""

HEADER = """\
# Written by 'gpuyard site bootstrap': what gpuyard may do without the role admin.
# Do not edit: the command writes it again. docs/reference/grants.md says what each rule is for.
"""


def additions(shares: bool = False) -> dict[str, dict[str, str]]:
    """Return the check that is added to each rule: service -> rule -> check. `shares`: as in `calls_of`."""
    checks: dict[str, dict[str, str]] = {service: {} for service in (*SERVICES.values(), "neutron")}
    for call in calls_of(shares):
        for rule in call.rules:
            checks[SERVICES[call.service]][rule] = SPECIAL.get(rule, OURS)
    for service, rules in FOR_NOVA.items():
        checks[service] |= rules
    return checks


def policies(shares: bool = False) -> dict[str, dict[str, str]]:
    """Return the checks that differ from a service's defaults: service -> rule -> check. `shares`: as in `calls_of`."""
    return {service: _policy(DEFAULTS[service], added) for service, added in additions(shares).items()}


def _policy(defaults: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    seeing = {"context_is_admin": f"role:admin or {OURS}"} if ADMIN in defaults.values() else {}
    unused = {rule for call in CALLS_FOR_SHARES for rule in call.rules} - added.keys()
    return seeing | {rule: _check(check, added.get(rule)) for rule, check in defaults.items() if rule not in unused}


def _check(default: str, added: str | None) -> str:
    check = default.replace(ADMIN, "role:admin").replace("is_admin:True", "role:admin")
    return f"{check} or {added}" if added else check


def policy_files(shares: bool = False) -> dict[str, str]:
    """Return the text of each file by its path below Kolla's folder of configuration, as ``nova/policy.yaml``.
    `shares`: as in `calls_of`."""
    return {f"{service}/policy.yaml": render(rules) for service, rules in policies(shares).items()}


def render(rules: Mapping[str, str]) -> str:
    """Format rules as YAML; no check has a quotation mark."""
    return HEADER + "".join(f'"{rule}": "{check}"\n' for rule, check in sorted(rules.items()))
