"""Finds the project, and the person in it, that a visitor acts for."""

from __future__ import annotations

from dataclasses import replace

from gpuyard.model.booking import Booking, Person
from gpuyard.model.rights import BOOKING_ROLES
from gpuyard.openstack.people import People
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.people import Visitor
from gpuyard.web.problems import Refusal


def acting_for(visitor: Visitor, name: str, people: People) -> Person:
    """Return the person in a project: by name or id; empty is the one that is looked at. Admins may name any project.

    Raises Refusal 403 for a project that is not the visitor's, 422 for a name that several have.
    """
    person = visitor.person
    if not name or name in (person.project_id, person.project):
        return person
    own = [project for project in visitor.projects if name in (project.project_id, project.project)]
    if person.admin and not own:
        matches = [(project.id, project.name, person.roles) for project in people.projects(name)]
    else:
        matches = [(membership.project_id, membership.project, membership.roles) for membership in own]
    if len(matches) > 1:
        ids = ", ".join(id for id, _, _ in matches)
        raise Refusal(422, "several_projects", f"Several projects are named {name}; say its id: {ids}.")
    if not matches and person.admin:
        raise Refusal(422, "no_such_project", f"Keystone knows no project {name}.")
    if not matches:
        raise Refusal(403, "no_role", f"You have no role in project {name}; name one of yours.")
    id, project, roles = matches[0]
    # An admin is one everywhere.
    roles = roles | {"admin"} if person.admin else roles
    return replace(person, project_id=id, project=project, roles=roles)


def colleague(name: str, person: Person, authenticator: Authenticator) -> Person:
    """Return the user `person` books for, by name or id, in the same project; empty is `person`. Raises Refusal 422
    when nobody of that name may book there."""
    if not name or name in (person.user_id, person.user):
        return person
    for user_id in authenticator.people.users(name):
        account = authenticator.directory.account(user_id)
        for membership in account.memberships if account else ():
            if membership.project_id == person.project_id and membership.roles & BOOKING_ROLES:
                assert account is not None
                return replace(
                    person, user_id=account.user_id, user=account.user, email=account.email, roles=membership.roles
                )
    raise Refusal(422, "no_such_user", f"No user {name} has the role member in project {person.project}.")


def in_project_of(visitor: Visitor, booking: Booking) -> Person:
    """Return the person with the roles that they have today in the booking's project."""
    return in_project(visitor, booking.project_id, booking.project)


def in_project(visitor: Visitor, project_id: str, project: str) -> Person:
    """Return the person with the roles that they have today in a project.

    Admins of the project that they look at are admins everywhere; admin roles in others count nowhere.
    model/rights.py says what roles allow.
    """
    person = visitor.person
    if person.admin or project_id == person.project_id:
        return person
    roles = next((project.roles - {"admin"} for project in visitor.projects if project.project_id == project_id), None)
    return replace(person, project_id=project_id, project=project, roles=roles or frozenset())
