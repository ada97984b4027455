"""Carries the ledger's events to people and programs, by mail, webhooks and other channels.

An event is written together with the change that it tells of, and delivered at least once to every channel, those of
one booking in their order. A message that cannot be delivered is tried again later and later, and given up when the
channel's patience is over. Each channel has a loop of its own, so one that is dead holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from gpuyard.bookings.controllers.channel import Channel, ChannelDownError, Message, NeverError, NotNowError
from gpuyard.bookings.ledger.ledger import Ledger, NoBookingError
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.records import AuditEntry, Event
from gpuyard.bookings.store import Delivery
from gpuyard.model.counts import Counts
from gpuyard.model.errors import UsageError
from gpuyard.notifications.mail import MailChannel
from gpuyard.notifications.webhooks import WebhookChannel
from gpuyard.runtime.control_loops import Loop
from gpuyard.site.schema import Site

LOG = logging.getLogger(__name__)
PERIOD = 5.0
"""Seconds between two reads of the outbox."""
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(hours=1)
OUTCOMES = ("told", "put_off", "given_up")
"""Outcomes of attempts to deliver an event; one that is put off is tried again."""


def message_loops(
    ledger: Ledger,
    site: Site,
    environment: Mapping[str, str],
    now: Callable[[], datetime],
    *,
    portal: str = "",
    period: float = PERIOD,
    outcome_counts: Counts | None = None,
    more: Sequence[Channel] = (),
) -> list[Loop]:
    """Return one loop for each channel that the site file has, and for `more`. `environment` has the secrets; `portal`:
    its address as people reach it, for links. `outcome_counts` counts (channel, one of OUTCOMES). Raises
    UsageError for a channel that cannot work as it is set up."""
    channels = [*channels_of(site, environment, portal), *more]
    ledger.upkeep.outbox.keep_channels([channel.name for channel in channels])
    counts = outcome_counts or Counts()
    for channel in channels:
        for outcome in OUTCOMES:
            counts.know(channel.name, outcome)
    return [_loop(Courier(ledger, channel, site.site, now, counts), channel, period) for channel in channels]


def channels_of(site: Site, environment: Mapping[str, str], portal: str = "") -> list[Channel]:
    """Return the channels of the site file. Raises UsageError."""
    booking = site.booking
    if booking is None:
        return []
    channels: list[Channel] = []
    if booking.mail is not None:
        channels.append(MailChannel(booking.mail, booking.zone, environment, portal))
    channels += [WebhookChannel(hook, environment) for hook in booking.webhooks]
    names = [channel.name for channel in channels]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is in the site file twice, and would be told only once; leave one out")
    return channels


def _loop(courier: Courier, channel: Channel, period: float) -> Loop:
    return Loop(
        f"messages to {channel.name}", "Tells people or programs what happens to bookings.", period, courier.run
    )


class Courier:
    """Delivers the events of one channel."""

    def __init__(
        self,
        ledger: Ledger,
        channel: Channel,
        site: str,
        now: Callable[[], datetime],
        outcome_counts: Counts | None = None,
    ) -> None:
        """`outcome_counts` counts (channel, one of OUTCOMES)."""
        self._outcome_counts = outcome_counts or Counts()
        self._ledger, self._outbox = ledger, ledger.upkeep.outbox
        self._channel = channel
        self._site = site
        self._now = now
        self._behind: dict[str, tuple[int, datetime]] = {}
        """Subject -> event that must be delivered first, and when it is tried again."""
        self._down = 0
        """Number of times that the whole channel was found down, since it last worked."""
        self._rest_until: datetime | None = None

    def run(self) -> None:
        """Deliver what is due. Raises StoreError; errors of receivers are logged, and tried again."""
        now = self._now()
        if self._rest_until is not None and now < self._rest_until <= now + LONGEST_PAUSE:  # or the clock went back
            return
        while True:
            due = self._outbox.take_undelivered(self._channel.name, self._now(), self._channel.batch)
            for delivery in due:
                if not self._channel.wants(delivery.event):
                    self._outbox.mark_delivered(self._channel.name, delivery.event.id, self._now())
            deliveries = [delivery for delivery in due if self._channel.wants(delivery.event)]
            if deliveries and not self._tell(deliveries):
                return
            if len(due) < self._channel.batch:
                return

    def _tell(self, deliveries: Sequence[Delivery]) -> bool:
        """Return whether the channel works."""
        untold = list(deliveries)
        try:
            with self._channel.open() as send:
                while untold:
                    self._try(untold[0], send)
                    untold.pop(0)
        except ChannelDownError as error:
            rest = pause(self._down)
            self._down, self._rest_until = self._down + 1, self._now() + rest
            LOG.warning("%s: %s; trying again in %d s", self._channel.name, error, rest.total_seconds())
            for delivery in untold:  # at once, for the channel rests as a whole: so their order stays
                self._put_off(delivery, self._now(), str(error))
            return False
        self._down, self._rest_until = 0, None
        return True

    def _try(self, delivery: Delivery, send: Callable[[Message], None]) -> None:
        """Tell one, unless another one about the same has to be told before."""
        about = subject(delivery.event)
        first, retry = self._behind.get(about, (delivery.event.id, self._now()))
        if first < delivery.event.id and retry > self._now():
            self._put_off(delivery, retry, "an earlier event of the same booking could not be told")
            return
        self._behind.pop(about, None)
        try:
            send(self._message(delivery.event))
        except NeverError as error:
            self._give_up(delivery, str(error))
        except NotNowError as error:
            LOG.warning("%s: event %d: %s", self._channel.name, delivery.event.id, error)
            retry = self._now() + pause(delivery.attempts)
            if self._put_off(delivery, retry, str(error)):
                self._behind[about] = (delivery.event.id, retry)
        else:
            self._outbox.mark_delivered(self._channel.name, delivery.event.id, self._now())
            self._outcome_counts.add(self._channel.name, "told")

    def _put_off(self, delivery: Delivery, retry: datetime, why: str) -> bool:
        """Return whether it will be tried again."""
        patience = self._channel.patience
        if patience is not None and self._now() - delivery.event.at > patience:
            self._give_up(delivery, why)
            return False
        self._outbox.put_off(self._channel.name, delivery.event.id, retry)
        self._outcome_counts.add(self._channel.name, "put_off")
        return True

    def _give_up(self, delivery: Delivery, why: str) -> None:
        LOG.warning("%s: event %d is given up: %s", self._channel.name, delivery.event.id, why)
        text = f"{delivery.event.kind} could not be told by {self._channel.name}: {why}"
        target = delivery.event.booking or delivery.event.user_id
        self._ledger.upkeep.records.write_audit(AuditEntry(self._now(), GPUYARD, "message.given_up", target, "", text))
        self._outbox.put_off(self._channel.name, delivery.event.id, None)
        self._outcome_counts.add(self._channel.name, "given_up")

    def _message(self, event: Event) -> Message:
        try:
            booking = self._ledger.get(event.booking)
        except NoBookingError:
            return Message(event, self._site)
        names = {lane.id: lane.name for lane in self._ledger.lanes(booking.ask.pool)}
        return Message(event, self._site, booking, tuple(names[id] for id in booking.lanes if id in names))


def subject(event: Event) -> str:
    """Return what an event is about: events about the same are delivered in their order."""
    return event.booking or event.details.get("server_id") or event.user_id


def pause(attempts: int) -> timedelta:
    """Return how long to wait after so many vain attempts and one more: 10 s, 20 s, 40 s ... one hour."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(attempts, 12)))
