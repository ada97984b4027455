"""One pool as enforcement, shortage and reclaim see it: bookings matched with servers, and what follows for each. Pure.

It decides which of a booking's lanes have no server yet, whether a lane can be had (`ready`), whether a booking's GPUs
may be released only while nobody else is let in (`exclusive`), in which window they are released, and which exclusive
bookings take turns (`closing`). Where others wait for the pool, a window is followed by a pause as long, in which they
have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from gpuyard.bookings.matching import LET_IN, Holder, Matches, match
from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane, Rules

PREPARE = timedelta(seconds=30)
"""Time before a start at which the others' limits go down, where unbooked use is allowed; so the start itself waits for
nothing."""
SOON = (BookingState.CONFIRMED, BookingState.OFFERED)


@dataclass(frozen=True)
class Memory:
    """The part of enforcement's state of a pool that must survive the process. Kept in the store, written before the
    call that it speaks of."""

    holds: Mapping[str, int] = field(default_factory=dict)
    """Providers that we hold -> the generation that holding gave, or was to give them."""
    lowered: datetime | None = None
    """Since when the limits of all who are not to have a GPU are known to be down."""
    opened: frozenset[str] = frozenset()
    """Bookings for which holds came off after that."""
    windows: Mapping[str, datetime] = field(default_factory=dict)
    """Booking -> when the last window began in which holds were off for it."""
    lifted: frozenset[str] = frozenset()
    """Leases of whole groups whose holds came off, since Nova is asked for the server: see `GroupHolds`."""


def read_memory(values: Mapping[str, str]) -> Memory:
    """Read the memory from its values in the store. Raises ValueError when they are not ours."""
    holds = (item.rpartition("=") for item in values.get("holds", "").split())
    windows = (item.rpartition("=") for item in values.get("windows", "").split())
    lowered = values.get("lowered")
    return Memory(
        holds={name: int(number) for name, _, number in holds},
        lowered=datetime.fromtimestamp(float(lowered), UTC) if lowered else None,
        opened=frozenset(values.get("opened", "").split()),
        windows={id: datetime.fromtimestamp(int(at), UTC) for id, _, at in windows},
        lifted=frozenset(values.get("lifted", "").split()),
    )


def is_whole_group(booking: Booking) -> bool:
    """Return whether a booking is of a group of several GPUs, which a server with one GPU would break."""
    return booking.ask.same_group and booking.ask.gpus > 1


@dataclass(frozen=True)
class PoolView:
    """One pool: what is booked, what was seen, what is remembered. All ids are Keystone's and Nova's."""

    pool: str
    lanes: Mapping[int, Lane]
    providers: Mapping[int, tuple[str, ...]]
    """Lane -> names of the providers of its GPUs, the leader's first."""
    bookings: tuple[Booking, ...]
    """Those that are active, are on in the next days, or hold GPUs."""
    holders: tuple[Holder, ...]
    rules: Callable[[str], Rules]
    """By the name of a project."""
    reserved: frozenset[str] = frozenset()
    """Providers that are reserved, whoever did it, and have no server."""
    clean: Mapping[str, int] = field(default_factory=dict)
    """Providers that Nova has reserved after a use, and that have been scrubbed since -> the generation in which they
    were: in that one they are released."""
    memory: Memory = Memory()
    unbooked: Mapping[str, int] = field(default_factory=dict)
    """Project -> how many GPUs it may use without a booking; only those that may."""
    trusted: Mapping[str, int] = field(default_factory=dict)
    """Project -> how many GPUs it may have at once without being let in: nobody but gpuyard itself starts servers
    there, each on a lease."""
    own: frozenset[str] = frozenset()
    """Projects in which nobody but gpuyard starts servers, each on a loan: it deletes them itself."""
    held_below: bool = True
    """Whether GPUs of exclusive bookings are held below their servers too: Placement 14 and later lets Nova move such
    a server, and Nova itself reserves those that are used once."""
    once: bool = False
    """Whether its GPUs are used once: Nova reserves those that have a server."""
    kept_back: Mapping[int, str] = field(default_factory=dict)
    """Lanes that nobody is to get, whoever has booked them, each with why: something is wrong with their GPUs."""
    taken_at: datetime | None = None
    """When the servers were listed; the moment of planning when left out."""

    @cached_property
    def matches(self) -> Matches:
        return match(self.bookings, self.holders)

    @cached_property
    def mixed(self) -> bool:
        """Whether a server with one GPU may land in a slot of several."""
        return len({lane.size for lane in self.lanes.values()}) > 1

    @cached_property
    def strays(self) -> tuple[Holder, ...]:
        """Servers without a booking that somebody answers for, the oldest first."""
        return tuple(
            holder for holder in self.matches.unbooked if holder.project_id not in self.trusted.keys() | self.own
        )

    @cached_property
    def leftover(self) -> tuple[Holder, ...]:
        """Servers in trusted projects without a lease: about to be deleted, or somebody has put them there."""
        return tuple(holder for holder in self.matches.unbooked if holder.project_id in self.trusted)

    def rules_of(self, booking: Booking) -> Rules:
        return self.rules(booking.project)

    def missing(self, booking: Booking) -> tuple[int, ...]:
        """Lanes of a booking that no server of its owner is on yet."""
        claimed = self.matches.claims.get(booking.id, ())
        remaining = len(booking.lanes) - len(claimed)
        return tuple(lane for lane in booking.lanes if lane not in claimed)[: max(0, remaining)]

    @cached_property
    def busy(self) -> frozenset[int]:
        return frozenset(lane for holder in self.holders for lane in holder.lanes)

    def ready(self, lane: int) -> bool:
        """Return whether a lane can be used, once a hold of ours is off."""
        return self._idle(lane) and not self.lanes[lane].trouble and lane not in self.kept_back

    def lendable(self, lane: int) -> bool:
        """Return whether a lane can be lent: only a hold of ours is on it, or what its GPU is kept back for."""
        return self._idle(lane) and self.lanes[lane].trouble in ("", self.kept_back.get(lane, ""))

    def _idle(self, lane: int) -> bool:
        """Return whether no server is on it, and nobody else has reserved it."""
        others = any(name in self.reserved and name not in self.memory.holds for name in self.providers.get(lane, ()))
        return lane in self.lanes and lane in self.providers and not others and lane not in self.busy

    def room(self, booking: Booking) -> int:
        """Return how many GPUs servers of a booking can still get without taking those of another one. A booking with
        somebody else on its GPU is not let in: that would only pass the trouble on."""
        can_be_had = self.lendable if booking.kind is BookingKind.LOAN else self.ready
        lanes = [lane for lane in self.missing(booking) if can_be_had(lane)]
        left = booking.ask.gpus - self.matches.gpus.get(booking.id, 0)
        return left if booking.ask.same_group and lanes else min(left, len(lanes))

    def exclusive(self, booking: Booking) -> bool:
        """Return whether its GPUs may only be released while nobody else is let in: where servers without a booking are
        allowed, for a whole slot of several GPUs where others might take one of them, and for a loan, since nobody else
        is to have what may be bad."""
        lent = booking.kind is BookingKind.LOAN
        return lent or bool(self.unbooked) or (self.mixed and is_whole_group(booking))

    def waits_for_server(self, lease: Booking) -> bool:
        """Return whether the group of a runner's lease is to be held: Nova has not been asked for its server yet."""
        requested = lease.id in self.memory.lifted or lease.claimed is not None or lease.id in self.matches.claims
        return lease.state is BookingState.ACTIVE and is_whole_group(lease) and not requested

    def window(self, booking: Booking, now: datetime) -> tuple[datetime, datetime] | None:
        """Return the time in which the GPUs of an exclusive booking are released, when that is on or still to come. A
        window has its length from the moment that it was asked for; after it comes the pause, if there is one."""
        length, last = self.rules_of(booking).window, self.last_window(booking.id, now)
        started = booking.ask.start if last is None else min(booking.ask.start, last)
        until = (booking.open_until or started + length).replace(microsecond=0)
        begin = until - length
        if booking.state is BookingState.ACTIVE and begin > now:  # the clock has gone back since
            begin = last or now.replace(microsecond=0)
        if last is not None and self.keeps_others_out(booking):
            pause = self.pause(booking, now)
            if now < last + length:
                begin = last
            elif now < pause or now >= until:
                return None
            else:
                begin = max(begin, pause)
        end = min(begin + length, booking.ask.end)
        return (begin, end) if now < end else None

    def last_window(self, id: str, now: datetime) -> datetime | None:
        """Return when a booking's last window began; none began later than now, only the clock may have gone back
        since."""
        began = self.memory.windows.get(id)
        return None if began is None else min(began, now.replace(microsecond=0))

    def pause(self, booking: Booking, now: datetime) -> datetime:
        """Return the moment before which there is no other window for bookings of its owner that had one: others have
        the pool as long."""
        mine = (self.last_window(other.id, now) for other in self.bookings if other.user_id == booking.user_id)
        return max(begin for begin in mine if begin is not None) + 2 * self.rules_of(booking).window

    def keeps_others_out(self, booking: Booking) -> bool:
        """Return whether somebody outside the project waits while its GPUs are released."""
        booked = {booking.project_id for booking in self.bookings if booking.kind is BookingKind.BOOKING}
        return bool((self.unbooked.keys() | self.trusted.keys() | booked) - {booking.project_id})

    def closing(self, now: datetime) -> list[Booking]:
        """Return exclusive bookings whose GPUs are released, or to be released now or in a moment. Those of which one's
        server may land on the other's GPUs take turns: one that is released stays so, then whole slots go first. A loan
        is alone."""
        candidates = [
            booking
            for booking in self.bookings
            if booking.kind in LET_IN
            and (booking.state is BookingState.ACTIVE or self._begins_soon(booking, now))
            and self.exclusive(booking)
            and self.room(booking)
            and self.window(booking, now)
        ]
        turns: list[Booking] = []
        opened = self.memory.opened
        for booking in sorted(candidates, key=lambda b: (b.id not in opened, not is_whole_group(b), b.ask.start, b.id)):
            if not any(self._in_each_others_way(booking, other) for other in turns):
                turns.append(booking)
        return turns

    @staticmethod
    def _begins_soon(booking: Booking, now: datetime) -> bool:
        return booking.state is BookingState.CONFIRMED and booking.ask.start - PREPARE <= now

    def _in_each_others_way(self, booking: Booking, other: Booking) -> bool:
        if BookingKind.LOAN in (booking.kind, other.kind):
            return True
        return (
            self.mixed and booking.project_id != other.project_id and is_whole_group(booking) != is_whole_group(other)
        )
