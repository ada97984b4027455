"""Decides who may do what. Pure, and the only place that does.

A verdict comes from the person's standing to a booking, or in a project (`standing`), and the table `RIGHTS`; holds,
leases and loans have rules of their own before that. The ledger asks before it changes anything, the API gives each
reader of a row `verbs_now`, pages and command lines show that, and the documentation has `RIGHTS` as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuyard.model.booking import Booking, BookingKind, BookingState, Person
from gpuyard.model.booking_life import OPEN, next_states
from gpuyard.model.errors import ForbiddenError

BOOKING_ROLES = frozenset({"member", "manager", "admin"})
"""Roles of which one is enough to book in a project."""
SEEING_ROLES = BOOKING_ROLES | {"reader"}
"""Roles of which one in any project is enough to log in."""


class Verb(str, Enum):
    """Something to do."""

    SEE = "see"
    BOOK = "book"
    BOOK_FOR_OTHERS = "book for others"
    CHANGE = "change"
    ACCEPT = "accept"
    OPEN = "open"
    CANCEL = "cancel"
    END = "end"
    DECLINE = "decline"
    APPROVE = "approve"
    OVERRIDE = "override"
    SEE_USE = "see use"
    HOLD = "hold"
    REPORT = "report"
    REPAIR = "repair"
    SEE_SHARES = "see shares"
    SEE_ACCOUNTS = "see accounts"
    ADMINISTER = "administer"

    __str__ = str.__str__


WORDS = {
    Verb.SEE: "see bookings, GPUs and rules",
    Verb.BOOK: "book",
    Verb.BOOK_FOR_OTHERS: "book for a colleague or for the whole project",
    Verb.CHANGE: "change or extend it",
    Verb.ACCEPT: "accept its offer",
    Verb.OPEN: "release its GPUs for a server",
    Verb.CANCEL: "cancel it",
    Verb.END: "end it",
    Verb.DECLINE: "decline its offer or request",
    Verb.APPROVE: "approve bookings",
    Verb.OVERRIDE: "set rules aside (override)",
    Verb.SEE_USE: "see what its GPUs do",
    Verb.HOLD: "hold GPUs, and change or end holds",
    Verb.REPORT: "report a fault of a GPU that they have, or had in the last week",
    Verb.REPAIR: "quarantine GPUs, look after those that are out of use, maintain hosts, and report faults of any",
    Verb.SEE_SHARES: "see who in the project has used what, and when",
    Verb.SEE_ACCOUNTS: "see the budgets of all projects, and who in any has used what",
    Verb.ADMINISTER: "read the audit log, try changed rules, and see to the sessions and feeds of others",
}
"""Verb -> its words, as after "may ..."."""


class Standing(str, Enum):
    """What somebody is to a booking, or, where there is none, in the project that they act in. The first that holds."""

    ADMIN = "admin"
    """Has the role admin in the project that they act in."""
    OWNER = "owner"
    """Made the booking, and may book in its project."""
    FORMER = "owner without the role"
    """Made the booking, may not book in its project any more, and is there in person: not a program with a token."""
    MANAGER = "manager"
    """Has the role manager in the booking's project."""
    MEMBER = "member"
    """May book in the project."""
    READER = "reader"
    """May look."""
    NOBODY = "nobody"

    __str__ = str.__str__


_ALL = frozenset(Standing)
_OWN = frozenset({Standing.ADMIN, Standing.OWNER, Standing.MANAGER})
_GIVE_BACK = _OWN | {Standing.FORMER}
_ADMINS = frozenset({Standing.ADMIN})

RIGHTS: dict[Verb, frozenset[Standing]] = {
    Verb.SEE: _ALL - {Standing.NOBODY},
    Verb.BOOK: frozenset({Standing.ADMIN, Standing.OWNER, Standing.MANAGER, Standing.MEMBER}),
    Verb.BOOK_FOR_OTHERS: frozenset({Standing.ADMIN, Standing.MANAGER}),
    Verb.CHANGE: _OWN,
    Verb.ACCEPT: _OWN,
    Verb.OPEN: _OWN,
    Verb.CANCEL: _GIVE_BACK,
    Verb.END: _GIVE_BACK,
    Verb.DECLINE: _GIVE_BACK,
    Verb.APPROVE: _ADMINS,
    Verb.OVERRIDE: _ADMINS,
    Verb.SEE_USE: _GIVE_BACK,
    Verb.HOLD: _ADMINS,
    Verb.REPORT: _ALL - {Standing.NOBODY},
    Verb.REPAIR: _ADMINS,
    Verb.SEE_SHARES: frozenset({Standing.ADMIN, Standing.MANAGER}),
    Verb.SEE_ACCOUNTS: _ADMINS,
    Verb.ADMINISTER: _ADMINS,
}

STATES: dict[Verb, frozenset[BookingState]] = {
    Verb.CHANGE: OPEN - {BookingState.OFFERED},
    Verb.ACCEPT: frozenset({BookingState.OFFERED}),
    Verb.OPEN: frozenset({BookingState.ACTIVE}),
    Verb.CANCEL: frozenset(state for state in BookingState if BookingState.CANCELLED in next_states(state)),
    Verb.END: frozenset(state for state in BookingState if BookingState.ENDED in next_states(state)),
    Verb.DECLINE: frozenset({BookingState.REQUESTED, BookingState.OFFERED}),
    Verb.APPROVE: frozenset({BookingState.REQUESTED}),
}
"""Verb that changes a booking -> the states in which it makes sense."""

_VERBS: dict[BookingKind, frozenset[Verb]] = {
    BookingKind.BOOKING: frozenset(STATES),
    BookingKind.HOLD: frozenset({Verb.CHANGE, Verb.CANCEL, Verb.END}),
    BookingKind.RUNNER: frozenset(),
    BookingKind.LOAN: frozenset({Verb.OPEN, Verb.END}),
}


@dataclass(frozen=True)
class Permission:
    """Whether somebody may do something; if not, the reason, for that person to read."""

    why: str = ""
    code: str = ""
    """``no_role`` when a role in the project is missing, else ``forbidden``."""

    def __bool__(self) -> bool:
        """Yes."""
        return not self.why


def standing(who: Person, booking: Booking | None = None) -> Standing:
    """Return the standing of `who`, with the roles of the booking's project."""
    if who.admin:
        return Standing.ADMIN
    books = bool(who.roles & BOOKING_ROLES)
    if booking is not None and booking.kind is BookingKind.BOOKING:
        if booking.user_id == who.user_id and (books or not who.by_token):
            return Standing.OWNER if books and who.project_id == booking.project_id else Standing.FORMER
        if "manager" in who.roles and who.project_id == booking.project_id:
            return Standing.MANAGER
    elif booking is None and "manager" in who.roles:
        return Standing.MANAGER
    return Standing.MEMBER if books else Standing.READER if who.roles & SEEING_ROLES else Standing.NOBODY


def may(who: Person, verb: Verb, booking: Booking | None = None) -> Permission:
    """Return whether `who`, with the roles of the booking's project, may do that to it; whatever its state."""
    if booking is not None and booking.kind is BookingKind.RUNNER and verb is not Verb.SEE:
        text = f"booking {booking.id} is gpuyard's own, for runner {booking.server}; it ends with that one's job"
        return Permission(text, "forbidden")
    if booking is not None and booking.kind is BookingKind.HOLD and verb is not Verb.SEE:
        verb = Verb.HOLD
    if booking is not None and booking.kind is BookingKind.LOAN and verb is not Verb.SEE:
        if verb is Verb.CHANGE:
            return Permission(
                f"booking {booking.id} is a loan, which stays as it is: end it, and lend it anew", "forbidden"
            )
        verb = Verb.REPAIR
    its = standing(who, booking)
    if its in RIGHTS[verb]:
        return Permission()
    if RIGHTS[verb] == _ADMINS:
        # Of which project a booking of others is, not everybody may know.
        where = "there" if booking is not None and its is Standing.NOBODY else f"in project {who.project}"
        text = f"only admins can {WORDS[verb]}, and {who.user} does not have the role admin {where}"
        return Permission(text, "forbidden")
    if booking is not None and booking.user_id != who.user_id:
        mighty = f"only its owner, managers of its project and admins can {WORDS[verb]}"
        return Permission(f"booking {booking.id} is somebody else's; {mighty}", "forbidden")
    project = booking.project if booking else who.project
    enough = (Standing.READER, Standing.MEMBER, Standing.MANAGER)  # whoever made it needs no more than to book
    role = next(candidate for candidate in enough if candidate in RIGHTS[verb]) if booking is None else Standing.MEMBER
    needs = f"{'the token' if who.by_token else who.user} needs the role {role}"
    return Permission(f"{needs} in project {project} to {WORDS[verb]}; ask its administrator", "no_role")


def require(who: Person, verb: Verb, booking: Booking | None = None) -> None:
    """Raise ForbiddenError unless they may."""
    verdict = may(who, verb, booking)
    if not verdict:
        raise ForbiddenError(verdict.why, verdict.code)


def verbs_now(who: Person, booking: Booking) -> tuple[Verb, ...]:
    """Return what `who`, with the roles of the booking's project, may do to it in its state."""
    return tuple(
        verb
        for verb, states in STATES.items()
        if booking.state in states and verb in _VERBS[booking.kind] and may(who, verb, booking)
    )
