"""Who somebody is, by Keystone: passwords and tokens are checked there, projects and roles are read there.

All but the password check is asked with the credentials of the service, so nothing of a person's is kept: neither
a password nor a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpuyard.cloud.errors import CloudError
from gpuyard.model.errors import BlockedError

if TYPE_CHECKING:
    from gpuyard.cloud.api import CloudApi

UNAUTHORIZED, NOT_FOUND = 401, 404
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LoginRefusedError(BlockedError):
    """Keystone does not let somebody in; the message is for that person to read."""


@dataclass(frozen=True)
class Membership:
    """A project that somebody has roles in."""

    project_id: str
    project: str
    roles: frozenset[str]
    """Names in lower case, those that follow from others too: an admin is a member and a reader."""


@dataclass(frozen=True)
class Account:
    """A user who may log in, as Keystone has it now."""

    user_id: str
    user: str
    email: str = ""
    memberships: Sequence[Membership] = ()
    """Projects that are enabled and that the user has a role in, by name and id."""


@dataclass(frozen=True)
class TokenFacts:
    """What a token that is valid says."""

    user_id: str
    user: str
    expires: datetime
    membership: Membership | None
    """Its project with the roles that it gives there, which may be fewer than the user's; None without a project."""


@dataclass(frozen=True)
class Project:
    id: str
    name: str


class People(Protocol):
    """What the portal asks Keystone. Every method raises CloudError when Keystone cannot be asked."""

    def log_in(self, user: str, password: str, domain: str) -> str:
        """The user's id. `user` and `domain` are names. Raises LoginRefusedError."""
        ...

    def account(self, user_id: str) -> Account | None:
        """None when the user is gone or disabled, or its domain is."""
        ...

    def token(self, token: str) -> TokenFacts | None:
        """None when it is not valid (any more)."""
        ...

    def projects(self, name_or_id: str) -> Sequence[Project]:
        """Projects with that id, or all with that name, in any domain."""
        ...

    def users(self, name_or_id: str) -> Sequence[str]:
        """Ids of the user with that id, or of all with that name, in any domain."""
        ...


class KeystonePeople:
    """People, by the Keystone of one cloud. Safe to use from several threads."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def log_in(self, user: str, password: str, domain: str) -> str:
        who = {"name": user, "password": password, "domain": {"name": domain}}
        # Unscoped on purpose: a user whose default project is gone can log in, too.
        auth = {"identity": {"methods": ["password"], "password": {"user": who}}, "scope": "unscoped"}
        try:
            answer = self._api.request("POST", "identity", "/auth/tokens", {"auth": auth}, personal=True)
        except CloudError as error:
            if error.status == UNAUTHORIZED:
                raise LoginRefusedError(_why_refused(str(error))) from None
            raise
        return str(answer["token"]["user"]["id"])

    def account(self, user_id: str) -> Account | None:
        user = self._get_or_none(f"/users/{user_id}", "user") if ID.fullmatch(user_id) else None
        if user is None or not user.get("enabled", True):
            return None
        domain = self._get_or_none(f"/domains/{user['domain_id']}", "domain")
        if domain is None or not domain["enabled"]:
            return None
        rows = self._api.get("identity", f"/users/{user_id}/projects")["projects"]
        names = {row["id"]: row["name"] for row in rows if row["enabled"]}
        query = {"user.id": user_id, "effective": "", "include_names": ""}
        roles: dict[str, set[str]] = {}
        for assignment in self._api.get("identity", "/role_assignments", **query)["role_assignments"]:
            project = assignment["scope"].get("project", {}).get("id")
            if project in names:
                roles.setdefault(project, set()).add(assignment["role"]["name"].lower())
        memberships = [Membership(id, names[id], frozenset(found)) for id, found in roles.items()]
        memberships.sort(key=lambda membership: (membership.project, membership.project_id))
        return Account(user_id, user["name"], user.get("email") or "", tuple(memberships))

    def token(self, token: str) -> TokenFacts | None:
        if not TOKEN.fullmatch(token):
            return None
        try:
            answer = self._api.request(
                "GET", "identity", "/auth/tokens", query={"nocatalog": ""}, headers={"X-Subject-Token": token}
            )
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        facts = answer["token"]
        project = facts.get("project")
        roles = frozenset(role["name"].lower() for role in facts.get("roles", ()))
        return TokenFacts(
            facts["user"]["id"],
            facts["user"]["name"],
            datetime.fromisoformat(facts["expires_at"]),
            Membership(project["id"], project["name"], roles) if project else None,
        )

    def projects(self, name_or_id: str) -> Sequence[Project]:
        return [Project(row["id"], row["name"]) for row in self._named("project", name_or_id)]

    def users(self, name_or_id: str) -> Sequence[str]:
        return [str(row["id"]) for row in self._named("user", name_or_id)]

    def _named(self, kind: str, name_or_id: str) -> list[dict[str, Any]]:
        if not name_or_id:
            return []
        if ID.fullmatch(name_or_id):
            found = self._get_or_none(f"/{kind}s/{name_or_id}", kind)
            if found is not None:
                return [found]
        rows: list[dict[str, Any]] = self._api.get("identity", f"/{kind}s", name=name_or_id)[f"{kind}s"]
        return rows

    def _get_or_none(self, path: str, key: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._api.get("identity", path)[key]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found


def _why_refused(said: str) -> str:
    """Keystone says no more than that it refuses, but for what the person can mend."""
    if "required_auth_methods" in said:
        return "This user needs more than a password to log in; use single sign-on, or a token for the API."
    if "password is expired" in said:
        return "The password has expired; set a new one in Keystone, as with 'openstack user password set'."
    return "Keystone does not know this user, or the password or the domain is wrong, or the user is disabled."
