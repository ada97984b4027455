"""What the portal may rely on when it asks who somebody is.

Each function is one rule. They run on a Keystone in memory (tests/unit/web/test_portal_login.py) and on a real one
(tests/integration/test_portal_bookings.py), so tests of the portal can use the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from gpuyard.openstack.people import LoginRefusedError, People


@dataclass(frozen=True)
class Bench:
    """A user who is a member, and so a reader, of one project."""

    people: People
    user_id: str
    user: str
    password: str
    email: str
    project_id: str
    project: str
    new_token: Callable[[], str]
    """A token of the user for the project."""
    take_role: Callable[[], None]
    """Take the role in the project away."""
    disable: Callable[[], None]
    """Disable the user."""
    change_password: Callable[[], None]
    """Give the user another password."""
    domain: str = "Default"


def the_password_opens_the_door(bench: Bench) -> None:
    assert bench.people.log_in(bench.user, bench.password, bench.domain).user_id == bench.user_id


def it_comes_with_a_token_of_no_project(bench: Bench) -> None:
    login = bench.people.log_in(bench.user, bench.password, bench.domain)
    facts = bench.people.token(login.token)
    assert facts is not None
    assert (facts.user_id, facts.membership, facts.expires) == (bench.user_id, None, login.expires)
    assert login.token not in repr(login)


def nothing_else_does(bench: Bench) -> None:
    for user, password, domain in (
        (bench.user, bench.password + "x", bench.domain),
        (bench.user, "", bench.domain),
        (bench.user + "-not", bench.password, bench.domain),
        (bench.user, bench.password, bench.domain + "-not"),
        (bench.user_id, bench.password, bench.domain),
    ):
        with pytest.raises(LoginRefusedError):
            bench.people.log_in(user, password, domain)
    assert bench.people.log_in(bench.user, bench.password, bench.domain).user_id == bench.user_id


def an_account_has_its_projects_and_roles(bench: Bench) -> None:
    account = bench.people.account(bench.user_id)
    assert account is not None
    assert (account.user_id, account.user, account.email) == (bench.user_id, bench.user, bench.email)
    (membership,) = account.memberships
    assert (membership.project_id, membership.project) == (bench.project_id, bench.project)
    assert membership.roles == {"member", "reader"}


def nobody_has_no_account(bench: Bench) -> None:
    for id in ("0" * 32, "", "../users", "x y", "ü", "a" * 500):
        assert bench.people.account(id) is None


def a_token_says_for_whom_it_is(bench: Bench) -> None:
    facts = bench.people.token(bench.new_token())
    assert facts is not None
    assert not facts.federated
    assert (facts.user_id, facts.user) == (bench.user_id, bench.user)
    assert facts.membership is not None
    assert (facts.membership.project_id, facts.membership.project) == (bench.project_id, bench.project)
    assert facts.membership.roles == {"member", "reader"}
    assert facts.expires > datetime.now(UTC) + timedelta(minutes=1)


def what_is_no_token_is_none(bench: Bench) -> None:
    for token in ("", "nonsense", "gAAAAABnonsense", "a b", "x\r\nX-Other: y", "ü", "x" * 10_000, "\x00"):
        assert bench.people.token(token) is None


def a_token_that_is_spent_is_worth_nothing(bench: Bench) -> None:
    token = bench.new_token()
    assert bench.people.spend(token)
    assert bench.people.token(token) is None
    assert not bench.people.spend(token)
    assert not bench.people.spend("gAAAAABnonsense")
    assert bench.user_id not in bench.people.revoked()  # all that is over is that token


def a_role_that_is_taken_away_is_gone(bench: Bench) -> None:
    token = bench.new_token()
    bench.take_role()
    account = bench.people.account(bench.user_id)
    assert account is not None
    assert not account.memberships
    assert bench.people.token(token) is None


def a_disabled_user_is_out(bench: Bench) -> None:
    token = bench.new_token()
    bench.disable()
    assert bench.people.account(bench.user_id) is None
    assert bench.people.token(token) is None
    with pytest.raises(LoginRefusedError):
        bench.people.log_in(bench.user, bench.password, bench.domain)


def a_changed_password_ends_what_was_before(bench: Bench) -> None:
    assert bench.user_id not in bench.people.revoked()
    before = datetime.now(UTC).replace(microsecond=0)
    bench.change_password()
    assert before <= bench.people.revoked()[bench.user_id] <= datetime.now(UTC) + timedelta(seconds=1)
    bench.take_role()
    assert bench.people.revoked()[bench.user_id] <= datetime.now(UTC) + timedelta(seconds=1)


def projects_are_found_by_name_and_id(bench: Bench) -> None:
    for name_or_id in (bench.project, bench.project_id):
        assert [(project.id, project.name) for project in bench.people.projects(name_or_id)] == [
            (bench.project_id, bench.project)
        ]
    for unknown in ("no-such-project", "../x", "ü", ""):
        assert not bench.people.projects(unknown)


def users_are_found_by_name_and_id(bench: Bench) -> None:
    for name_or_id in (bench.user, bench.user_id):
        assert list(bench.people.users(name_or_id)) == [bench.user_id]
    for unknown in ("no-such-user", "../x", "ü", ""):
        assert not bench.people.users(unknown)


RULES = (
    the_password_opens_the_door,
    it_comes_with_a_token_of_no_project,
    nothing_else_does,
    an_account_has_its_projects_and_roles,
    nobody_has_no_account,
    a_token_says_for_whom_it_is,
    what_is_no_token_is_none,
    a_token_that_is_spent_is_worth_nothing,
    a_role_that_is_taken_away_is_gone,
    a_disabled_user_is_out,
    a_changed_password_ends_what_was_before,
    projects_are_found_by_name_and_id,
    users_are_found_by_name_and_id,
)
