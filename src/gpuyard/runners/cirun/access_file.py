"""Reads `.access.yml` into policies and grants. Never raises, and what is wrong in it gives nobody anything.

A policy with a mistake keeps its id and loses everybody it names: what was misread could have been a condition, and
without it more people would get in.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.runners.cirun.reading import MOST_URL, Reading, shown
from gpuyard.runners.cirun.records import AccessFile, Grant, Policy
from gpuyard.runners.cirun.users import source_of
from gpuyard.site.document import Path

MOST_POLICIES = 2000
MOST_GRANTS = 500
MOST_NAMES = 2000
MOST_LISTS = 10
ROLES = ("admin", "maintain", "write", "triage", "read")
"""The roles that GitHub itself has."""
KEYS = ("id", "repo", "teams", "roles", "users", "users_from_json", "pull_request")


def read_access(text: str, file: str = ".access.yml") -> AccessFile:
    """Parse an `.access.yml`. `file` is its name in findings."""
    reading = Reading(file)
    if not reading.open(text) or (top := reading.top) is None:
        return AccessFile((), (), False, tuple(reading.findings), file)
    reading.unknown(top, ("version", "policies", "access_control"), ())
    if top.get("version", 1) != 1:
        reason = f"'version' is {shown(top['version'])}: gpuyard reads the file as version 1"
        reading.say("unknown-version", ("version",), reason, "write 'version: 1'")
    policies: dict[str, Policy] = {}
    for path, entry in reading.entries(top, "policies", MOST_POLICIES):
        policy = _policy(reading, path, entry)
        if policy is None:
            continue
        if policy.id in policies:
            reason = f"a policy {policy.id!r} is also in line {policies[policy.id].line}, and that one counts"
            reading.say("policy-repeated", path, reason, "give each policy an id of its own")
        else:
            policies[policy.id] = policy
    grants = [
        grant
        for path, entry in reading.entries(top, "access_control", MOST_GRANTS)
        if (grant := _grant(reading, path, entry, policies)) is not None
    ]
    _compare(reading, policies, grants)
    return AccessFile(tuple(policies.values()), tuple(grants), True, tuple(reading.findings), file)


def _policy(reading: Reading, path: Path, entry: Mapping[str, Any]) -> Policy | None:
    before = len(reading.findings)
    for key in ("id", "repo"):
        if entry.get(key) is None:
            reading.say("key-missing", path, f"a policy has no {key!r}, and does not count", f"add '{key}: ...'")
    id, repository = (
        reading.text((*path, key), entry[key]) if entry.get(key) is not None else None for key in KEYS[:2]
    )
    names = {key: tuple(reading.texts(entry, key, path, MOST_NAMES)) for key in ("teams", "roles", "users")}
    urls = tuple(reading.texts(entry, "users_from_json", path, MOST_LISTS, MOST_URL))
    stated = entry.get("pull_request")
    pull_request = False if stated is None else reading.truth((*path, "pull_request"), stated)
    for key in entry:
        if key not in KEYS:
            close = difflib.get_close_matches(key[:100], KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(KEYS)}"
            reason = f"{key[:100]!r} is not known in a policy; as it may be a demand, the policy is for nobody"
            reading.say("wrong-form", (*path, key), reason, hint)
    broken = len(reading.findings) > before
    if id is None or repository is None:
        return None
    line = reading.document.line(path)
    if broken:  # what it leaves out could be what it demands: it shall be for nobody
        return Policy(id, repository, line=line)
    if not urls and not any(names.values()):
        remedy = "add 'roles: [admin, maintain, write]' or another of teams, users and users_from_json"
        reading.say("policy-for-nobody", path, f"policy {id!r} has neither teams, users nor roles", remedy)
    for index, role in enumerate(names["roles"]):
        if role.lower() not in ROLES:
            reason = f"GitHub has no role {role!r} by itself; it has {', '.join(ROLES)}"
            close = difflib.get_close_matches(role.lower(), ROLES, n=1)
            reading.say("role-unknown", (*path, "roles", index), reason, f"did you mean {close[0]!r}?" if close else "")
    for url in urls:
        if source_of(url) is None:
            reason = f"{url} is not a file in a repository of GitHub: gpuyard does not read it, and nobody is in it"
            remedy = "keep the list in a repository, as in https://raw.githubusercontent.com/OWNER/NAME/main/users.json"
            reading.say("users-not-on-github", (*path, "users_from_json"), reason, remedy)
    return Policy(
        id, repository, **names, users_from_json=urls, pull_request=bool(pull_request), line=reading.document.line(path)
    )


def _line(reading: Reading, path: Path) -> int:
    return reading.document.line(path)


def _grant(reading: Reading, path: Path, entry: Mapping[str, Any], policies: Mapping[str, Policy]) -> Grant | None:
    reading.unknown(entry, ("resource", "policies"), path)
    if entry.get("resource") is None:
        reason = "an entry of 'access_control' has no 'resource', and does not count"
        reading.say("key-missing", path, reason, "add 'resource: NAME' of a runner in .cirun.global.yml")
        return None
    resource = reading.text((*path, "resource"), entry["resource"])
    named = reading.texts(entry, "policies", path, MOST_POLICIES)
    if resource is None:
        return None
    for index, id in enumerate(named):
        if id not in policies:
            reason = f"resource {resource!r} names the policy {id!r}, which is not there (or does not count)"
            reading.say("policy-unknown", (*path, "policies", index), reason, "add the policy, or take its id out here")
    return Grant(resource, tuple(named), reading.document.line(path))


def _compare(reading: Reading, policies: Mapping[str, Policy], grants: Sequence[Grant]) -> None:
    grants_by_resource: dict[str, Grant] = {}
    for grant in grants:
        if (first := grants_by_resource.setdefault(grant.resource, grant)) is not grant:
            reason = f"resource {grant.resource!r} is also in line {first.line}: the policies of both count"
            reading.say_at(grant.line, "resource-repeated", reason)
    used = {id for grant in grants for id in grant.policies}
    for policy in policies.values():
        if policy.id not in used:
            reading.say_at(policy.line, "policy-unused", f"no resource names the policy {policy.id!r}")
