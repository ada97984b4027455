"""The JSON documents of bookings in /v1, converted from and to the types of model/booking.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    model_validator,
)

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.reclaim import warning
from gpuyard.bookings.records import Overstay
from gpuyard.bookings.web.flavors import fitting, start_command
from gpuyard.bookings.web.shown_bookings import hidden, is_near
from gpuyard.model.booking import (
    Alternative,
    Answer,
    Ask,
    Booking,
    BookingKind,
    BookingState,
    Lane,
    Person,
    ReclaimAction,
)
from gpuyard.model.gpu import Gpu, GpuState
from gpuyard.model.rights import Verb, verbs_now
from gpuyard.site.objects import FlavorObject
from gpuyard.web.documents import Comment, Flag, Line, Link, Moment, Sent
from gpuyard.web.people import Visitor
from gpuyard.web.projects import in_project_of
from gpuyard.web.settings import OthersShown
from gpuyard.web.visibility import hides, projects_of

MOST_GPUS = 1_000_000
SLOT = re.compile(r"[A-Za-z0-9._-]{1,253}/[0-9A-Fa-f.:]{1,32}")


def _gpu_name(text: str) -> str:
    if text and not SLOT.fullmatch(text):
        raise ValueError("names no GPU; write host/address, as in gpu-1/0000:3b:00.0")
    return text


GpuName = Annotated[Line, AfterValidator(_gpu_name)]
Number = Annotated[int, Field(ge=0, le=MOST_GPUS, strict=True)]


class AskDocument(BaseModel):
    """What is wanted, or would be possible."""

    pool: str
    start: Moment
    end: Moment
    gpus: int
    same_group: bool
    same_host: bool
    gpu: str
    comment: str


class BookingAsk(Sent):
    """What somebody wants to book."""

    pool: Line = Field(examples=["t4"])
    start: Moment
    end: Moment = Field(description="The first moment that is not booked any more.")
    gpus: Number = 1
    same_group: Flag = Field(False, description="The GPUs must be one whole IOMMU group.")
    same_host: Flag = Field(False, description="The GPUs must be on one host, as for a server with several.")
    gpu: GpuName = Field("", description="host/address of the GPU that it must be; empty: any of the pool.")
    comment: Comment = Field("", description="For everybody to see.")
    wait: Flag = Field(False, description="Go on the waitlist when no GPU is free.")
    override: Flag = Field(False, description="Set rules aside; for admins.")
    repeat: Comment = Field("", description="RRULE of iCalendar with COUNT or UNTIL: several bookings, or none.")
    timezone: Line = Field("UTC", description="In which `repeat` is reckoned.", examples=["Europe/Rome"])
    project: Line = Field("", description="Name or id; empty: the one that is looked at, or the token's.")
    user: Line = Field("", description="Name or id of the colleague in the project whose it is to be; empty: yours.")
    shared: Flag = Field(False, description="Every member of the project may use it.")

    def ask(self) -> Ask:
        return Ask(self.pool, self.start, self.end, self.gpus, self.same_group, self.same_host, self.gpu, self.comment)


class Changes(Sent):
    """Of a document: what is left out stays."""

    @model_validator(mode="before")
    @classmethod
    def _no_nulls(cls, body: Any) -> Any:
        if isinstance(body, dict) and (empty := [str(name) for name, value in body.items() if value is None]):
            raise ValueError(f"null is no value of {empty[0]!r}; leave it out to keep what it is")
        return body


class BookingChanges(Changes):
    """What shall be different."""

    pool: Line | None = Field(None, description="The one that it is in.")
    start: Moment | None = None
    end: Moment | None = None
    gpus: Number | None = None
    same_group: Flag | None = None
    same_host: Flag | None = None
    gpu: GpuName | None = None
    comment: Comment | None = None
    override: Flag = False
    series: Flag = Field(False, description="The others of its series that have not begun change alike.")

    def apply(self, ask: Ask) -> Ask:
        changes = {name: getattr(self, name) for name in self.model_fields_set - {"override", "series"}}
        return replace(ask, **changes)


class Extension(Sent):
    """A later end, or an earlier one."""

    end: Moment
    override: Flag = False


class Because(Sent):
    """Why, for the owner to read."""

    reason: Comment = ""


class Cancelling(Because):
    """Why, and how much of it."""

    series: Flag = Field(False, description="And all others of its series that have not begun.")


class BookingEnd(Because):
    """Why, and what was wrong."""

    fault: Line = Field("", max_length=500, description="What was wrong with its GPUs, for operators; empty: nothing.")


class HoldAsk(Sent):
    """GPUs to keep out of use: those that are named, and all of the hosts and of the pools."""

    gpus: list[GpuName] = Field([], max_length=1000, description="host/address of each.")
    hosts: list[Line] = Field([], max_length=1000)
    pools: list[Line] = Field([], max_length=100)
    start: Moment
    end: Moment
    comment: Comment = Field("", description="Why, for everybody to see.")
    repeat: Comment = Field("", description="RRULE of iCalendar with COUNT or UNTIL: the same again and again.")
    timezone: Line = Field("UTC", description="In which `repeat` is reckoned.", examples=["Europe/Rome"])

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not (self.gpus or self.hosts or self.pools):
            raise ValueError("name at least one of gpus, hosts and pools")
        return self


class BookingRow(BaseModel):
    """A booking or a hold, or what gpuyard keeps for a runner of GitHub jobs."""

    id: str
    kind: BookingKind
    state: BookingState
    pool: str
    gpus: int
    same_group: bool
    same_host: bool
    gpu: str = Field(description="host/address of the GPU that it must be; empty: any.")
    start: Moment
    end: Moment
    user: str
    project: str
    comment: str
    reason: str = Field(description="Why it is in its state, when that is not its owner's doing.")
    lanes: list[int] = Field(description="The rows of the calendar that it has; empty when it has none (yet).")
    gpu_names: list[str] = Field(description="host/address of the GPUs that it has; they may change until it begins.")
    mine: bool
    may: list[Verb] = Field(description="What you may do with it now.")
    version: int = Field(description="Rises with every change; the ETag.")
    created: Moment
    changed: Moment
    series: str = Field(description="The same for all bookings of one recurring one; empty for a single one.")
    offer_until: Moment | None = Field(description="Until when an offer can be accepted.")
    open_until: Moment | None = Field(description="Until when its GPUs are released for a server of its owner's.")
    override: bool = Field(description="An admin has set rules aside for it.")
    claimed: Moment | None = Field(description="When a server was first seen on one of its GPUs.")
    usable_since: Moment | None = Field(
        description="Since when its owner can start a server; null: not yet, or not any more."
    )
    shared: bool = Field(description="Every member of its project may use it.")
    server: str = Field(description="Name of the server that a runner's is for; empty for others.")
    trouble: str = Field(description="What is wrong now with a GPU that it has; empty: nothing.")
    flavors: list[str] = Field(description="What its owner's servers can have; the one that uses most of it is first.")
    command: str = Field(description="Starts a server with the first of them; words in capitals are to be replaced.")


class BookingList(BaseModel):
    bookings: list[BookingRow] = Field(description="By start and id.")
    links: list[Link] = Field(default=[], description="The next page, when there is one.")


class CaseRow(BaseModel):
    """A server that keeps a GPU without a booking, and what becomes of it."""

    server_id: str
    server: str
    pool: str
    mine: bool
    warned: Moment
    due: Moment = Field(description="When the action is taken.")
    action: ReclaimAction
    dry_run: bool = Field(description="Nothing is done, it is only written down.")
    text: str = Field(description="What happens when and why, and how to prevent it.")


class CaseList(BaseModel):
    cases: list[CaseRow] = Field(description="By when they were seen.")


def overstay_row(overstay: Overstay, person: Person) -> CaseRow:
    """Return the row of an overstay whose owner was warned."""
    assert overstay.warned is not None
    assert overstay.due is not None
    return CaseRow(
        server_id=overstay.server_id,
        server=overstay.server,
        pool=overstay.pool,
        mine=overstay.user_id == person.user_id,
        warned=overstay.warned,
        due=overstay.due,
        action=overstay.action,
        dry_run=overstay.dry_run,
        text=warning(overstay),
    )


class ReasonDocument(BaseModel):
    code: str = Field(description="For programs.", examples=["full", "too_long"])
    text: str


class AlternativeDocument(BaseModel):
    text: str
    ask: AskDocument


class CheckResult(BaseModel):
    """Whether it could be booked now."""

    fits: bool
    reasons: list[ReasonDocument] = Field(description="Everything that speaks against it.")
    alternatives: list[AlternativeDocument]
    lanes: list[int] = Field(description="What it would get.")
    warnings: list[str] = Field(
        description="What is wrong now with GPUs that it would get, and when they are expected back."
    )


def ask_document(ask: Ask) -> AskDocument:
    return AskDocument(
        pool=ask.pool,
        start=ask.start,
        end=ask.end,
        gpus=ask.gpus,
        same_group=ask.same_group,
        same_host=ask.same_host,
        gpu=ask.gpu,
        comment=ask.comment,
    )


def alternative_documents(alternatives: Iterable[Alternative]) -> list[AlternativeDocument]:
    return [
        AlternativeDocument(text=alternative.text, ask=ask_document(alternative.ask)) for alternative in alternatives
    ]


def check_result(answer: Answer) -> CheckResult:
    return CheckResult(
        fits=answer.yes,
        reasons=[ReasonDocument(code=reason.code, text=reason.text) for reason in answer.reasons],
        alternatives=alternative_documents(answer.alternatives),
        lanes=list(answer.lanes),
        warnings=list(answer.warnings),
    )


class BookingRows:
    """Makes rows of bookings, as the person who sees them may see them."""

    def __init__(
        self,
        ledger: Ledger,
        gpus: Iterable[Gpu],
        flavors: Sequence[FlavorObject] = (),
        others: OthersShown = OthersShown.NAMES,
    ) -> None:
        self._ledger, self._flavors, self._others = ledger, flavors, others
        self._letters = {(gpu.host, gpu.address): gpu.set_letter for gpu in gpus}

    def of(self, who: Visitor, pool: str = "") -> Callable[[Booking], BookingRow]:
        """Return a function that makes rows of the bookings of one pool, or of all."""
        lanes = self._ledger.lanes(pool)
        names = gpu_names(lanes)
        troubles = {lane.id: f"GPU {lane.name}: {lane.trouble}" for lane in lanes if lane.trouble}
        return lambda booking: booking_row(
            booking if self.shows(who, booking) else hidden(booking, self._others),
            who, names, troubles, fitting(booking, lanes, self._letters, self._flavors),
        )  # fmt: skip

    def shows(self, who: Visitor, booking: Booking) -> bool:
        """Return whether a person sees whose booking it is."""
        return not hides(self._others, who) or is_near(booking, who.person.user_id, projects_of(who))


def booking_row(
    booking: Booking,
    who: Visitor,
    names: Mapping[int, list[str]],
    troubles: Mapping[int, str],
    flavors: Collection[FlavorObject],
) -> BookingRow:
    """Return the row of a booking. `names`: lane -> ``host/address`` of its GPUs; `troubles`: lane -> what is wrong
    with it now."""
    ask, mine = booking.ask, booking.user_id == who.person.user_id
    return BookingRow(
        id=booking.id,
        kind=booking.kind,
        state=booking.state,
        pool=ask.pool,
        gpus=ask.gpus,
        same_group=ask.same_group,
        same_host=ask.same_host,
        gpu=ask.gpu,
        start=ask.start,
        end=ask.end,
        user=booking.user,
        project=booking.project,
        comment=ask.comment,
        reason=booking.reason,
        lanes=list(booking.lanes),
        gpu_names=gpus_of(booking, names),
        mine=mine,
        may=list(verbs_now(in_project_of(who, booking), booking)),
        version=booking.version,
        created=booking.created,
        changed=booking.changed,
        series=booking.series,
        offer_until=booking.offer_until,
        open_until=booking.open_until,
        override=booking.override,
        claimed=booking.claimed,
        usable_since=booking.usable_since,
        shared=booking.shared,
        server=booking.server,
        trouble="; ".join(troubles[lane] for lane in booking.lanes if lane in troubles),
        flavors=[flavor.name for flavor in flavors],
        command=start_command(flavors),
    )


def gpu_names(lanes: Iterable[Lane]) -> dict[int, list[str]]:
    """Return lane -> ``host/address`` of its GPUs, the leader's first."""
    return {lane.id: [f"{lane.host}/{address}" for address in lane.addresses] for lane in lanes}


def gpus_of(booking: Booking, names: Mapping[int, list[str]]) -> list[str]:
    """Return ``host/address`` of the GPUs that a booking has. `names`: as of `gpu_names`."""
    # One GPU of a group: its leader. The others are stranded by it, and not booked.
    most = None if booking.ask.same_group else 1
    return [name for lane in booking.lanes for name in names.get(lane, ())[:most]]


class LaneRow(BaseModel):
    """A row of the calendar."""

    id: int
    pool: str
    host: str
    gpus: list[str] = Field(description="PCI addresses, the leader's first.")
    size: int
    model: str
    trouble: str = Field(description="Why it cannot be booked or used now; empty when it can.")
    state: GpuState | None = Field(description="Of its first GPU, now; null while the cloud was not seen.")


class FreeRow(BaseModel):
    pool: str
    start: Moment
    lanes: int = Field(description="How many are free from there to the next row's start.")


class Calendar(BaseModel):
    """All that a calendar shows."""

    start: Moment
    end: Moment
    lanes: list[LaneRow] = Field(description="By pool, host and address.")
    bookings: list[BookingRow] = Field(description="Those that overlap the time and were not cancelled.")
    free: list[FreeRow] = Field(description="By pool and time.")
    truncated: bool = Field(description="There are more bookings than are told; ask for less.")
