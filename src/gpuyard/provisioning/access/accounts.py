"""Plans the accounts that gpuyard works with, from what Keystone and the credentials file have. Pure.

A plan makes projects, roles, users, grants, credentials and the log-in for limits, in that order, since each needs
those before it. It is refused when somebody has a role that the site file does not call for, and, unless secrets are
rotated, when a new password would lock out a user whose credentials this file does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuyard.model.plan import Plan, Step, StepVerb
from gpuyard.provisioning.access.calls import CallCredentials, access_rules
from gpuyard.provisioning.access.policies import LIMITS_ROLE, ROLE, SERVERS_ROLE

USER = PROJECT = CLOUD = "gpuyard"
LIMITS_USER = LIMITS_CLOUD = "gpuyard-limits"
SYSTEM = ""
"""The grant's place in a project's stead: the system."""
MEMBER, READER = "member", "reader"
"""The second follows from the first, and Keystone lists it in credentials."""
WHOLE_SYSTEM = ("system", "all")
OUR_ROLES = frozenset({ROLE, SERVERS_ROLE, LIMITS_ROLE})
"""Policy files do not ask where somebody has one of them."""


@dataclass(frozen=True)
class Credential:
    """An application credential of `USER`, and the cloud of clouds.yaml that it is for."""

    cloud: str
    project: str
    roles: frozenset[str]
    rules: frozenset[tuple[str, str, str]]
    """Access rules: service, method and path."""


@dataclass(frozen=True)
class Accounts:
    """The roles and credentials that shall be."""

    grants: tuple[tuple[str, str, str], ...]
    """User, role, and project or `SYSTEM`."""
    credentials: tuple[Credential, ...]


@dataclass(frozen=True)
class HeldRole:
    """A role that somebody has somewhere, as Keystone lists it."""

    holder: tuple[str, str]
    """``user`` or ``group``, and its id."""
    role: str
    """Its id."""
    scope: tuple[str, str]
    """``project`` or ``domain``, and its id, or `WHOLE_SYSTEM`."""
    inherited: bool = False
    """Whether projects below the scope have it, in its place."""
    names: tuple[str, str, str] = field(default=("", "", ""), compare=False)
    """Of the three, to be shown."""

    def __str__(self) -> str:
        holder, role, scope = self.names
        where = "on the system" if self.scope == WHOLE_SYSTEM else f"in {self.scope[0]} {scope}"
        return f"the {self.holder[0]} {holder} has the role {role} {where}{' and below' if self.inherited else ''}"

    @property
    def removal(self) -> str:
        """The command that takes the role away: with ids, since names may be those of several, or end up in a shell."""
        words = [f"--{kind} {id}" for kind, id in (self.holder, self.scope)]
        return " ".join(["openstack role remove", *words, *(["--inherited"] * self.inherited), self.role])


@dataclass(frozen=True)
class SeenAccounts:
    """The accounts that Keystone and the file have. Ids by name."""

    projects: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[HeldRole] = frozenset()
    """All roles of our users and of groups that these are in, and all who have one of `OUR_ROLES`."""
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    """By cloud: those that the file names and that let us in, as Keystone has them."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Of application credentials that the file names and Keystone has, by cloud."""
    strays: tuple[str, ...] = ()
    """Names of others that the user has."""
    limits: bool = False
    """Whether the file has a log-in that shows all limits."""


def wanted(prefixes: dict[str, str], projects_of_servers: tuple[str, ...], shares: bool = False) -> Accounts:
    """Return the accounts that shall be. `prefixes` and `shares`: as in `access_rules`."""

    def credential(cloud: str, project: str, credentials: CallCredentials, *roles: str) -> Credential:
        rules = access_rules(credentials, prefixes, shares)
        rule_set = frozenset((rule["service"], rule["method"], rule["path"]) for rule in rules)
        return Credential(cloud, project, frozenset(roles), rule_set)

    places = tuple(dict.fromkeys(projects_of_servers))
    return Accounts(
        (
            (USER, ROLE, PROJECT),
            (LIMITS_USER, LIMITS_ROLE, SYSTEM),
            *((USER, role, place) for place in places for role in (MEMBER, SERVERS_ROLE)),
        ),
        (
            credential(CLOUD, PROJECT, CallCredentials.PORTAL, ROLE),
            *(
                credential(f"{CLOUD}-in-{place}", place, CallCredentials.SERVERS, MEMBER, READER, SERVERS_ROLE)
                for place in places
            ),
        ),
    )


def grant_name(user: str, role: str, place: str) -> str:
    return f"{role} to {user} {f'in project {place}' if place else 'on the system'}"


def granted(accounts: Accounts, observed: SeenAccounts) -> dict[HeldRole, tuple[str, str, str]]:
    """Return the roles that Keystone lists once they are made, each with its entry of `Accounts.grants`; only those of
    users, roles and projects that exist."""
    grants_by_role = {}
    for grant in accounts.grants:
        user, role, place = grant
        scope = WHOLE_SYSTEM if place == SYSTEM else ("project", observed.projects.get(place, ""))
        if user in observed.users and role in observed.roles and scope[1]:
            grants_by_role[HeldRole(("user", observed.users[user]), observed.roles[role], scope)] = grant
    return grants_by_role


def plan_accounts(accounts: Accounts, observed: SeenAccounts, rotate: bool) -> Plan:
    """Return steps in the order in which they must be made. `rotate`: accounts that are as they should be get new
    secrets, too, and so do users that somebody else may log in as."""
    steps = tuple(_steps(accounts, observed, rotate))
    notes = [
        f"the user {USER} has another application credential, {name}, which this file does not have; 'openstack "
        "application credential delete' ends it if nobody uses it"
        for name in observed.strays
    ]
    if USER in observed.users and any(step.kind == "credential" for step in steps):
        notes.append(f"the password of the user {USER} changes; nobody knows the new one")
    return Plan(steps, tuple(_refusals(accounts, observed, rotate)), tuple(notes))


def _refusals(accounts: Accounts, observed: SeenAccounts, rotate: bool) -> Iterator[str]:
    roles = {role for _, role, _ in accounts.grants}
    if MEMBER in roles - observed.roles.keys():
        yield f"Keystone has no role {MEMBER}: 'keystone-manage bootstrap' makes it"
    for held_role in sorted(observed.held - granted(accounts, observed).keys(), key=str):
        yield f"{held_role}, more than the site file calls for; '{held_role.removal}' takes it away"
    if rotate:
        return
    elsewhere = (
        "name the file that has one with --clouds, or make a new one with --rotate, which locks out whoever has the "
        "old password"
    )
    if USER in observed.users and not observed.ids:
        yield (
            f"the user {USER} exists, and this file has no application credential of it that Keystone knows, so its "
            f"password would change; {elsewhere}"
        )
    if LIMITS_USER in observed.users and not observed.limits:
        yield (
            f"the user {LIMITS_USER} exists, and this file has no log-in of it that works, so its password would "
            f"change, and a portal that runs with it would fail; {elsewhere}"
        )


def _steps(accounts: Accounts, observed: SeenAccounts, rotate: bool) -> Iterator[Step]:
    for project in sorted({place for _, _, place in accounts.grants if place != SYSTEM} - observed.projects.keys()):
        why = "gpuyard's own" if project == PROJECT else "the site file names it for servers of its own"
        yield Step(StepVerb.CREATE, "project", project, why)
    for role in sorted({role for _, role, _ in accounts.grants} - observed.roles.keys() - {MEMBER}):
        yield Step(
            StepVerb.CREATE, "role", role, "named by policy files" if role != LIMITS_ROLE else "no rule names it"
        )
    for user in sorted({user for user, _, _ in accounts.grants} - observed.users.keys()):
        yield Step(StepVerb.CREATE, "user", user, "nobody knows its password" if user == USER else "reads all limits")
    existing_grants = {grant for held_role, grant in granted(accounts, observed).items() if held_role in observed.held}
    for user, role, place in accounts.grants:
        if (user, role, place) not in existing_grants:
            yield Step(StepVerb.CREATE, "grant", grant_name(user, role, place), "what it may do follows from its roles")
    for credential in accounts.credentials:
        if credential.cloud not in observed.ids:
            yield Step(StepVerb.CREATE, "credential", credential.cloud, "the file has none that Keystone knows")
        elif observed.credentials.get(credential.cloud) != credential:
            yield Step(StepVerb.REPLACE, "credential", credential.cloud, "it may do something else than it should")
        elif rotate:
            yield Step(StepVerb.REPLACE, "credential", credential.cloud, "as asked")
    if not observed.limits or rotate:
        verb = StepVerb.REPLACE if observed.limits else StepVerb.CREATE
        why = "as asked" if observed.limits else "the file has none that works"
        locked = "; who has the old password is locked out" * (LIMITS_USER in observed.users)
        yield Step(verb, "login", LIMITS_CLOUD, why + locked)
