"""Checks whether a person may use a runner, by the policies of the organisation's `.access.yml`. Pure, but for what it
asks of `PersonFacts`.

One policy that allows the request is enough. Of each policy the cheap conditions are checked first: GitHub is asked
only about people whom the policy may still allow. A policy that cannot be decided because GitHub could not be asked
makes the whole answer unknown, unless another one allows the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.runners.cirun.records import AccessFile, Policy
from gpuyard.runners.cirun.users import read_users, source_of
from gpuyard.runners.facts import FactsUnavailableError, PersonFacts

SHOWN = 5
"""Names in a sentence; the rest is a number."""


@dataclass(frozen=True)
class RunnerRequest:
    """A request for a runner: the repository, the person and the kind of event."""

    repository: str
    """``owner/name``."""
    user: str
    """Login; empty when GitHub has not said who."""
    pull_request: bool
    github: str
    """URL of the GitHub that it is at."""


@dataclass(frozen=True)
class Considered:
    """One thing that was considered on the way to a decision, in words for people."""

    text: str
    ok: bool


@dataclass(frozen=True)
class Access:
    """The decision of the policies. `allowed` is None when GitHub must be asked first, and could not be."""

    allowed: bool | None
    reasons: tuple[str, ...] = ()
    """Why not, or what could not be asked."""
    steps: tuple[Considered, ...] = ()


def access_to(resource: str, access: AccessFile, request: RunnerRequest, facts: PersonFacts) -> Access:
    """Decide whether the person of `request` may use the runner `resource` for a job. An `.access.yml` that cannot be
    read allows nobody."""
    if not access.readable:
        reason = f"{access.file} cannot be read, so nobody may use anything; 'gpuyard runner lint' says what is wrong"
        return Access(False, (reason,), (Considered(reason, False),))
    attached = [id for grant in access.grants if grant.resource == resource for id in grant.policies]
    if not any(grant.resource == resource for grant in access.grants):
        reason = f"no entry of access_control in {access.file} names the runner {resource!r}"
        return Access(False, (reason,), (Considered(reason, False),))
    policies = [policy for policy in access.policies if policy.id in attached]
    applicable = [policy for policy in policies if _is_for(policy, request.repository)]
    if not applicable:
        have = (
            f"they are for {_some([policy.repository for policy in policies])}"
            if policies
            else "it has none that counts"
        )
        reason = f"none of the policies of {resource!r} is for the repository {request.repository}; {have}"
        return Access(False, (reason,), (Considered(reason, False),))
    return _by_policies(applicable, request, facts)


def _by_policies(policies: Sequence[Policy], request: RunnerRequest, facts: PersonFacts) -> Access:
    steps: list[Considered] = []
    unknown: list[str] = []
    for policy in policies:
        name = f"policy {policy.id!r} (line {policy.line})"
        try:
            refusal = next(_refusals(policy, request, facts), None)
        except FactsUnavailableError as error:
            unknown.append(f"{name}: {error}")
            steps.append(Considered(f"{name}: cannot be decided now: {error}", False))
            continue
        if refusal is None:
            steps.append(Considered(f"{name} allows it", True))
            return Access(True, (), tuple(steps))
        steps.append(Considered(f"{name}: {refusal}", False))
    if unknown:
        return Access(None, tuple(unknown), tuple(steps))
    return Access(False, tuple(step.text for step in steps), tuple(steps))


def _is_for(policy: Policy, repository: str) -> bool:
    target = policy.repository.lower()
    return repository.lower() == target if "/" in target else repository.lower().partition("/")[2] == target


def _refusals(policy: Policy, request: RunnerRequest, facts: PersonFacts) -> Iterator[str]:
    """Yield why a policy says no; nothing when it says yes. Raises FactsUnavailableError."""
    if request.pull_request and not policy.pull_request:
        yield "it does not allow pull requests ('pull_request' is not true)"
    anybody = policy.teams or policy.users or policy.users_from_json
    if not anybody and not policy.roles:
        yield "it names neither teams, users nor roles, so it is for nobody"
    if not request.user:
        raise FactsUnavailableError("GitHub has not said who started the job")
    unread: list[str] = []
    if anybody and not _named(policy, request, facts, unread):
        missing = f" ({_some(unread)} cannot be read)" if unread else ""
        yield f"user {request.user!r} is not among {_who(policy)}{missing}"
    if policy.roles:
        role = facts.role(request.repository, request.user).lower()
        if role not in {role.lower() for role in policy.roles}:
            has = f"has the role {role!r}" if role and role != "none" else "has no role"
            yield f"user {request.user!r} {has} in {request.repository}, and it wants {_one_of(policy.roles)}"


def _named(policy: Policy, request: RunnerRequest, facts: PersonFacts, unread: list[str]) -> bool:
    """Return whether a policy names a user. An unanswered question counts only if nothing else names the user. Lists
    that are none, or not where they should be, are added to `unread`."""
    user = request.user.lower()
    if user in {user.lower() for user in policy.users}:
        return True
    missing: list[FactsUnavailableError] = []
    for url in policy.users_from_json:
        file = source_of(url, request.github)
        try:
            text = facts.text(file) if file is not None else None
        except FactsUnavailableError as error:
            missing.append(error)
            continue
        users = read_users(text) if text is not None else None
        if users is None:
            unread.append(url)
        elif user in users:
            return True
    owner = request.repository.partition("/")[0]
    for team in policy.teams:
        try:
            if facts.in_team(owner, team, request.user):
                return True
        except FactsUnavailableError as error:
            missing.append(error)
    if missing:
        raise missing[0]
    return False


def _who(policy: Policy) -> str:
    parts = [
        f"the users {_some(policy.users)}" if policy.users else "",
        f"the users in {_some(policy.users_from_json)}" if policy.users_from_json else "",
        f"the members of team {_some(policy.teams)}" if policy.teams else "",
    ]
    return " or ".join(part for part in parts if part)


def _some(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _one_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
