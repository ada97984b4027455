"""Types of bookings: who may use which GPUs when, the request for one, the answer to it, and the rules.

Times are UTC, intervals half-open: [start, end). A booking takes *lanes*: a lane is one slot (an IOMMU group) over
time, a row of the calendar. A booking of n GPUs takes n lanes, or one lane whose slot has n GPUs when they must
share a group. A server with one GPU on a slot of two leaves the other stranded, so a lane is never shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, FrozenSet, Mapping, Optional, Tuple

FOREVER = datetime(9000, 1, 1, tzinfo=timezone.utc)
"""A moment far enough for everybody, and near enough for adding to it."""


class BookingState(str, Enum):
    """Where a booking is in its life; model/booking_life.py has the ways between them."""

    REQUESTED = "requested"
    """Waits for an admin's approval; takes no GPU yet."""
    WAITING = "waiting"
    """On the waitlist; takes no GPU yet."""
    OFFERED = "offered"
    """Was waiting, and its GPUs are kept for it until `offer_until`, for its owner to accept."""
    CONFIRMED = "confirmed"
    """Its GPUs are its own from start to end."""
    ACTIVE = "active"
    """Now is within its time."""
    ENDED = "ended"
    CANCELLED = "cancelled"
    """By its owner or an admin, before it began."""
    NO_SHOW = "no-show"
    """Released: no server came within the time that the rules give."""
    EXPIRED = "expired"
    """Nobody approved or accepted it, or no GPU became free, in time."""


class BookingKind(str, Enum):
    """What takes a lane."""

    BOOKING = "booking"
    HOLD = "hold"
    """An operator keeps a GPU out of use: maintenance, quarantine."""
    RUNNER = "runner"
    """A lease: gpuyard itself keeps a GPU for a server that runs one GitHub job."""
    LOAN = "loan"
    """A certain GPU for one project alone, although something may be wrong with it: to be accepted, or repaired."""


@dataclass(frozen=True)
class Lane:
    """One slot of a pool as the ledger books it. Its number stays while the site keeps the slot."""

    id: int
    pool: str
    host: str
    addresses: Tuple[str, ...]
    """PCI addresses of its GPUs, the leader's first."""
    trouble: str = ""
    """The reason why it cannot be used now (lost, blocked, gone from the site); empty when it can."""
    back: Optional[datetime] = None
    """The time at which it is expected to be well again, where an operator has said so; FOREVER when it will not be."""

    def troubled_until(self, now: datetime, usually: timedelta) -> Optional[datetime]:
        """Return the moment before which it cannot be booked; None when nothing is wrong with it. `usually`: how long
        the trouble is expected to last from now on, where nobody has said when it ends."""
        if not self.trouble:
            return None
        return self.back if self.back is not None and self.back > now else now + usually

    @property
    def size(self) -> int:
        """Its number of GPUs."""
        return len(self.addresses)

    def is_named(self, gpu: str) -> bool:
        """Return whether `gpu` (``host/address``) is one of its GPUs."""
        host, _, address = gpu.rpartition("/")
        return self.host == host and address.lower() in self.addresses

    @property
    def name(self) -> str:
        """``host/address`` of its first GPU, as people name it."""
        return f"{self.host}/{self.addresses[0]}"


@dataclass(frozen=True)
class Person:
    """The person who asks: a Keystone user in a project, with the roles there."""

    user_id: str
    user: str
    project_id: str
    project: str
    roles: FrozenSet[str] = frozenset()
    email: str = ""
    by_token: bool = False
    """Whether it is a program, which may do no more than the roles of its token let it."""

    @property
    def admin(self) -> bool:
        return "admin" in self.roles


@dataclass(frozen=True)
class Ask:
    """A request for a booking."""

    pool: str
    start: datetime
    """The start, UTC."""
    end: datetime
    """The end, UTC: the first moment that is not booked any more."""
    gpus: int = 1
    same_group: bool = False
    """Whether the GPUs must be one whole IOMMU group."""
    same_host: bool = False
    """Whether the GPUs must be on one host, as a server with several GPUs needs them."""
    gpu: str = ""
    """``host/address`` of the GPU that it must be; empty for any of the pool."""
    comment: str = ""
    """A comment that everybody can see."""

    @property
    def lanes(self) -> int:
        """The number of lanes it takes."""
        return 1 if self.same_group else self.gpus

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.end - self.start).total_seconds() / 3600


@dataclass(frozen=True)
class Booking:
    """A booking, hold, lease or loan, as the store has it."""

    id: str
    kind: BookingKind
    ask: Ask
    state: BookingState
    user_id: str
    user: str
    project_id: str
    project: str
    created: datetime
    changed: datetime
    version: int = 1
    """A number that rises with every change: ETag and If-Match compare it."""
    lanes: Tuple[int, ...] = ()
    """Ids of the lanes that it has; empty in states that take none."""
    reason: str = ""
    """The reason for its state, when that is not its owner's doing."""
    email: str = ""
    series: str = ""
    """An id that all bookings of one recurring booking share."""
    offer_until: Optional[datetime] = None
    claimed: Optional[datetime] = None
    """The time when a server of its owner was first seen on one of its GPUs."""
    open_until: Optional[datetime] = None
    """In pools with unbooked use: the time until which its GPUs are released for its owner's server."""
    priority: int = 0
    override: bool = False
    """Whether an admin set rules aside for it."""
    usable_since: Optional[datetime] = None
    """The time since which its owner can start a server; None when that is not possible (any more), or one is there."""
    empty_since: Optional[datetime] = None
    """The time since which its servers are all gone and its owner could have another one, at once or in a window of
    theirs; None while one is there, before the first one, and as long as the owner is not let in."""
    shared: bool = False
    """Whether every member of its project may use it, not only its owner."""
    server: str = ""
    """Name of the one server that a lease is for, or a loan where it is for one; empty for bookings and holds."""
    yields: bool = False
    """Whether a booking that needs the lanes of this lease may end it."""
    followed: int = 0
    """A number that orders bookings that were made in the same second: order of the waitlist."""


@dataclass(frozen=True)
class Reason:
    """One reason against a request."""

    code: str
    """A code for programs: ``full``, ``too_long``, ``past`` ...; does not change when the words do."""
    text: str


@dataclass(frozen=True)
class Alternative:
    """A similar request that would be possible."""

    ask: Ask
    text: str
    """``from Thu 2026-11-26 14:00 UTC``, ``2 of pool t4 instead``."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request: yes with the lanes that would be taken, or no with every reason."""

    lanes: Tuple[int, ...] = ()
    moves: Mapping[str, Tuple[int, ...]] = field(default_factory=dict)
    """Other bookings whose lanes change to make space: id -> all lanes that it has then. Nobody notices: GPUs of a pool
    are alike, and none of these has begun or asks for a certain GPU."""
    ends: Tuple[str, ...] = ()
    """Ids of leases that end at once to make space: all of them allow it (`Booking.yields`)."""
    reasons: Tuple[Reason, ...] = ()
    alternatives: Tuple[Alternative, ...] = ()
    overridden: Tuple[Reason, ...] = ()
    """Rules that an admin's override has set aside."""
    warnings: Tuple[str, ...] = ()
    """Present troubles of GPUs that are expected to be well by then."""

    @property
    def yes(self) -> bool:
        return not self.reasons


class ReclaimAction(str, Enum):
    """What happens to a server that keeps a GPU without a booking, after warning and grace."""

    WARN = "warn"
    """Nothing but the warning."""
    SHELVE = "shelve"
    """Shelve and offload: the server keeps its disk and address and can be started again; the GPU is free."""
    STOP = "stop"
    """Shut off. The server keeps its GPU: this frees nothing."""
    SNAPSHOT_AND_DELETE = "snapshot-and-delete"
    DELETE = "delete"


@dataclass(frozen=True)
class QuietHours:
    """Hours of the day, in the site's time zone, in which no booking starts or ends. May span midnight."""

    start_minute: int
    """Minutes after midnight."""
    end_minute: int

    def __str__(self) -> str:
        """``22:00-06:00``"""
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start_minute, self.end_minute))


def _rule(default: Any, text: str, none: str = "none", least: Optional[int] = None, most: int = 10**9) -> Any:
    """A rule: its default, what it means, how None and an empty list are said, and its bounds. Of a duration the only
    bound is `least`: None means that it may be nothing."""
    return field(default=default, metadata={"text": text, "none": none, "least": least, "most": most})


@dataclass(frozen=True)
class Rules:
    """The complete rules for bookings of one project in one pool.

    A rule's key, type, default, text and bounds are defined here alone: the site file's schema, the API's document,
    the words of the command lines and the reference are made of these fields. bookings/policy.py applies the rules.
    """

    must_book: bool = _rule(
        True,
        "GPUs are only for those who have booked them; otherwise a project may also use as many as its 'gpus' says "
        "without a booking, until somebody has booked them",
    )
    longest: timedelta = _rule(timedelta(days=15), "longest booking", least=1)
    most_active: int = _rule(2, "most bookings that a user may have in a pool that have not ended", least=1, most=10**6)
    most_active_per_gpu: Optional[int] = _rule(
        None,
        "most bookings that a user may have on one GPU that have not ended: those that name it, and the one that has "
        "it now; a booking of any GPU of the pool is given another one",
        "any number",
        least=1,
        most=10**6,
    )
    ahead: timedelta = _rule(timedelta(days=60), "how far ahead a booking may start", least=1)
    notice: timedelta = _rule(timedelta(0), "how long before its start a booking must be made")
    gpu_hours_per_month: Optional[int] = _rule(
        None, "GPU-hours of a pool that a project may book in a month (UTC)", "any number", least=0
    )
    may_book: bool = _rule(True, "whether bookings can be made at all")
    users: Optional[FrozenSet[str]] = _rule(None, "names of the users who may book", "everybody with the role member")
    for_others: bool = _rule(
        False,
        "whether members of a project may book for a colleague, or for the whole project; its managers and admins may "
        "in any case",
    )
    priority: int = _rule(0, "the highest comes first on the waitlist", least=-1000, most=1000)
    quiet_hours: Tuple[QuietHours, ...] = _rule(
        (), "parts of the day, in the site's time zone, in which no booking starts or ends, as in ['22:00-06:00']"
    )
    approval: bool = _rule(False, "an admin must approve each booking")
    no_show: Optional[timedelta] = _rule(
        timedelta(hours=4),
        "a booking whose owner could start a server and has not is released after this time; false is never",
        "never",
        least=1,
    )
    offer: timedelta = _rule(timedelta(hours=2), "how long an offer to the waitlist stands", least=1)
    hold: timedelta = _rule(timedelta(minutes=10), "how long before the start the GPUs are kept free")
    window: timedelta = _rule(
        timedelta(minutes=15),
        "where must_book is false: how long booked GPUs are released, and all others' limits kept at their use, for "
        "the owner to start a server; it is opened again on request, after a pause of the same length",
        least=1,
    )
    end_soon: timedelta = _rule(timedelta(hours=4), "how long before the end the owner is reminded")
    trouble: timedelta = _rule(
        timedelta(days=1),
        "how long a GPU that cannot be used is expected to stay so, from each moment on; bookings that start later can "
        "have it, unless an operator has said when it is back",
    )
    grace: timedelta = _rule(timedelta(hours=1), "how long after the warning a server without a booking keeps its GPU")
    reclaim: ReclaimAction = _rule(
        ReclaimAction.SHELVE,
        "what then happens to it; 'stop' frees nothing, because a server that is off keeps its GPU",
    )
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Key -> the layer that states it: ``site``, ``pool v100``, ``project physics``. The others are defaults."""


RULES = {field.name: field for field in fields(Rules) if field.metadata}
"""Key -> the field of the rule."""


def rule_text(key: str, value: Any) -> str:
    """Return the value of a rule in words: ``15 days``, ``never``, ``22:00-06:00``."""
    if value is None or value == ():
        return str(RULES[key].metadata["none"])
    if isinstance(value, timedelta):
        return lasting(value)
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def lasting(length: timedelta) -> str:
    """Return a length of time in words: ``15 days``, ``1 day 6 h``, ``30 min``."""
    seconds = int(length.total_seconds())
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [
        f"{days} day{'' if days == 1 else 's'}" if days else "",
        f"{hours} h" if hours else "",
        f"{minutes} min" if minutes else "",
        f"{rest} s" if rest else "",
    ]
    return " ".join(part for part in parts if part) or "0 min"
