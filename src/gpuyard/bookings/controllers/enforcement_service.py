"""Asks an external service before bookings are made or changed, by the protocol of Blazar's external service filter.

It is asked outside of any transaction, and told of a booking's end by a channel of the ledger's events: these are
written with what they tell of, so an end is told however long the service is away.

The service may already count its yes as use. So before the question the way to take it back is written down; that
record is removed when what was asked for is done, and carried out when it is not: at once, or after a crash once it is
old enough that nobody can be in the middle of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from gpuyard.bookings.controllers.blazar_documents import LeaseWords
from gpuyard.bookings.controllers.channel import ChannelDownError, Message, NeverError, NotNowError
from gpuyard.bookings.controllers.enforcement_client import (
    DeniedError,
    EnforcementClient,
    OutageError,
    UnknownLeaseError,
)
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger, NoBookingError
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.records import AuditEntry, Event
from gpuyard.database.errors import StoreError
from gpuyard.model.booking import Answer, Booking, Reason
from gpuyard.model.errors import UsageError
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.site.accounting_rules import ExternalEnforcement
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import pool_class

LOG = logging.getLogger(__name__)
MEMORY = "external enforcement"
"""Key of the ledger's records for what may have to be taken back: id of the booking -> how."""
PERIOD = 5.0
IN_THE_MIDDLE = timedelta(minutes=15)
"""Time in which a process that asked may still be about to book: many times what all questions of one request can
take."""
ENDS = frozenset({"booking.ended", "booking.cancelled", "booking.expired", "booking.no_show"})
MADE = frozenset({"booking.requested", "booking.waiting", "booking.confirmed", "booking.changed"})


@dataclass(frozen=True)
class TakingBack:
    """A record of how to take back what was asked for."""

    id: str
    """Id of the booking."""
    at: datetime
    path: str
    document: Mapping[str, Any]
    wanted: tuple[str, str, int] | None = None
    """Start, end and GPUs that a booking was to have, where it is a change."""
    failed: bool = False
    """True: it is certain that it was not done."""

    def text(self) -> str:
        return json.dumps({**vars(self), "at": self.at.isoformat()})

    @classmethod
    def read(cls, text: str) -> TakingBack:
        data = json.loads(text)
        desired = tuple(data["wanted"]) if data["wanted"] else None
        return cls(**{**data, "at": datetime.fromisoformat(data["at"]), "wanted": desired})


class EnforcementService:
    """The ledger's `Outside`. Safe to use from several threads, and from several processes on one database."""

    def __init__(
        self,
        client: EnforcementClient,
        rules: ExternalEnforcement,
        words: LeaseWords,
        ledger: Ledger,
        now: Callable[[], datetime],
    ) -> None:
        self._client, self._rules, self._words = client, rules, words
        self._ledger, self._records = ledger, ledger.upkeep.records
        self._now = now
        self.wake = WakeSignal()
        """Sent when there is something to take back."""

    @contextmanager
    def making(self, bookings: Sequence[Booking], override: bool) -> Iterator[Sequence[Reason]]:
        questions = []
        for booking in bookings:
            document = self._words.creating(booking)
            back = TakingBack(booking.id, self._now(), "on-end", document)
            questions.append(("check-create", document, back))
        with self._asked(questions, override) as set_aside:
            yield set_aside

    @contextmanager
    def changing(self, changes: Sequence[tuple[Booking, Booking]], override: bool) -> Iterator[Sequence[Reason]]:
        questions = []
        for old, new in changes:
            back = TakingBack(new.id, self._now(), "check-update", self._words.changing(new, old), _wanted(new))
            questions.append(("check-update", self._words.changing(old, new), back))
        with self._asked(questions, override) as set_aside:
            yield set_aside

    @contextmanager
    def _asked(
        self, questions: Sequence[tuple[str, Mapping[str, Any], TakingBack]], override: bool
    ) -> Iterator[Sequence[Reason]]:
        promised: list[TakingBack] = []
        set_aside: list[Reason] = []
        try:
            for path, document, back in questions:
                self._remember(back)
                promised.append(back)
                reason = self._ask(path, document, back)
                if reason is None:
                    continue
                if reason.code == "external":
                    promised.remove(back)
                    self._forget(back)
                if not override:
                    raise RefusedError(Answer(reasons=(reason,)))
                set_aside.append(reason)
            yield set_aside
        except BaseException:
            for back in promised:
                self._remember(TakingBack(**{**vars(back), "failed": True}))
            self.wake("a booking was not made")
            raise
        for back in promised:
            try:
                if back.wanted is None and not self._is_done(back):  # who asked twice at once has got the other booking
                    self._remember(TakingBack(**{**vars(back), "failed": True}))
                    self.wake("a booking was not made")
                else:
                    self._forget(back)
            except StoreError as error:  # what is done is found to be done later, and what was asked for was done
                LOG.warning("external enforcement: booking %s: %s", back.id, error)

    def _ask(self, path: str, document: Mapping[str, Any], back: TakingBack) -> Reason | None:
        """What speaks against it."""
        try:
            self._check(path, document)
        except DeniedError as denied:
            return Reason("external", f"{self._client.host}, which keeps the accounts of this site, says no: {denied}")
        except (OutageError, UsageError) as outage:
            allowed = self._rules.outage == "allow"
            LOG.warning("external enforcement: %s; the booking is %s", outage, "made" if allowed else "refused")
            if allowed:
                text = f"made without the yes of {self._client.host}: {outage}"
                self._records.write_audit(
                    AuditEntry(self._now(), GPUYARD, "external.outage", back.id, "external", text)
                )
                return None
            text = (
                f"bookings need the yes of {self._client.host}, which cannot be asked now ({outage}); try again later"
            )
            return Reason("external_outage", text)
        return None

    def _check(self, path: str, document: Mapping[str, Any]) -> None:
        """A lease that it does not know yet, or never will, is a new one to it. Raises DeniedError, OutageError."""
        try:
            self._client.post(path, document)
        except UnknownLeaseError as unknown:
            if path == "check-create":
                raise OutageError(str(unknown)) from None
            self._check("check-create", {key: document[key] for key in ("context", "lease")})

    def _remember(self, back: TakingBack) -> None:
        self._records.set_value(MEMORY, back.id, back.text())

    def _forget(self, back: TakingBack) -> None:
        self._records.set_value(MEMORY, back.id, None)

    def take_back(self) -> None:
        """Take back what was asked for and not done. Raises OutageError; the next run tries it again."""
        for text in self._records.values(MEMORY).values():
            back = TakingBack.read(text)
            if not back.failed and self._now() - back.at < IN_THE_MIDDLE:
                continue
            if not back.failed and self._is_done(back):
                self._forget(back)
                continue
            try:
                self._client.post(back.path, back.document)
            except DeniedError as denied:  # it keeps nothing of it
                LOG.info("external enforcement: %s of booking %s: %s", back.path, back.id, denied)
            self._forget(back)

    def _is_done(self, back: TakingBack) -> bool:
        """Return whether what was asked for was done, by whoever could not say so any more."""
        try:
            booking = self._ledger.get(back.id)
        except NoBookingError:
            return False
        return back.wanted is None or _wanted(booking) == back.wanted


def _wanted(booking: Booking) -> tuple[str, str, int]:
    ask = booking.ask
    return ask.start.isoformat(), ask.end.isoformat(), ask.gpus


class EnforcementChannel:
    """Channel that tells the service how bookings go on: that they ended, and coral-credits also that they were made
    and changed."""

    patience: timedelta | None = None
    """An end is told however late."""

    def __init__(self, client: EnforcementClient, rules: ExternalEnforcement, words: LeaseWords) -> None:
        digest = sha256(rules.url.encode()).hexdigest()[:8]
        self.name = f"external {client.host} {digest}"
        self.batch = max(1, 40 // (2 * rules.timeout))  # the store keeps a batch for one process for a minute
        self._client, self._words = client, words
        self._kinds = ENDS | MADE if rules.service == "coral-credits" else ENDS

    def wants(self, event: Event) -> bool:
        return event.kind in self._kinds

    @contextmanager
    def open(self) -> Iterator[Callable[[Message], None]]:
        yield self._send

    def _send(self, message: Message) -> None:
        if message.booking is None:
            raise NeverError(f"there is no booking {message.event.booking} any more")
        try:
            if message.event.kind in ENDS:
                self._end(message.booking)
            else:
                self._commit(message.booking)
        except DeniedError as denied:
            raise NeverError(f"{self._client.host} says no: {denied}") from None
        except UsageError as error:
            raise NotNowError(str(error)) from None
        except OutageError as outage:
            raise ChannelDownError(str(outage)) from None

    def _end(self, booking: Booking) -> None:
        try:
            self._client.post("on-end", self._words.creating(booking))
        except UnknownLeaseError as unknown:  # it has nothing to end
            LOG.info("external enforcement: on-end of booking %s: %s", booking.id, unknown)

    def _commit(self, booking: Booking) -> None:
        """The same once more changes nothing: what it knows is updated to what it is."""
        try:
            self._client.post("update", self._words.changing(booking, booking))
        except UnknownLeaseError:
            self._client.post("create", self._words.creating(booking))


@dataclass(frozen=True)
class OpenedEnforcement:
    """The parts of external enforcement that the serving process runs."""

    service: EnforcementService
    channel: EnforcementChannel
    loop: Loop


def open_enforcement(
    compiled: CompiledSite,
    ledger: Ledger,
    auth_url: str,
    environment: Mapping[str, str],
    now: Callable[[], datetime],
    period: float = PERIOD,
) -> OpenedEnforcement | None:
    """Let the site's external service have its say in the ledger; None where the site has none. Raises UsageError
    without a token."""
    accounting = compiled.site.accounting
    if accounting is None or accounting.external is None:
        return None
    rules = accounting.external
    client, words = EnforcementClient(rules, environment), lease_words(compiled, ledger, rules, auth_url)
    service = EnforcementService(client, rules, words, ledger, now)
    ledger.outside = service
    loop = Loop("external enforcement", "Takes back what was asked for and not booked.", period, service.take_back)
    service.wake.listen(loop.wake)
    return OpenedEnforcement(service, EnforcementChannel(client, rules, words), loop)


def lease_words(compiled: CompiledSite, ledger: Ledger, rules: ExternalEnforcement, auth_url: str) -> LeaseWords:
    """Return what documents need of a site: the smallest flavor of each pool, and for coral-credits its resource
    class."""
    flavors: dict[str, str] = {}
    for flavor in sorted(compiled.flavors, key=lambda candidate: (candidate.gpus, candidate.name), reverse=True):
        if flavor.pool and not flavor.variant_of:
            flavors[flavor.pool] = flavor.name
    classes: dict[str, str] = {}
    if rules.service == "coral-credits":
        classes = {pool: pool_class(pool) for pool in compiled.site.pools} | dict(rules.classes)
    return LeaseWords(
        auth_url, rules.region, flavors, classes, lambda pool: {lane.id: lane for lane in ledger.lanes(pool)}
    )
