"""For which project somebody acts."""

from __future__ import annotations

from dataclasses import replace

from gpuyard.cloud.people import People
from gpuyard.ledger.policy import BOOKING_ROLES
from gpuyard.model.booking import Booking, Person
from gpuyard.portal.people import Visitor
from gpuyard.portal.problems import Refusal


def refuse_readers(person: Person) -> None:
    """Raise Refusal 403 for those who may only look in the project that they act for."""
    if not person.roles & BOOKING_ROLES:
        text = f"{person.user} needs the role member in project {person.project} for that"
        raise Refusal(403, "no_role", f"{text}; ask its administrator.")


def acting_for(visitor: Visitor, name: str, people: People) -> Person:
    """The person in a project: by name or id; empty is the one that is looked at. Admins may name any project.

    Raises Refusal 403 for a project that is not the visitor's, 422 for a name that several have.
    """
    person = visitor.person
    if not name or name in (person.project_id, person.project):
        return person
    own = [one for one in visitor.projects if name in (one.project_id, one.project)]
    if person.admin and not own:
        found = [(project.id, project.name, person.roles) for project in people.projects(name)]
    else:
        found = [(one.project_id, one.project, one.roles) for one in own]
    if len(found) > 1:
        ids = ", ".join(id for id, _, _ in found)
        raise Refusal(422, "several_projects", f"Several projects are named {name}; say its id: {ids}.")
    if not found and person.admin:
        raise Refusal(422, "no_such_project", f"Keystone knows no project {name}.")
    if not found:
        raise Refusal(403, "no_role", f"You have no role in project {name}; name one of yours.")
    id, project, roles = found[0]
    # An admin is one everywhere.
    roles = roles | {"admin"} if person.admin else roles
    return replace(person, project_id=id, project=project, roles=roles)


def giving_back(visitor: Visitor, booking: Booking) -> Person:
    """The person who cancels or ends a booking. Who has logged in may always give back what is his own, also when he
    has no role in its project any more; a program no more than the roles of its token let it."""
    if visitor.session is not None and booking.user_id == visitor.person.user_id:
        return visitor.person
    return acting_on(visitor, booking)


def acting_on(visitor: Visitor, booking: Booking) -> Person:
    """The person who changes a booking: its owner with the roles that he has in its project today, or an admin.

    Raises Refusal 403 for an owner who has left the project or may only look there, or whose token is for another one.
    """
    person = visitor.person
    if person.admin or booking.user_id != person.user_id or booking.project_id == person.project_id:
        refuse_readers(person)
        return person
    for one in visitor.projects:
        if one.project_id == booking.project_id:
            person = replace(person, project_id=one.project_id, project=one.project, roles=one.roles)
            refuse_readers(person)
            return person
    where = "you have no role there" if visitor.session else "your token is for another one"
    raise Refusal(403, "no_role", f"Booking {booking.id} is of project {booking.project}, and {where}.")
