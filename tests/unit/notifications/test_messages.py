"""Events reach people and programs: a real ledger and database, a real SMTP server and a real HTTP receiver."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpuyard.bookings.controllers.channel import GIVE_UP, Channel, ChannelDownError, Message, NotNowError
from gpuyard.bookings.ledger.ledger import BookingSettings, Ledger
from gpuyard.bookings.records import Event
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Person, Rules
from gpuyard.model.errors import UsageError
from gpuyard.model.events import EVENTS
from gpuyard.notifications.delivery import LONGEST_PAUSE, Courier, channels_of, message_loops, pause
from gpuyard.notifications.mail import MailChannel, letter, spell
from gpuyard.notifications.webhooks import WebhookChannel, signature
from gpuyard.site.booking_rules import Mail, SiteBooking, Webhook
from gpuyard.site.load import load_site
from gpuyard.site.schema import Site
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.certificates import certificate
from tests.support.ledgers import write_event

ROME = ZoneInfo("Europe/Rome")
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
ANNA = Person("u1", "anna", "p1", "physics", frozenset({"member"}), "anna@example.org")
SECRET = {"GPUYARD_WEBHOOK_SECRET": "s3cret"}


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    store = Store.open(f"sqlite:///{tmp_path}/ledger.db")
    store.sync_lanes([("t4", "gpu-01", (f"0000:{number:02x}:00.0",)) for number in range(1, 5)])
    ids = iter(f"b{number}" for number in range(1000))
    rules = Rules(most_active=100)
    yield Ledger(store, BookingSettings(["t4"], lambda pool, project: rules, "Europe/Rome"), clock, lambda: next(ids))
    store.close()


def book(ledger: Ledger, who: Person = ANNA, comment: str = "") -> Booking:
    start = ledger.now() + HOUR
    return ledger.create(Ask("t4", start, start + 4 * HOUR, comment=comment), who)[0]


# Receivers


@dataclass
class Receiver:
    """An HTTP server that keeps what it gets, and answers what it is told to."""

    statuses: list[int] = field(default_factory=list)
    """Of the next answers; 204 when there are none left."""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)
    """Ids of bookings for which the answer is 500."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def told(self) -> list[tuple[str, str]]:
        """(booking, kind) of every request, in order."""
        return [(json.loads(body)["booking"]["id"], json.loads(body)["kind"]) for _, body in self.got]

    @property
    def ids(self) -> list[str]:
        return [headers["X-Gpuyard-Delivery"] for headers, _ in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    endpoint = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            endpoint.got.append((dict(self.headers), body))
            status = endpoint.statuses.pop(0) if endpoint.statuses else 204
            booking = json.loads(body)["booking"]
            self.send_response(500 if booking and booking["id"] in endpoint.refuse else status)
            if 300 <= status < 400:
                self.send_header("Location", f"{endpoint.url}/elsewhere")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield endpoint
    server.shutdown()
    thread.join()
    server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Mailbox:
    """Keeps mail; refuses receivers as it is told to."""

    def __init__(self) -> None:
        self.mail: list[EmailMessage] = []
        self.users: list[bytes | None] = []
        self.refuse: dict[str, str] = {}

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: Any, session: Any, envelope: Envelope, address: str, options: Any
    ) -> str:
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: Any, session: Any, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mail.append(mail)
        self.users.append(session.auth_data.login if session.auth_data else None)
        return "250 OK"


class Port(Controller):
    """aiosmtpd on a free port."""


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    controller = Port(box, hostname="127.0.0.1", port=free_port())
    controller.start()
    yield box, controller.port
    controller.stop()


def mail_channel(port: int, **more: Any) -> MailChannel:
    return MailChannel(Mail(host="127.0.0.1", port=port, sender="gpus@example.org", **more), ROME, {}, "https://gpus")


def hook_to(url: str, *events: str) -> Webhook:
    return Webhook.model_validate({"url": url, "events": [*events]})


def webhook(receiver: Receiver, *events: str) -> WebhookChannel:
    return WebhookChannel(hook_to(receiver.url, *events), SECRET)


def courier(ledger: Ledger, channel: Channel) -> Courier:
    """Of a channel that is there from now on."""
    channel_courier = Courier(ledger, channel, "lab", ledger.now)
    channel_courier.run()
    return channel_courier


# Webhooks


def test_a_webhook_gets_a_signed_document(ledger: Ledger, receiver: Receiver) -> None:
    carry = courier(ledger, webhook(receiver))
    made = book(ledger, comment="thesis")
    carry.run()
    [(headers, body)] = receiver.got
    assert headers["X-Gpuyard-Event"] == "gpu.booking.confirmed"
    assert headers["Content-Type"] == "application/json"
    expected = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    assert headers["X-Gpuyard-Signature-256"] == f"sha256={expected}" == signature(b"s3cret", body)
    document = json.loads(body)
    assert headers["X-Gpuyard-Delivery"] == str(document["id"])
    assert (document["kind"], document["at"], document["site"]) == (
        "gpu.booking.confirmed",
        "2026-12-01T12:00:00Z",
        "lab",
    )
    booking = document["booking"]
    assert (booking["id"], booking["user"], booking["pool"], booking["comment"]) == (made.id, "anna", "t4", "thesis")
    assert (booking["start"], booking["end"]) == ("2026-12-01T13:00:00Z", "2026-12-01T17:00:00Z")
    assert booking["gpu_names"] == [{lane.id: lane.name for lane in ledger.lanes()}[made.lanes[0]]]
    carry.run()
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 410, 500, 503])
def test_only_2xx_is_told(ledger: Ledger, receiver: Receiver, clock: Clock, status: int) -> None:
    carry = courier(ledger, webhook(receiver))
    book(ledger)
    receiver.statuses = [status]
    carry.run()
    carry.run()
    assert len(receiver.got) == 1, "no redirect is followed, and it is not tried again at once"
    clock.time += pause(0)
    carry.run()
    assert receiver.ids[0] == receiver.ids[1]
    assert len(receiver.got) == 2
    clock.time += HOUR
    carry.run()
    assert len(receiver.got) == 2


def test_later_events_of_a_booking_wait_for_earlier_ones_and_others_do_not(
    ledger: Ledger, receiver: Receiver, clock: Clock
) -> None:
    carry = courier(ledger, webhook(receiver))
    first, second = book(ledger), book(ledger)
    receiver.refuse = {first.id}
    carry.run()
    ledger.cancel(first.id, ANNA)
    ledger.cancel(second.id, ANNA)
    carry.run()
    confirmed, cancelled = "gpu.booking.confirmed", "gpu.booking.cancelled"
    assert receiver.told == [(first.id, confirmed), (second.id, confirmed), (second.id, cancelled)]
    receiver.refuse = set()
    clock.time += HOUR
    carry.run()
    assert receiver.told[3:] == [(first.id, confirmed), (first.id, cancelled)]


def test_a_dead_receiver_keeps_the_order_and_holds_up_no_other(
    ledger: Ledger, receiver: Receiver, clock: Clock
) -> None:
    hook = hook_to(f"http://127.0.0.1:{free_port()}/")
    dead, alive = courier(ledger, WebhookChannel(hook, SECRET)), courier(ledger, webhook(receiver))
    made = book(ledger)
    dead.run()
    ledger.cancel(made.id, ANNA)
    dead.run()
    alive.run()
    assert [kind for _, kind in receiver.told] == ["gpu.booking.confirmed", "gpu.booking.cancelled"]
    # It comes back at the same address, and all is told, in order.
    dead._channel._url = receiver.url  # type: ignore[attr-defined]
    clock.time += pause(3)
    dead.run()
    assert [kind for _, kind in receiver.told[2:]] == ["gpu.booking.confirmed", "gpu.booking.cancelled"]


@contextmanager
def trickling() -> Iterator[str]:
    """The address of a receiver that answers one byte at a time, and never ends."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            over.set()
            thread.join()


def test_a_receiver_that_answers_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.notifications.webhooks.TIMEOUT", 0.5)
    message = Message(Event("booking.started", NOW, "", "u"), "lab")
    with (
        trickling() as url,
        WebhookChannel(hook_to(url), SECRET).open() as send,
        pytest.raises(ChannelDownError, match="no whole answer"),
    ):
        send(message)


GREETING, TAKEN, GO_ON = b"220 mail\r\n", b"250 OK\r\n", b"354 go on\r\n"
SLOW_PARTS = {
    "greeting": (),
    "hello": (GREETING,),
    "sender": (GREETING, TAKEN),
    "letter": (GREETING, TAKEN, TAKEN, TAKEN, GO_ON),
}
"""What is slow -> what the server answers before that at once (RFC 5321, 4.3.2: greeting, EHLO, MAIL, RCPT, DATA)."""


@contextmanager
def trickling_mail_server(answers: tuple[bytes, ...], slow: bytes) -> Iterator[int]:
    """The port of a mail server that sends `slow` again and again, one byte at a time, after these answers."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                for position, each in enumerate(answers):
                    if position:
                        connection.recv(1 << 16)
                    connection.sendall(each)
                while not over.is_set():
                    for byte in slow:
                        connection.sendall(bytes([byte]))
                        over.wait(0.05)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("slow", [b"2", b"250-more\r\n"], ids=["a line", "lines"])
@pytest.mark.parametrize("part", SLOW_PARTS)
def test_a_mail_server_that_answers_byte_by_byte_is_cut_off(part: str, slow: bytes) -> None:
    message = Message(Event("booking.started", NOW, "", "u", email="ada@example.org"), "lab")
    with trickling_mail_server(SLOW_PARTS[part], slow) as port:
        settings = Mail(host="127.0.0.1", port=port, sender="gpus@example.org")
        channel = MailChannel(settings, ROME, {}, total=0.5)
        began = monotonic()
        with pytest.raises(ChannelDownError, match=r"not done with a session in 0\.5 s"), channel.open() as send:
            send(message)
        assert monotonic() - began < 5


def test_what_was_sent_and_not_marked_is_sent_again_with_the_same_id(
    ledger: Ledger, receiver: Receiver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process is killed between the two."""
    carry = courier(ledger, webhook(receiver))
    book(ledger)

    class Killed(BaseException):
        pass

    def killed(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ledger._store, "mark_delivered", killed)
        with pytest.raises(Killed):
            carry.run()
    again = Courier(ledger, webhook(receiver), "lab", clock)
    again.run()
    assert len(receiver.got) == 1, "it may still be another process's"
    clock.time += timedelta(seconds=61)
    again.run()
    assert len(receiver.got) == 2
    assert len(set(receiver.ids)) == 1


def test_a_webhook_gets_only_what_it_wants(ledger: Ledger, receiver: Receiver) -> None:
    carry = courier(ledger, webhook(receiver, "booking.cancelled"))
    ledger.cancel(book(ledger).id, ANNA)
    carry.run()
    assert [kind for _, kind in receiver.told] == ["gpu.booking.cancelled"]


def test_what_cannot_be_told_for_a_week_is_given_up_and_written_down(
    ledger: Ledger, receiver: Receiver, clock: Clock
) -> None:
    carry = courier(ledger, webhook(receiver))
    made = book(ledger)
    receiver.refuse = {made.id}
    clock.time += GIVE_UP + HOUR
    carry.run()
    clock.time += GIVE_UP
    carry.run()
    assert len(receiver.got) == 1
    entry = ledger.audit()[0]
    assert (entry.action, entry.target) == ("message.given_up", made.id)
    assert "500" in entry.text
    assert "/hook" not in entry.text, "the address may be a secret"


def test_what_happened_before_a_channel_was_there_is_not_told(ledger: Ledger, receiver: Receiver) -> None:
    book(ledger)
    courier(ledger, webhook(receiver)).run()
    assert receiver.got == []


def test_an_event_without_a_booking_is_told(ledger: Ledger, receiver: Receiver) -> None:
    carry = courier(ledger, webhook(receiver))
    write_event(ledger._store, Event("reclaim.warned", NOW, "", "u1", details={"server_id": "s1", "server": "vm"}))
    carry.run()
    document = json.loads(receiver.got[0][1])
    assert (document["booking"], document["details"]["server"]) == (None, "vm")


def test_a_webhook_without_a_key_is_refused() -> None:
    hook = Webhook.model_validate({"url": "https://chat.example.org/T0/secret", "secret_variable": "CHAT_KEY"})
    with pytest.raises(UsageError, match="has no CHAT_KEY") as refused:
        WebhookChannel(hook, SECRET)
    assert "T0/secret" not in str(refused.value)


@given(st.integers(0, 10**6))
def test_pauses_grow_to_an_hour(attempts: int) -> None:
    assert pause(0) <= pause(attempts) <= pause(attempts + 1) <= LONGEST_PAUSE == HOUR


class Scripted:
    """A channel that does what it is told to, for orders of things that no real receiver makes on demand."""

    name, batch = "scripted", 3
    patience: timedelta | None = GIVE_UP

    def __init__(self) -> None:
        self.script: list[str] = []
        self.told: list[tuple[str, int]] = []
        """(subject, event) of each message that was taken."""
        self.tried: list[int] = []

    def wants(self, event: Event) -> bool:
        return True

    @contextmanager
    def open(self) -> Iterator[Callable[[Message], None]]:
        yield self._send

    def _send(self, message: Message) -> None:
        what = self.script.pop(0) if self.script else "ok"
        self.tried.append(message.event.id)
        if what == "not now":
            raise NotNowError(what)
        if what == "down":
            raise ChannelDownError(what)
        self.told.append((message.event.user_id, message.event.id))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4000)), min_size=1, max_size=15),
    script=st.lists(st.sampled_from(["ok", "not now", "down"]), max_size=30),
)
def test_everything_is_told_once_and_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], script: list[str]
) -> None:
    clock = Clock()
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('order')}/ledger.db")
    store.sync_lanes([("t4", "gpu-1", ("0000:18:00.0",))])
    ledger = Ledger(store, BookingSettings([], lambda pool, project: Rules(), "UTC"), clock, lambda: "id")
    channel = Scripted()
    carry = courier(ledger, channel)
    channel.script = list(script)
    for subject, seconds in steps:
        write_event(store, Event("reclaim.warned", clock(), "", subject))
        carry.run()
        clock.time += timedelta(seconds=seconds)
    for _ in range(len(steps) * 35):
        if len(channel.told) == len(steps):
            break
        carry.run()
        clock.time += LONGEST_PAUSE / 4
    store.close()
    assert sorted(id for _, id in channel.told) == list(range(1, len(steps) + 1))
    for subject in "abc":
        ids = [id for who, id in channel.told if who == subject]
        assert ids == sorted(ids)


def test_after_a_rest_of_the_channel_what_was_tried_often_still_comes_first(ledger: Ledger, clock: Clock) -> None:
    channel = Scripted()
    carry = courier(ledger, channel)
    channel.script = ["not now"] * 4 + ["down"]
    write_event(ledger._store, Event("reclaim.warned", clock(), "", "a"))
    for attempts in range(4):
        carry.run()
        clock.time += pause(attempts)
    carry.run()
    assert channel.script == []
    clock.time += pause(0)
    write_event(ledger._store, Event("reclaim.done", clock(), "", "a"))
    carry.run()
    assert channel.told == [("a", 1), ("a", 2)]


# Mail


def test_the_owner_gets_a_mail(ledger: Ledger, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    carry = courier(ledger, mail_channel(port))
    made = book(ledger, comment="my\nthesis")
    carry.run()
    [mail] = box.mail
    assert mail["To"] == "anna@example.org"
    assert mail["From"].addresses[0].addr_spec == "gpus@example.org"
    assert mail["Subject"] == "GPU booking 1 x t4 from Tue 2026-12-01 14:00 is confirmed"
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content()
    assert "From:      Tue 2026-12-01 14:00 CET (13:00 UTC)" in text
    assert "To:        Tue 2026-12-01 18:00 CET (17:00 UTC)" in text
    assert f"Booking:   {made.id}" in text
    assert "Comment:   my thesis" in text
    assert "https://gpus/calendar" in text


def test_who_has_no_address_gets_no_mail_and_holds_up_nobody(ledger: Ledger, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    carry = courier(ledger, mail_channel(port))
    book(ledger, Person("u2", "bob", "p1", "physics", frozenset({"member"})))
    book(ledger)
    carry.run()
    assert [mail["To"] for mail in box.mail] == ["anna@example.org"]
    assert ledger._store.take_undelivered("mail", NOW + GIVE_UP) == []


@pytest.mark.parametrize(
    "email", ["no address", "anna@example.org\nBcc: all@example.org", "@", "anna@", "ännä@example.org"]
)
def test_an_address_that_is_none_holds_up_nobody(ledger: Ledger, mailbox: tuple[Mailbox, int], email: str) -> None:
    box, port = mailbox
    carry = courier(ledger, mail_channel(port))
    made = book(ledger, Person("u2", "bob", "p1", "physics", frozenset({"member"}), email))
    book(ledger)
    carry.run()
    assert [mail["To"] for mail in box.mail] == ["anna@example.org"]
    assert ledger.audit()[0].target == made.id


def test_a_receiver_that_is_refused_for_good_is_given_up(
    ledger: Ledger, mailbox: tuple[Mailbox, int], clock: Clock
) -> None:
    box, port = mailbox
    carry = courier(ledger, mail_channel(port))
    box.refuse = {"anna@example.org": "550 no such user"}
    book(ledger)
    carry.run()
    assert "550 no such user" in ledger.audit()[0].text
    box.refuse = {}
    clock.time += HOUR
    carry.run()
    assert box.mail == []


def test_a_receiver_that_is_refused_for_now_is_tried_again(
    ledger: Ledger, mailbox: tuple[Mailbox, int], clock: Clock
) -> None:
    box, port = mailbox
    carry = courier(ledger, mail_channel(port))
    box.refuse = {"anna@example.org": "451 try later"}
    book(ledger)
    carry.run()
    box.refuse = {}
    clock.time += pause(0)
    carry.run()
    assert len(box.mail) == 1


def test_a_mail_server_that_is_down_is_tried_later(ledger: Ledger, clock: Clock) -> None:
    port = free_port()
    carry = courier(ledger, mail_channel(port))
    book(ledger)
    carry.run()
    box = Mailbox()
    controller = Port(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        carry.run()
        assert box.mail == [], "not at once"
        clock.time += pause(0)
        carry.run()
    finally:
        controller.stop()
    assert len(box.mail) == 1


@pytest.mark.parametrize(("word", "trusted"), [("right", True), ("wrong", True), ("right", False)])
def test_a_password_goes_through_tls_only(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, trusted: bool
) -> None:
    tried: list[str] = []

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        tried.append(data.password.decode())
        right = data.password == b"right"
        return AuthResult(success=right, handled=right, auth_data=data)

    box = Mailbox()
    controller = Port(
        box,
        hostname="localhost",
        port=free_port(),
        tls_context=certificate(tmp_path).context(),
        require_starttls=True,
        authenticator=check,
        auth_required=True,
        auth_exclude_mechanism=["LOGIN"],
    )
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    settings = Mail(host="localhost", port=controller.port, sender="gpus@example.org", user="gpus", starttls=True)
    carry = courier(ledger, MailChannel(settings, ROME, {"GPUYARD_SMTP_PASSWORD": word}))
    book(ledger)
    controller.start()
    try:
        carry.run()
    finally:
        controller.stop()
    assert box.users == ([b"gpus"] if word == "right" and trusted else [])
    assert tried == ([word] if trusted else [])


def test_settings_that_would_show_the_password_or_not_work_are_refused() -> None:
    with pytest.raises(UsageError, match="GPUYARD_SMTP_PASSWORD"):
        MailChannel(Mail(host="mail", sender="a@b", user="gpus", starttls=True), ROME, {})
    with pytest.raises(ValidationError, match="unencrypted"):
        Mail(host="mail", sender="a@b", user="gpus")


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_has_a_letter(kind: str) -> None:
    ask = Ask("t4", NOW, NOW + HOUR, comment="{braces} are no fields")
    offered = Booking("b1", BookingKind.BOOKING, ask, BookingState.OFFERED, "u", "anna", "p", "physics", NOW, NOW)
    event = Event(kind, NOW, "b1", "u", "anna@example.org", {"gpu": "gpu-01/0000:01:00.0"}, 7)
    for booking in (offered, None):
        mail = letter(Message(event, "lab", booking), "gpus@example.org", ROME)
        assert mail["Subject"]
        assert EVENTS[kind].says in mail.get_content()
        assert EVENTS[kind].subject in mail["Subject"]
        assert mail["Message-ID"] == "<gpuyard.lab.7@example.org>"


@given(st.text() | st.from_regex(r"[^@]*@[^@]*"))
def test_whatever_keystone_has_as_an_address_is_one_or_a_value_error(email: str) -> None:
    try:
        mail = letter(Message(Event("booking.started", NOW, "", "u", email), "lab"), "gpus@example.org", ROME)
    except ValueError:
        return
    assert len(mail["To"].addresses) == 1
    assert mail.as_bytes()


def test_times_name_the_day_in_utc_when_it_is_another() -> None:
    assert (
        spell(datetime(2026, 12, 1, 23, 30, tzinfo=UTC), ROME) == "Wed 2026-12-02 00:30 CET (Tue 2026-12-01 23:30 UTC)"
    )
    assert spell(NOW, ZoneInfo("UTC")) == "Tue 2026-12-01 12:00 UTC"


@pytest.mark.parametrize("dry", [True, False])
def test_a_warning_says_which_server_why_and_when(dry: bool) -> None:
    details = {"server": "vm-1", "server_id": "s1", "pool": "t4", "why": "its booking is over", "text": "shelve it"}
    details |= {"due": "2026-12-01T13:00:00+00:00"} | ({"dry_run": "true"} if dry else {})
    event = Event("reclaim.warned", NOW, "", "u1", "anna@example.org", details)
    mail = letter(Message(event, "lab"), "gpus@example.org", ROME)
    assert mail["Subject"] == ("Dry run: " if dry else "") + "A server of yours will be reclaimed: vm-1"
    text = mail.get_content()
    assert "Server:    vm-1\n" in text
    assert "When:      Tue 2026-12-01 14:00 CET (13:00 UTC)\n" in text
    assert ("nothing happens to the server" in text) is dry


# Channels of a site


def site(**booking: Any) -> Site:
    return load_site(EXAMPLE_SITE).site.model_copy(update={"booking": SiteBooking.model_validate(booking)})


def test_a_site_has_the_channels_that_it_names(ledger: Ledger, clock: Clock) -> None:
    mail = {"host": "mail.example.org", "sender": "gpus@example.org"}
    hooks = [{"url": "https://one.example.org/a"}, {"url": "https://one.example.org/b"}]
    loops = message_loops(ledger, site(mail=mail, webhooks=hooks), SECRET, clock)
    names = [loop.status.name for loop in loops]
    assert names[0] == "messages to mail"
    assert len(set(names)) == 3
    assert not any("/a" in name for name in names), "addresses may be secrets"
    assert message_loops(ledger, site(), {}, clock) == []


def test_a_webhook_with_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"no event 'booking\.startet'; did you mean 'booking\.started'"):
        site(webhooks=[{"url": "https://a.example.org", "events": ["booking.startet"]}])


def test_a_webhook_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        channels_of(site(webhooks=[{"url": "https://a.example.org"}, {"url": "https://a.example.org"}]), SECRET)


def test_a_loop_tells(ledger: Ledger, receiver: Receiver, clock: Clock) -> None:
    [loop] = message_loops(ledger, site(webhooks=[{"url": receiver.url}]), SECRET, clock)
    assert loop.run_once("test")
    book(ledger)
    assert loop.run_once("test")
    assert len(receiver.got) == 1
