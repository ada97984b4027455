"""Mails events to the people whom they concern: what happened, when, and what to do about it.

All mails of a batch go through one SMTP session, which a second thread cuts when its time is over. An answer of the
server that refuses a receiver or a message for good (5xx) gives the message up; one that refuses it for now puts it
off; an error of the connection puts off the whole channel.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.bookings.controllers.channel import GIVE_UP, ChannelDownError, Message, NeverError, NotNowError
from gpuyard.bookings.records import Event
from gpuyard.model.booking import Booking
from gpuyard.model.errors import UsageError
from gpuyard.model.events import event_kind
from gpuyard.site.booking_rules import SMTPS, Mail

PASSWORD = "GPUYARD_SMTP_PASSWORD"  # noqa: S105 - the name of a variable
TIMEOUT = 10
"""Seconds for each piece of an answer of the server."""
TOTAL = 40.0
"""Seconds for all of one session, from the greeting to the last of a batch: a server that sends a byte now and then
would otherwise keep the loop for ever. The store keeps a batch for one process for a minute."""

DETAILS = {
    "by": "By",
    "gpu": "GPU",
    "trouble": "Trouble",
    "server": "Server",
    "server_id": "Id",
    "project": "Project",
    "pool": "Pool",
    "why": "Why",
    "text": "What",
    "due": "When",
    "next": "Next",
    "give_back": "Then",
    "report": "Tell us",
}
"""Details of events that a mail shows, with their labels. The others are in the booking already."""


class MailChannel:
    """The channel of one SMTP server; the receivers are in the events."""

    name = "mail"
    batch = 10
    """Mails in one session, which has TOTAL."""
    patience: timedelta | None = GIVE_UP

    def __init__(
        self, mail: Mail, zone: ZoneInfo, environment: Mapping[str, str], portal: str = "", total: float = TOTAL
    ) -> None:
        """`total`: seconds for all of one session. Raises UsageError for settings that would not work, or would show
        the password to others."""
        self._mail, self._zone, self._portal, self._total = mail, zone, portal.rstrip("/"), total
        self._password = environment.get(PASSWORD, "")
        if mail.user and not self._password:
            raise UsageError(f"booking.mail has a user, and the environment has no password for it: set {PASSWORD}")

    def wants(self, event: Event) -> bool:
        return bool(event.email)

    @contextmanager
    def open(self) -> Iterator[Callable[[Message], None]]:
        with _Deadline(self._total) as deadline:
            try:
                server = self._connect(deadline)
            except (OSError, smtplib.SMTPException) as error:
                why = deadline.reason or _said(error)
                raise ChannelDownError(f"{self._mail.host}:{self._mail.port}: {why}") from None
            try:
                yield lambda message: self._send(server, deadline, message)
            finally:
                try:
                    server.quit()
                except (OSError, smtplib.SMTPException):
                    server.close()

    def _connect(self, deadline: _Deadline) -> smtplib.SMTP:
        mail = self._mail
        server: smtplib.SMTP
        if mail.port == SMTPS:
            context = ssl.create_default_context()
            server = _TlsSession(mail.host, mail.port, timeout=TIMEOUT, context=context, deadline=deadline)
        else:
            server = _Session(mail.host, mail.port, timeout=TIMEOUT, deadline=deadline)
        try:
            if mail.starttls:
                server.starttls(context=ssl.create_default_context())
            if mail.user:
                server.login(mail.user, self._password)
        except BaseException:
            server.close()
            raise
        return server

    def _send(self, server: smtplib.SMTP, deadline: _Deadline, message: Message) -> None:
        try:
            server.send_message(letter(message, self._mail.sender, self._zone, self._portal))
        except (ValueError, smtplib.SMTPNotSupportedError) as error:  # no address, or one that the server cannot do
            raise NeverError(f"{message.event.email!r}: {error}") from None
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = next(iter(error.recipients.values()))
            kind = NeverError if code >= 500 else NotNowError
            raise kind(f"{message.event.email}: {code} {_text(reply)}") from None
        except smtplib.SMTPDataError as error:
            kind = NeverError if error.smtp_code >= 500 else NotNowError
            raise kind(f"{message.event.email}: {_said(error)}") from None
        except (OSError, smtplib.SMTPException) as error:
            raise ChannelDownError(deadline.reason or _said(error)) from None


class _Deadline:
    """Cuts the connection of a session from another thread when its time is over: a timeout of the socket begins anew
    with each byte."""

    def __init__(self, seconds: float) -> None:
        self.reason = ""
        self._seconds = seconds
        self._session: smtplib.SMTP | None = None
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def watch(self, session: smtplib.SMTP) -> None:
        """The session that is cut. It may not be connected yet."""
        self._session = session

    def check(self) -> None:
        """Raises SMTPServerDisconnected when the time is over: what was read last may be half of an answer."""
        if self.reason:
            raise smtplib.SMTPServerDisconnected(self.reason)

    def _cut(self) -> None:
        self.reason = f"the server was not done with a session in {self._seconds:g} s"
        connection = getattr(self._session, "sock", None)
        if isinstance(connection, socket.socket):
            with suppress(OSError):
                # Not SSLSocket's own, which takes the encryption away under the thread that reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Session(smtplib.SMTP):
    """Ends with its deadline, in the constructor, too, which waits for the greeting."""

    def __init__(self, *where: Any, deadline: _Deadline, **how: Any) -> None:
        self._deadline = deadline
        deadline.watch(self)
        try:
            super().__init__(*where, **how)
        except BaseException:
            self.close()
            raise

    def getreply(self) -> tuple[int, bytes]:
        """As smtplib has it, within the session's time."""
        self._deadline.check()  # the connection was made when it was over already
        reply = super().getreply()
        self._deadline.check()
        return reply


class _TlsSession(_Session, smtplib.SMTP_SSL):
    """With TLS from the first byte."""


def letter(message: Message, sender: str, zone: ZoneInfo, portal: str = "") -> EmailMessage:
    """Return the mail for an event. Raises ValueError for an address that is none."""
    event = message.event
    mail = EmailMessage()
    mail["Subject"] = " ".join(subject_of(message, zone).split())
    mail["From"] = Address(f"GPUs of {message.site}", addr_spec=sender)
    mail["To"] = _address(event.email)
    mail["Date"] = format_datetime(event.at.astimezone(UTC))
    # The same when it is sent twice, so that mail programs can tell.
    mail["Message-ID"] = f"<gpuyard.{message.site}.{event.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join(body_of(message, zone, portal)) + "\n")
    return mail


def _address(text: str) -> Address:
    """Raises ValueError. The parser has other errors too for what is none, and takes some of that."""
    try:
        address = Address(addr_spec=text)
    except (ValueError, LookupError, MessageError):
        address = Address()
    if not address.username or not address.domain or any(sign.isspace() or not sign.isprintable() for sign in text):
        raise ValueError("this is no address of a mailbox")
    return address


def subject_of(message: Message, zone: ZoneInfo) -> str:
    subject = event_kind(message.event.kind).subject
    booking = message.booking
    if booking is None or not message.event.kind.startswith("booking."):
        dry = "Dry run: " if message.event.details.get("dry_run") else ""
        details = message.event.details
        about = details.get("server") or details.get("project") or details.get("month", "")
        return f"{dry}{subject}{f': {about}' if about else ''}"
    start = booking.ask.start.astimezone(zone)
    return f"GPU booking {booking.ask.gpus} x {booking.ask.pool} from {start:%a %Y-%m-%d %H:%M} {subject}"


def body_of(message: Message, zone: ZoneInfo, portal: str = "") -> Iterator[str]:
    """Yield the lines of the mail."""
    event, booking = message.event, message.booking
    yield event_kind(event.kind).says
    if why := event.details.get("reason") or (booking.reason if booking else ""):
        yield f"Why: {why}"
    yield ""
    if booking:
        yield from _facts(booking, message.gpus, zone)
    yield from _details(event, zone)
    if to_do := event_kind(event.kind).to_do:
        until = booking.offer_until if booking else None
        words = {"id": booking.id if booking else "", "offer_until": spell(until, zone) if until else "the offer ends"}
        yield from ("", to_do.format(**words))
    if portal:
        yield from ("", f"All bookings: {portal}/calendar")
    yield from ("", f"This mail was sent by gpuyard, which books the GPUs of {message.site}.")


def _facts(booking: Booking, gpus: tuple[str, ...], zone: ZoneInfo) -> Iterator[str]:
    ask = booking.ask
    yield f"Booking:   {booking.id}"
    yield f"GPUs:      {ask.gpus} of pool {ask.pool}{f' ({chr(44).join(gpus)})' if gpus else ''}"
    yield f"From:      {spell(ask.start, zone)}"
    yield f"To:        {spell(ask.end, zone)}"
    yield f"Project:   {booking.project}"
    if ask.comment:
        yield f"Comment:   {' '.join(ask.comment.split())}"


def _details(event: Event, zone: ZoneInfo) -> Iterator[str]:
    """What an event says besides its booking."""
    for name, label in DETAILS.items():
        if value := event.details.get(name):
            yield f"{label + ':':<10} {spell(datetime.fromisoformat(value), zone) if name == 'due' else value}"
    if event.details.get("dry_run"):
        yield "This is a dry run: nothing happens to the server."


def spell(moment: datetime, zone: ZoneInfo) -> str:
    """Return a moment in local time: ``Tue 2026-12-01 14:00 CET (13:00 UTC)``; with the day in UTC when that is another
    one."""
    local, utc = moment.astimezone(zone), moment.astimezone(UTC)
    text = f"{local:%a %Y-%m-%d %H:%M} {local.tzname()}"
    if local.utcoffset() == utc.utcoffset():
        return f"{utc:%a %Y-%m-%d %H:%M} UTC"
    return f"{text} ({utc:%H:%M} UTC)" if local.date() == utc.date() else f"{text} ({utc:%a %Y-%m-%d %H:%M} UTC)"


def _said(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{error.smtp_code} {_text(error.smtp_error)}"
    return str(error) or type(error).__name__


def _text(reply: bytes | str) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
