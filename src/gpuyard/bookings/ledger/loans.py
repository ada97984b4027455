"""Loans: a certain GPU for one project alone, from now on until an end, although something may be wrong with it.

An operator or check that accepts or repairs a GPU must start a server on that very one, and nobody else may get it
meanwhile. A loan is on the GPU's lane as a booking is, so it is never given twice; enforcement lets its project in
while everybody else is kept out, and holds the GPU again below the server and after it. docs/adr/0032 says why it is
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from gpuyard.bookings.errors import NoBookingError, RefusedError
from gpuyard.bookings.ledger import clock
from gpuyard.bookings.ledger.editing import describe
from gpuyard.bookings.ledger.holding import make_way, wanted_lanes, whole
from gpuyard.bookings.ledger.pool_transaction import PoolTransaction, PoolTransactions
from gpuyard.bookings.policy import malformed
from gpuyard.bookings.records import Query
from gpuyard.bookings.store import GONE, Store
from gpuyard.model.booking import Answer, Booking, BookingKind, BookingState, Person

MOST = 10_000
"""Loans that are on at once."""


class Loans:
    """The part of `Ledger` that lends GPUs. Safe to use from several threads, and from several processes on one store.
    Callers check whether the person may lend (`rights.Verb.REPAIR`)."""

    def __init__(self, store: Store, transactions: PoolTransactions, new_id: Callable[[], str]) -> None:
        self._store = store
        self._transactions = transactions
        self._new_id = new_id

    def lend(
        self, gpu: str, project_id: str, project: str, until: datetime, comment: str, by: Person, *, server: str = ""
    ) -> Booking:
        """Lend the whole slot of a GPU (``host/address``), from now on. Any member of the project may start a server
        there once the loan is `usable_since`; it is released for as long as the rule `window` says, and again when
        `Ledger.open` is asked. Bookings in its way go elsewhere. Raises RefusedError: for one that cannot, for a GPU
        that is held or lent already.

        `server`: only a server of this name is let in, which must be started on the GPU's host and nowhere else. Lent
        again for the same server, it is the loan that is there.
        """
        (lane,) = wanted_lanes([lane for lane in self._store.lanes() if lane.trouble != GONE], [gpu], [], [])

        def lend(transaction: PoolTransaction) -> Booking:
            existing = transaction.look.lease_of(server, project_id) if server else None
            if existing is not None:
                return existing
            ask = whole(lane, transaction.now, until.replace(microsecond=0), comment)
            if wrong := malformed(ask, transaction.now):
                raise RefusedError(Answer(reasons=tuple(wrong)))
            make_way(transaction, lane, ask.start, ask.end)
            loan = Booking(
                id=self._new_id(),
                kind=BookingKind.LOAN,
                ask=ask,
                state=BookingState.ACTIVE,
                user_id=by.user_id,
                user=by.user,
                project_id=project_id,
                project=project,
                created=transaction.now,
                changed=transaction.now,
                lanes=(lane.id,),
                open_until=min(transaction.now + transaction.rules("").window, ask.end),
                shared=True,
                server=server,
            )
            saved = transaction.add(loan)
            transaction.note(by.user, "loan.create", saved, f"{describe(ask)} for project {project}")
            return saved

        return self._transactions.run(lane.pool, lend)

    def end(self, id: str, reason: str, by: str) -> None:
        """End a loan now: its GPU is held again at the next run, if it is still to be kept back. End it when its server
        is gone. Nothing happens when it is over already. `by`: a name, for the audit log. Raises NoBookingError."""
        loan = self._store.get(id)
        if loan is None or loan.kind is not BookingKind.LOAN:
            raise NoBookingError(f"there is no loan {id}")

        def end(transaction: PoolTransaction) -> None:
            old = transaction.look.get(id)
            if old is not None and old.state is BookingState.ACTIVE:
                transaction.transition(
                    replace(old, reason=reason), BookingState.ENDED, by, action="loan.end", note=reason
                )
                clock.offer(transaction)

        self._transactions.run(loan.ask.pool, end)

    def current(self) -> list[Booking]:
        """Return the loans that are on, in order of their start."""
        return self._store.find(
            Query(kinds=frozenset({BookingKind.LOAN}), states=frozenset({BookingState.ACTIVE})), MOST
        )

    def of(self, gpu: str) -> Booking | None:
        """Return the loan that a GPU (``host/address``) is in now."""
        lanes = {
            lane.id for lane in self._store.lanes() for address in lane.addresses if f"{lane.host}/{address}" == gpu
        }
        return next((loan for loan in self.current() if lanes & {*loan.lanes}), None)
