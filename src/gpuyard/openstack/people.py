"""People of a cloud's Keystone: checks passwords and tokens, reads accounts, projects and roles.

Everything but the password check, and what is done with a person's own token, is asked with the credentials of the
service. Nothing here keeps a password or a token.

Names are those that a site file and the audit log have. Both mean projects and users of the default domain, and each
domain has its own: a project ``physics`` of the domain ``evil`` is ``physics@evil`` here, and so are users. Rules go by
the names of projects, so no two projects have one: see `shown`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpuyard.model.errors import BlockedError
from gpuyard.model.world import DOMAIN
from gpuyard.openstack.errors import CloudError

if TYPE_CHECKING:
    from gpuyard.openstack.api import CloudApi

UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
SOON = 10.0
"""Seconds to wait for answers about a password or a token: anybody may send those, and each keeps a thread busy."""
OURS = "gpuyard"
"""The name under which the audit log has what gpuyard itself has done."""
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
LENT = frozenset({"application_credential", "OS-TRUST:trust", "OS-OAUTH1", "OS-OAUTH2"})
"""Keys of a token that its user has given to somebody or something else: it may do less than the user."""
NARROWED = LENT | {"project", "domain", "system"}
"""Keys of a token that is for something: it may do less than the one that it was made from."""
WHOLE_USER = frozenset({"user_id", "issued_before", "revoked_at"})
"""Keys of a revocation event about all logins of a user."""
LOG = logging.getLogger(__name__)
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LoginRefusedError(BlockedError):
    """Raised when Keystone refuses a login; the message is for that person to read."""


@dataclass(frozen=True)
class Membership:
    """A project that somebody has roles in."""

    project_id: str
    project: str
    roles: frozenset[str]
    """Names in lower case, those that follow from others too: an admin is a member and a reader. Nobody is an admin in
    projects of other domains than the default one."""


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
    """The facts that a valid token has."""

    user_id: str
    user: str
    expires: datetime
    membership: Membership | None
    """Its project with the roles that it gives there, which may be fewer than the user's; None without a project."""
    federated: bool = False
    """Whether it comes from the end of single sign-on: unscoped, and by no application credential or trust."""
    lent: bool = False
    """Whether it is of an application credential, a trust or OAuth."""
    audit_id: str = ""
    """Keystone's id of the token, which stays the same however the token is spelled."""
    in_groups: bool = False
    """Whether single sign-on has put its user into groups, which Keystone may not know without the token."""


@dataclass(frozen=True)
class Login:
    """A login that Keystone has accepted, with the token that it gave for it."""

    user_id: str
    token: str = field(repr=False)
    """Unscoped: good for getting a token of each project that the user has a role in."""
    expires: datetime


@dataclass(frozen=True)
class KeystoneProject:
    id: str
    name: str


def shown(name: str, domain: Mapping[str, Any]) -> str:
    """Return the name of a project, which no other one has. `domain`: its ``id`` and ``name``. The part after the last
    @ is the domain: so a project of the default domain that has an @ itself is ``NAME@default``."""
    if domain["id"] == DOMAIN:
        return f"{name}@{DOMAIN}" if "@" in name else name
    # By its id where the name could be read in two ways.
    clear = "@" not in domain["name"] and domain["name"].lower() != DOMAIN
    return f"{name}@{domain['name'] if clear else domain['id']}"


def domain_of(shown: str) -> str:
    """Return the name of the domain of a project, by the name that it has here; empty: the default one."""
    domain = shown.rpartition("@")[2] if "@" in shown else ""
    return "" if domain == DOMAIN else domain


def shown_user(name: str, domain: Mapping[str, Any]) -> str:
    """Return the name of a user, which is never gpuyard's own. Users of the default domain may have an @ in it, as in a
    mail address."""
    ours = name.strip().lower() == OURS
    return name if domain["id"] == DOMAIN and not ours else f"{name}@{domain['name']}"


class People(Protocol):
    """The portal's questions to Keystone. Every method raises CloudError when Keystone cannot be asked."""

    def log_in(self, user: str, password: str, domain: str) -> Login:
        """Check a password. `user` and `domain` are names. Raises LoginRefusedError."""
        ...

    def account(self, user_id: str) -> Account | None:
        """Return an account; None when the user is gone or disabled, or its domain is."""
        ...

    def token(self, token: str) -> TokenFacts | None:
        """Return the facts of a token; None when it is not valid (any more)."""
        ...

    def spend(self, token: str) -> bool:
        """Revoke a token; False when it was not valid already, as after somebody else's use a moment ago."""
        ...

    def revoked(self) -> Mapping[str, datetime]:
        """Return user ids -> the time until which their logins are revoked: their password was changed, or they were
        disabled. Of the last hour at least."""
        ...

    def projects(self, name_or_id: str) -> Sequence[KeystoneProject]:
        """Return the projects with that id, or with that name as it is shown here."""
        ...

    def users(self, name_or_id: str) -> Sequence[str]:
        """Return the ids of users with that id, or with that name as it is shown here."""
        ...


class KeystonePeople:
    """People of the Keystone of one cloud. Safe to use from several threads."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def log_in(self, user: str, password: str, domain: str) -> Login:
        who = {"name": user, "password": password, "domain": {"name": domain}}
        # Unscoped on purpose: a user whose default project is gone can log in, too.
        auth = {"identity": {"methods": ["password"], "password": {"user": who}}, "scope": "unscoped"}
        try:
            token, facts = self._api.issue_token(auth, SOON)
        except CloudError as error:
            if error.status == UNAUTHORIZED:
                raise LoginRefusedError(_why_refused(str(error))) from None
            raise
        return Login(str(facts["user"]["id"]), token, datetime.fromisoformat(facts["expires_at"]))

    def account(self, user_id: str) -> Account | None:
        user = self._get_or_none(f"/users/{user_id}", "user") if ID.fullmatch(user_id) else None
        if user is None or not user.get("enabled", True):
            return None
        domain = self._get_or_none(f"/domains/{user['domain_id']}", "domain")
        if domain is None or not domain["enabled"]:
            return None
        rows = self._api.get("identity", f"/users/{user_id}/projects")["projects"]
        enabled = {row["id"] for row in rows if row["enabled"]}
        projects: dict[str, Mapping[str, Any]] = {}
        query = {"user.id": user_id, "effective": "", "include_names": ""}
        roles: dict[str, set[str]] = {}
        for assignment in self._api.get("identity", "/role_assignments", **query)["role_assignments"]:
            project = assignment["scope"].get("project", {})
            if project.get("id") in enabled:
                projects[project["id"]] = project
                roles.setdefault(project["id"], set()).add(assignment["role"]["name"].lower())
        memberships = [_membership(projects[id], role_names) for id, role_names in roles.items()]
        memberships.sort(key=lambda membership: (membership.project, membership.project_id))
        return Account(user_id, shown_user(user["name"], domain), user.get("email") or "", tuple(memberships))

    def token(self, token: str) -> TokenFacts | None:
        if not TOKEN.fullmatch(token):
            return None
        try:
            answer = self._api.request(
                "GET",
                "identity",
                "/auth/tokens",
                query={"nocatalog": ""},
                headers={"X-Subject-Token": token},
                timeout=SOON,
            )
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        facts = answer["token"]
        project = facts.get("project")
        roles = {role["name"].lower() for role in facts.get("roles", ())}
        return TokenFacts(
            facts["user"]["id"],
            shown_user(facts["user"]["name"], facts["user"]["domain"]),
            datetime.fromisoformat(facts["expires_at"]),
            _membership(project, roles) if project else None,
            "OS-FEDERATION" in facts["user"] and not NARROWED & facts.keys(),
            bool(LENT & facts.keys()),
            str(facts["audit_ids"][0]),
            bool(facts["user"].get("OS-FEDERATION", {}).get("groups")),
        )

    def spend(self, token: str) -> bool:
        # By itself: everybody may revoke what is his, and a service without that right need not have it.
        headers = {"X-Auth-Token": token, "X-Subject-Token": token}
        try:
            # Not those that were made of it: Nova may be starting a server with one. Older Keystones than 30 pass over
            # the query, and revoke the one token.
            self._api.request(
                "DELETE", "identity", "/auth/tokens", None, {"cascade": "false"}, headers, personal=True, timeout=SOON
            )
        except CloudError as error:
            if error.status in (UNAUTHORIZED, NOT_FOUND):
                return False
            raise
        return True

    def revoked(self) -> Mapping[str, datetime]:
        try:
            events = self._api.get("identity", "/OS-REVOKE/events")["events"]
        except CloudError as error:
            if error.status not in (FORBIDDEN, NOT_FOUND):
                raise
            LOG.warning("changed passwords end no sessions, since Keystone does not say which were changed: %s", error)
            return {}
        until_by_user: dict[str, datetime] = {}
        for event in events:
            if event.keys() <= WHOLE_USER:
                until = datetime.fromisoformat(event["issued_before"])
                until_by_user[event["user_id"]] = max(until, until_by_user.get(event["user_id"], until))
        return until_by_user

    def projects(self, name_or_id: str) -> Sequence[KeystoneProject]:
        names_by_id = self._known("project", name_or_id, shown)
        return [KeystoneProject(id, name) for id, name in names_by_id.items()]

    def users(self, name_or_id: str) -> Sequence[str]:
        return list(self._known("user", name_or_id, shown_user))

    def _known(self, kind: str, name_or_id: str, spell: Callable[[str, Mapping[str, Any]], str]) -> dict[str, str]:
        """Id -> name as it is shown, of those that are meant."""
        if not name_or_id:
            return {}
        if ID.fullmatch(name_or_id):
            row = self._get_or_none(f"/{kind}s/{name_or_id}", kind)
            if row is not None:
                domain = self._api.get("identity", f"/domains/{row['domain_id']}")["domain"]
                return {row["id"]: spell(row["name"], domain)}
        # As it is in the default domain, and as NAME@DOMAIN; names may have an @ of their own.
        places = [(name_or_id, {"id": DOMAIN, "name": ""})]
        name, _, domain_name = name_or_id.rpartition("@")
        if name and domain_name:
            places += [
                (name, candidate) for candidate in self._api.get("identity", "/domains", name=domain_name)["domains"]
            ]
            if domain_name == DOMAIN:
                places.append((name, {"id": DOMAIN, "name": ""}))
        names_by_id = {
            row["id"]: spell(row["name"], domain)
            for name, domain in places
            for row in self._api.get("identity", f"/{kind}s", name=name, domain_id=domain["id"])[f"{kind}s"]
        }
        return {id: name for id, name in names_by_id.items() if name.lower() == name_or_id.lower()}

    def _get_or_none(self, path: str, key: str) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = self._api.get("identity", path)[key]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return row


def _membership(project: Mapping[str, Any], roles: set[str]) -> Membership:
    """Admins see to all bookings of the site; those who give roles in another domain do not say who these are."""
    away = project["domain"]["id"] != DOMAIN
    return Membership(
        project["id"], shown(project["name"], project["domain"]), frozenset(roles - {"admin"} if away else roles)
    )


def _why_refused(message: str) -> str:
    """Keystone says no more than that it refuses, but for what the person can mend."""
    if "required_auth_methods" in message:
        return "This user needs more than a password to log in; use single sign-on, or a token for the API."
    if "password is expired" in message:
        return "The password has expired; set a new one in Keystone, as with 'openstack user password set'."
    return "Keystone does not know this user, or the password or the domain is wrong, or the user is disabled."
