"""Changes a booking within one transaction: another time, another number of GPUs, another comment.

A change that only gives back is allowed whatever the rules say by now, and keeps the lanes. Any other is admitted anew
by the rules of the booking's owner, whoever makes it; where an admin approves bookings, one that is confirmed or active
can be changed only by a person who may approve it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuyard.bookings.admission import NO_ROOM
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger import clock
from gpuyard.bookings.ledger.pool_transaction import PoolTransaction
from gpuyard.bookings.policy import malformed, spell
from gpuyard.model.booking import Answer, Ask, Booking, BookingKind, BookingState, Person, Reason
from gpuyard.model.booking_life import OPEN, used_until
from gpuyard.model.rights import Verb, may


def edit(
    transaction: PoolTransaction, old: Booking, ask: Ask, who: Person, override: bool, new_id: Callable[[], str]
) -> Booking:
    """Change a booking and return it as it is then. Raises RefusedError."""
    ask = replace(ask, end=ask.end.replace(microsecond=0))
    _require_possible(old, ask)
    moves: list[Booking] = []
    new = replace(old, ask=ask)
    takes_now = old.state in (BookingState.CONFIRMED, BookingState.ACTIVE)
    if replace(ask, comment="") != replace(old.ask, comment=""):
        answer = _answer(transaction, old, ask, who, override)
        if not answer.yes and (takes_now or any(reason.code not in NO_ROOM for reason in answer.reasons)):
            raise RefusedError(answer)
        if takes_now:
            new, moves = replace(new, lanes=answer.lanes), transaction.move(answer)
        if override:
            new = replace(new, override=new.override or bool(answer.overridden))
            note_override(transaction, new, who, answer)
    saved = transaction.save(new, *moves)[0]
    if old.state is BookingState.ACTIVE and ask.gpus < old.ask.gpus:
        transaction.add(_given_back(transaction, old, new, new_id()))
    if old.kind is BookingKind.BOOKING:
        transaction.tell("booking.changed", saved, by=who.user)
    transaction.note(who.user, "booking.edit", saved, f"{describe(old.ask)} -> {describe(ask)}")
    clock.offer(transaction)
    return saved


def _answer(transaction: PoolTransaction, old: Booking, ask: Ask, who: Person, override: bool) -> Answer:
    if only_less(old.ask, ask):
        # It keeps what it has, whatever the rules say by now, and whatever is wrong with its GPU.
        wrong = malformed(ask, transaction.now, started=True)
        return Answer(reasons=tuple(wrong)) if wrong else Answer(lanes=old.lanes[: ask.lanes])
    if old.kind is BookingKind.HOLD:
        return transaction.admit(ask, owner(old, who), without=old, override=True)
    if (
        transaction.rules(old.project).approval
        and old.state in (BookingState.CONFIRMED, BookingState.ACTIVE)
        and not may(who, Verb.APPROVE)
    ):
        text = (
            f"bookings of pool {ask.pool} are approved by an admin: ask one to change it, or give it up and book anew"
        )
        return Answer(reasons=(Reason("approval", text),))
    return transaction.admit(ask, owner(old, who), without=old, override=override)


def _require_possible(old: Booking, ask: Ask) -> None:
    if old.state not in OPEN or old.state is BookingState.OFFERED:
        hint = "; accept or cancel the offer" if old.state is BookingState.OFFERED else ""
        text = f"booking {old.id} is {old.state.value} and cannot be changed{hint}"
        raise RefusedError(Answer(reasons=(Reason("not_open", text),)))
    if ask.pool != old.ask.pool:
        text = f"booking {old.id} is in pool {old.ask.pool} and stays there; make another one in {ask.pool}"
        raise RefusedError(Answer(reasons=(Reason("other_pool", text),)))
    if old.state is BookingState.ACTIVE and ask.start != old.ask.start:
        text = f"booking {old.id} began on {spell(old.ask.start)}; its start cannot change any more"
        raise RefusedError(Answer(reasons=(Reason("begun", text),)))


def _given_back(transaction: PoolTransaction, old: Booking, new: Booking, id: str) -> Booking:
    """What a booking that has begun gives back, as a new one that has ended: it was used until now, and counts."""
    end = used_until(old.ask.start, transaction.now)
    gone = tuple(lane for lane in old.lanes if lane not in new.lanes)
    ask = replace(old.ask, gpus=old.ask.gpus - new.ask.gpus, end=end)
    return replace(
        old, id=id, ask=ask, state=BookingState.ENDED, lanes=gone, followed=0, reason=f"given back by booking {old.id}"
    )


def only_less(old: Ask, new: Ask) -> bool:
    """Return whether a change only gives back: nothing that a rule could object to."""
    return new == replace(old, end=new.end, gpus=new.gpus, comment=new.comment) and (
        new.end <= old.end and new.gpus <= old.gpus and (new.gpus == old.gpus or not old.same_group)
    )


def owner(booking: Booking, who: Person) -> Person:
    """Return the person whose rules hold for a change: the owner, also when an admin makes it."""
    roles = who.roles if who.user_id == booking.user_id else frozenset({"member"})
    return Person(booking.user_id, booking.user, booking.project_id, booking.project, roles, booking.email)


def describe(ask: Ask) -> str:
    """Describe an ask, for the audit log."""
    what = f"GPU {ask.gpu}" if ask.gpu else f"{ask.gpus} of pool {ask.pool}"
    return f"{what} from {spell(ask.start)} until {spell(ask.end)}"


def note_override(transaction: PoolTransaction, booking: Booking, who: Person, answer: Answer) -> None:
    """Write every rule that was set aside into the audit log."""
    for reason in answer.overridden:
        transaction.note(who.user, "booking.override", booking, reason.text, reason.code)
