"""Makes gpuyard's accounts as an administrator: projects, roles, users, and credentials in a file.

Only the user of the credentials can make some, and nobody knows its password: it gets a new one for each run, which is
not kept. New credentials are tried first, then written to the file, and only then the old ones end; so a failure leaves
the file as it was, and no credential that is in no file.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.plan import Plan, Step, StepVerb
from gpuyard.model.text import printable
from gpuyard.model.world import DOMAIN
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.config import ELSEWHERE
from gpuyard.provisioning.access.accounts import (
    CLOUD,
    LIMITS_CLOUD,
    LIMITS_USER,
    OUR_ROLES,
    SYSTEM,
    USER,
    WHOLE_SYSTEM,
    Accounts,
    Credential,
    HeldRole,
    SeenAccounts,
    grant_name,
)
from gpuyard.provisioning.access.calls import ROOTS, prefix
from gpuyard.provisioning.access.clouds_file import read_clouds, write_clouds

UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
REVOKED = 5.0
"""Seconds for which a token may be taken for one from before the password was changed: Keystone reckons in seconds."""
OPTIONS = {
    "ignore_change_password_upon_first_use": True,
    "ignore_password_expiry": True,
    "ignore_lockout_failure_attempts": True,
}
"""Of users that no person logs in as."""
PROBES = (("compute", "/os-services"), ("placement", "/resource_classes"), ("identity", "/services"),
          ("image", "/images"), ("identity", "/limits"))  # fmt: skip
"""Requests that each service must allow with the portal's credential."""


def prefixes_of(api: CloudApi) -> dict[str, str]:
    """Return the path of each service's API, as access rules need it. Raises CloudError."""
    return {service: prefix(service, api.address(service), api.project) for service in ROOTS}


class AccountsReader:
    """Reads the accounts of one cloud, and a file with credentials for them."""

    def __init__(self, api: CloudApi, path: Path) -> None:
        self._api, self._path = api, path

    def read(self, accounts: Accounts) -> SeenAccounts:
        """Return the accounts. Raises CloudError and UsageError."""
        places = {place for _, _, place in accounts.grants} - {SYSTEM}
        names = {user for user, _, _ in accounts.grants}
        projects = self._ids("project", places, domain_id=DOMAIN)
        users = self._ids("user", names, domain_id=DOMAIN)
        of_credentials = frozenset[str]().union(*(credential.roles for credential in accounts.credentials))
        roles = self._ids("role", of_credentials | OUR_ROLES | {role for _, role, _ in accounts.grants})
        credentials = self._credentials(users.get(USER), {id: name for name, id in projects.items()})
        clouds = read_clouds(self._path)
        named = {credential.cloud: _id(clouds.get(credential.cloud, {})) for credential in accounts.credentials}
        ids = {cloud: id for cloud, id in named.items() if id in credentials}
        return SeenAccounts(
            projects, users, roles, frozenset(self._held(users, roles)),
            {cloud: replace(credentials[id][1], cloud=cloud) for cloud, id in ids.items() if self._lets_in(cloud)}, ids,
            tuple(sorted(name for id, (name, _) in credentials.items() if id not in ids.values())),
            LIMITS_CLOUD in clouds and self._lets_in(LIMITS_CLOUD),
        )  # fmt: skip

    def _ids(self, kind: str, names: Collection[str], **query: str) -> dict[str, str]:
        rows = self._api.get("identity", f"/{kind}s", **query)[f"{kind}s"]
        mine = [row for row in rows if row["name"] in names and row.get("domain_id") in (None, DOMAIN)]
        return {row["name"]: row["id"] for row in mine}

    def _held(self, users: Mapping[str, str], roles: Mapping[str, str]) -> Iterator[HeldRole]:
        """All roles of users, and all who have roles of ours."""
        of = [("role.id", id) for name, id in roles.items() if name in OUR_ROLES]
        for id in users.values():
            groups = self._api.get("identity", f"/users/{id}/groups")["groups"]
            of += [("user.id", id), *(("group.id", group["id"]) for group in groups)]
        for key, id in of:
            answer = self._api.get("identity", "/role_assignments", **{key: id, "include_names": "1"})
            yield from map(_held, answer["role_assignments"])

    def _credentials(self, user: str | None, projects: Mapping[str, str]) -> dict[str, tuple[str, Credential]]:
        """Id -> name, and what it is good for."""
        if user is None:
            return {}
        rows = self._api.get("identity", f"/users/{user}/application_credentials")["application_credentials"]
        return {row["id"]: (row["name"], _credential(row, projects)) for row in rows}

    def _lets_in(self, cloud: str) -> bool:
        try:
            connect(cloud, self._path).token()
        except GpuyardError:
            return False
        return True


def _held(row: Mapping[str, Any]) -> HeldRole:
    """Of a row of Keystone's role assignments, with names."""
    holder = next(kind for kind in ("user", "group") if kind in row)
    scope = next(kind for kind in ("project", "domain", "system") if kind in row["scope"])
    role, whose, where = row["role"], row[holder], row["scope"][scope]
    return HeldRole(
        (holder, whose["id"]), role["id"], WHOLE_SYSTEM if scope == "system" else (scope, where["id"]),
        "OS-INHERIT:inherited_to" in row["scope"],
        (_shown(whose), _shown(role), "" if scope == "system" else _shown(where)),
    )  # fmt: skip


def _shown(row: Mapping[str, Any]) -> str:
    """A user, group, project or domain by name; Keystone has none of users that are gone from an LDAP."""
    name, domain = row["name"] or row["id"], row.get("domain") or {}
    more = "" if domain.get("id") in (None, "", DOMAIN) else f" of domain {domain['name']}"
    return printable(f"{name}{more}")


def _id(entry: Mapping[str, Any]) -> str:
    auth = entry.get("auth")
    return str(auth.get("application_credential_id", "")) if isinstance(auth, dict) else ""


def _credential(row: Mapping[str, Any], projects: Mapping[str, str]) -> Credential:
    rules = frozenset((rule["service"], rule["method"], rule["path"]) for rule in row.get("access_rules") or ())
    return Credential("", projects.get(row["project_id"], ""), frozenset(role["name"] for role in row["roles"]), rules)


class Bootstrapper:
    """Carries a plan of accounts out."""

    def __init__(
        self,
        api: CloudApi,
        path: Path,
        accounts: Accounts,
        observed: SeenAccounts,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`path`: the file that gets the credentials."""
        self._api, self._path, self._accounts, self._now = api, path, accounts, now
        self._old = dict(observed.ids)
        self._projects, self._users, self._roles = dict(observed.projects), dict(observed.users), dict(observed.roles)
        self._passwords: dict[str, str] = {}
        """Of users that were made, or got a new one, just now."""

    def apply(self, plan: Plan, report: Callable[[Step], None]) -> list[str]:
        """Carry out all steps; `report` is called before each. Returns what services do not let the portal do yet, and
        why.

        Credentials that are replaced end when the new ones were seen to work: raises BlockedError when they do not, and
        CloudError, and then the file is as it was.
        """
        entries: dict[str, dict[str, Any]] = {}
        made: list[str] = []
        with self._nothing_left(made):
            for step in plan.steps:
                report(step)
                if step.kind == "credential":
                    (credential,) = [
                        credential for credential in self._accounts.credentials if credential.cloud == step.name
                    ]
                    entries[step.name] = self._entry(self._make(credential, made))
                elif step.kind == "login":
                    if step.verb is StepVerb.CREATE:
                        entries[step.name] = self._limits_entry()
                else:
                    self._account(step)
            waits = self._store(entries, replaces=bool(self._old.keys() & entries.keys())) if entries else []
        for cloud in self._old.keys() & entries.keys():
            self._delete(self._old[cloud])
        if any(step.kind == "login" and step.verb is StepVerb.REPLACE for step in plan.steps):
            # Last: with a new password the old one is worth nothing at once.
            write_clouds(self._path, {LIMITS_CLOUD: self._limits_entry()})
            waits = probe(self._path)
        return waits

    @contextmanager
    def _nothing_left(self, made: list[str]) -> Iterator[None]:
        """Credentials that were made and are in no file are no use to anybody but thieves."""
        try:
            yield
        except BaseException:
            for id in made:
                self._delete(id)
            raise

    def _account(self, step: Step) -> None:
        if step.kind == "project":
            body: dict[str, Any] = {"name": step.name, "domain_id": DOMAIN, "description": step.reason}
            self._projects[step.name] = self._create("project", body)
        elif step.kind == "role":
            self._roles[step.name] = self._create("role", {"name": step.name})
        elif step.kind == "user":
            password = self._passwords[step.name] = _password()
            body = {"name": step.name, "domain_id": DOMAIN, "password": password, "options": OPTIONS}
            self._users[step.name] = self._create("user", body)
        elif step.kind == "grant":
            user, role, place = next(grant for grant in self._accounts.grants if grant_name(*grant) == step.name)
            where = f"/projects/{self._projects[place]}" if place else "/system"
            self._api.request("PUT", "identity", f"{where}/users/{self._users[user]}/roles/{self._roles[role]}")

    def _create(self, kind: str, body: Mapping[str, Any]) -> str:
        return str(self._api.request("POST", "identity", f"/{kind}s", {kind: body})[kind]["id"])

    def _password_of(self, user: str) -> str:
        if user not in self._passwords:
            self._passwords[user] = _password()
            body = {"user": {"password": self._passwords[user]}}
            self._api.request("PATCH", "identity", f"/users/{self._users[user]}", body)
        return self._passwords[user]

    def _make(self, credential: Credential, made: list[str]) -> Mapping[str, Any]:
        """A new application credential, with its secret."""
        project = self._projects[credential.project]
        user = self._api.as_user(USER, self._password_of(USER), project_id=project)
        body = {
            "name": f"{credential.cloud} {self._now():%Y-%m-%dT%H:%M:%S}.{secrets.token_hex(3)}",
            "description": "made by 'gpuyard site bootstrap'",
            "roles": [{"id": self._roles[role]} for role in sorted(credential.roles)],
            "access_rules": [
                {"service": service, "method": method, "path": path}
                for service, method, path in sorted(credential.rules)
            ],
        }
        path = f"/users/{self._users[USER]}/application_credentials"
        answer = _insist(lambda: user.request("POST", "identity", path, {"application_credential": body}))
        row: Mapping[str, Any] = answer["application_credential"]
        made.append(row["id"])
        return row

    def _entry(self, row: Mapping[str, Any]) -> dict[str, Any]:
        secret = {"application_credential_id": row["id"], "application_credential_secret": row["secret"]}
        return self._cloud("v3applicationcredential", secret)

    def _limits_entry(self) -> dict[str, Any]:
        login = {"username": LIMITS_USER, "password": self._password_of(LIMITS_USER), "user_domain_id": DOMAIN}
        return self._cloud("v3password", {**login, "system_scope": "all"})

    def _cloud(self, auth_type: str, auth: Mapping[str, Any]) -> dict[str, Any]:
        return {"auth_type": auth_type, "auth": {"auth_url": self._api.auth_url, **auth}, **self._api.settings()}

    def _store(self, entries: dict[str, dict[str, Any]], replaces: bool) -> list[str]:
        """Try what was made, and put it into the file; what does not work yet. Raises BlockedError."""
        clouds = {credential.cloud: self._projects[credential.project] for credential in self._accounts.credentials}
        doors = {project: cloud for cloud, project in clouds.items() if cloud != CLOUD}
        whole = {**read_clouds(self._path), **entries}
        whole[CLOUD] = {**whole[CLOUD], ELSEWHERE: {"limits": LIMITS_CLOUD, "projects": doors}}
        ours = {cloud: whole[cloud] for cloud in (*clouds, LIMITS_CLOUD)}
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.unlink(missing_ok=True)  # a link would take our secrets elsewhere
        try:
            write_clouds(draft, ours, like=self._path)
            waits = probe(draft)
            if waits and replaces:
                raise BlockedError("\n".join(["the new credentials do not work, so the old ones stay:", *waits]))
            write_clouds(self._path, ours)
        finally:
            draft.unlink(missing_ok=True)
        return waits

    def _delete(self, credential: str) -> None:
        try:
            path = f"/users/{self._users[USER]}/application_credentials/{credential}"
            self._api.request("DELETE", "identity", path)
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise


def probe(clouds_file: Path) -> list[str]:
    """Return what services refuse the portal's credential in a file that it needs, each with what to do about it.
    Raises CloudError when a service does not answer."""
    api = _insist(lambda: _in(clouds_file))
    refusals = []
    for service, path in PROBES:
        try:
            _insist(partial(api.get, service, path))
        except CloudError as error:
            if error.status not in (UNAUTHORIZED, FORBIDDEN):
                raise
            refusals.append(_why(service, path, error))
    return refusals


def _in(clouds_file: Path) -> CloudApi:
    api = connect(CLOUD, clouds_file)
    api.token()
    return api


def _why(service: str, path: str, error: CloudError) -> str:
    if error.status == FORBIDDEN:
        return f"GET {service} {path} is refused: deploy the service's policy file, and ask again"
    return (
        f"GET {service} {path} takes no credentials that have access rules: set service_type = {service} in its "
        "[keystone_authtoken], and ask again"
    )


def _insist(ask: Callable[[], Any]) -> Any:
    """Again for REVOKED seconds while a token is not taken: right after a change of password Keystone may take one that
    is newer for one that is older."""
    end = time.monotonic() + REVOKED
    while True:
        try:
            return ask()
        except CloudError as error:
            if error.status not in (UNAUTHORIZED, NOT_FOUND, None) or time.monotonic() > end:
                raise
        time.sleep(0.5)


def _password() -> str:
    """What any rule about passwords takes."""
    return f"{secrets.token_urlsafe(36)}aA1!"
