"""A Keystone in memory, for tests of the portal; tests/contract/people.py tries the same on it and on a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.model.booking import Person
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import Account, KeystoneProject, Login, LoginRefusedError, Membership, TokenFacts
from tests.support.ledgers import ADA, BOB, EVE, ROOT

PASSWORD = "correct horse"  # noqa: S105 - of nobody
LATER = datetime(2030, 1, 1, tzinfo=UTC)
PROJECTS = {"p-physics": "physics", "p-biology": "biology", "p-admin": "admin"}


@dataclass
class User:
    """What a test may change while the portal runs."""

    person: Person
    password: str = PASSWORD
    domain: str = "Default"
    enabled: bool = True
    roles: dict[str, frozenset[str]] = field(default_factory=dict)
    """Id of a project -> roles."""


@dataclass
class InMemoryPeople:
    """ADA and BOB are members of a project each, EVE a reader of ADA's, ROOT an admin. ADA reads BOB's project, too."""

    users_by_id: dict[str, User] = field(default_factory=dict)
    tokens: dict[str, TokenFacts] = field(default_factory=dict)
    down: bool = False
    """Whether Keystone cannot be asked."""
    status: int | None = None
    """What it answers while it is `down`; None: nothing."""
    calls: list[str] = field(default_factory=list)
    revocations: dict[str, datetime] = field(default_factory=dict)

    def log_in(self, user: str, password: str, domain: str) -> Login:
        self._call("log_in")
        for id, candidate in self.users_by_id.items():
            same_name = (candidate.person.user.lower(), candidate.domain.lower()) == (user.lower(), domain.lower())
            if same_name and candidate.enabled and candidate.password == password:
                token = f"unscoped-{candidate.person.user}"
                self.tokens[token] = TokenFacts(id, candidate.person.user, LATER, None)
                return Login(id, token, LATER)
        raise LoginRefusedError("Keystone does not know this user, or the password is wrong.")

    def account(self, user_id: str) -> Account | None:
        self._call("account")
        user = self.users_by_id.get(user_id)
        if user is None or not user.enabled:
            return None
        memberships = [Membership(id, PROJECTS[id], roles) for id, roles in user.roles.items()]
        return Account(
            user_id, user.person.user, user.person.email, sorted(memberships, key=lambda membership: membership.project)
        )

    def token(self, token: str) -> TokenFacts | None:
        self._call("token")
        facts = self.tokens.get(token)
        user = self.users_by_id.get(facts.user_id) if facts else None
        if facts is None or user is None or not user.enabled:
            return None
        return facts if facts.membership is None or facts.membership.project_id in user.roles else None

    def spend(self, token: str) -> bool:
        self._call("spend")
        return self.tokens.pop(token, None) is not None

    def revoked(self) -> Mapping[str, datetime]:
        self._call("revoked")
        return self.revocations

    def projects(self, name_or_id: str) -> Sequence[KeystoneProject]:
        self._call("projects")
        return [KeystoneProject(id, name) for id, name in PROJECTS.items() if name_or_id in (id, name)]

    def users(self, name_or_id: str) -> Sequence[str]:
        self._call("users")
        return [id for id, user in self.users_by_id.items() if name_or_id in (id, user.person.user)]

    def _call(self, what: str) -> None:
        if self.down:
            raise CloudError("cloud test: cannot be asked", self.status)
        self.calls.append(what)


def people(more: Mapping[str, User] | None = None) -> InMemoryPeople:
    users = {person.user_id: User(person, roles={person.project_id: person.roles}) for person in (ADA, BOB, EVE, ROOT)}
    users[ADA.user_id].roles["p-biology"] = frozenset({"reader"})
    people = InMemoryPeople(users | dict(more or {}))
    for id, user in people.users_by_id.items():
        for project, roles in user.roles.items():
            token = f"token-{user.person.user}-{PROJECTS[project]}"
            people.tokens[token] = TokenFacts(
                id, user.person.user, LATER, Membership(project, PROJECTS[project], roles)
            )
    return people


def token_of(person: Person) -> dict[str, str]:
    """Headers of a program that acts for somebody of `people`."""
    return {"X-Auth-Token": f"token-{person.user}-{person.project}"}
