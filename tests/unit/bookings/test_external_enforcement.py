"""A service outside that has a say in bookings: over real HTTP, honest and hostile, and with us killed in between."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gpuyard.bookings.controllers.blazar_documents import LeaseWords
from gpuyard.bookings.controllers.channel import Channel
from gpuyard.bookings.controllers.enforcement_client import EnforcementClient, OutageError
from gpuyard.bookings.controllers.enforcement_service import (
    IN_THE_MIDDLE,
    MEMORY,
    EnforcementChannel,
    EnforcementService,
    open_enforcement,
)
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.model.booking import Ask, Booking, BookingState, Person
from gpuyard.model.errors import UsageError
from gpuyard.notifications.delivery import LONGEST_PAUSE, Courier
from gpuyard.site.accounting_rules import ExternalEnforcement
from tests.support.credits import TOKEN, Credits
from tests.support.ledgers import ROOT, Clock, ask, open_ledger
from tests.support.scripted_http import Asked, ScriptedAnswer, ScriptedHttp, scripted_http
from tests.support.sites import flavor, site

PROJECT, CLASS = "a0b86a98b0d343cb948e00689182efd4", "CUSTOM_GPU_V100"
ADA = Person("c631173edec04bb7a0c3f7711153c06c", "ada", PROJECT, "physics", frozenset({"member"}), "ada@example.org")
YES = ScriptedAnswer(204)


def no(document: Any = None, status: int = 403) -> ScriptedAnswer:
    return ScriptedAnswer(status, {"message": "the project has no credits left"} if document is None else document)


@dataclass
class Setting:
    """A ledger whose site has a service."""

    ledger: Ledger
    clock: Clock
    http: ScriptedHttp
    service: EnforcementService
    courier: Courier

    def paths(self) -> list[str]:
        return [request.path.rpartition("/")[2] for request in self.http.asked]

    def kept(self) -> dict[str, str]:
        """What may have to be taken back."""
        return self.ledger.upkeep.records.values(MEMORY)


def ids() -> Iterator[str]:
    for number in range(1, 10**6):
        yield str(UUID(int=number))


@pytest.fixture
def http() -> Iterator[ScriptedHttp]:
    with scripted_http() as server:
        yield server


Opened = Callable[..., Setting]


@pytest.fixture
def opened(tmp_path: Path, http: ScriptedHttp) -> Iterator[Opened]:
    ledgers: list[Ledger] = []

    def open_one(**rules: Any) -> Setting:
        clock, numbers = Clock(), ids()
        ledger = open_ledger(tmp_path, clock=clock)
        ledgers.append(ledger)
        ledger._new_id = lambda: next(numbers)
        stated = ExternalEnforcement.model_validate({"url": f"{http.url}/v1", "timeout": 1, **rules})
        client = EnforcementClient(stated, {"GPUYARD_ENFORCEMENT_TOKEN": TOKEN})
        classes = {"v100": CLASS, "t4": "CUSTOM_GPU_T4"} if stated.service == "coral-credits" else {}
        words = LeaseWords(
            "https://keystone.example.org/v3", "RegionOne", {"v100": "v100.1"}, classes,
            lambda pool: {lane.id: lane for lane in ledger.lanes(pool)},
        )  # fmt: skip
        service = ledger.outside = EnforcementService(client, stated, words, ledger, clock)
        channel: Channel = EnforcementChannel(client, stated, words)
        courier = Courier(ledger, channel, "lab", clock)
        courier.run()
        return Setting(ledger, clock, http, service, courier)

    yield open_one
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def setting(opened: Opened, http: ScriptedHttp) -> Setting:
    for path in ("check-create", "check-update", "on-end"):
        http.on("POST", f"/v1/{path}", YES)
    return opened()


def book(setting: Setting, wish: Ask | None = None, **more: Any) -> Booking:
    return setting.ledger.create(wish or ask(1, 4, 2), ADA, **more)[0]


def test_it_is_asked_as_blazar_asks(setting: Setting) -> None:
    made = book(setting)
    (request,) = setting.http.asked
    assert (request.path, request.headers["x-auth-token"]) == ("/v1/check-create", TOKEN)
    assert request.json == {
        "context": {
            "user_id": ADA.user_id,
            "project_id": PROJECT,
            "auth_url": "https://keystone.example.org/v3",
            "region_name": "RegionOne",
        },
        "lease": {
            "id": made.id,
            "name": f"gpuyard v100 {made.id}",
            "user_id": ADA.user_id,
            "project_id": PROJECT,
            "start_date": "2026-11-23T13:00:00",
            "end_date": "2026-11-23T17:00:00",
            "before_end_date": None,
            "reservations": [
                {
                    "resource_type": "flavor:instance",
                    "flavor_id": "v100.1",
                    "amount": 2,
                    "affinity": None,
                    "allocations": [],
                }
            ],
        },
    }
    assert not setting.kept()


def test_blazar_s_own_filter_posts_the_same(setting: Setting) -> None:
    """blazar_asks.py has made the record, with Blazar's code."""
    theirs = json.loads((Path(__file__).parents[2] / "support/blazar_asks.json").read_text())
    made = book(setting)
    setting.ledger.edit(made.id, ask(1, 5, 2), ADA)
    setting.ledger.cancel(made.id, ADA)
    setting.courier.run()
    ours = {posted.path.rpartition("/")[2]: posted for posted in setting.http.asked}
    assert list(ours) == list(theirs) == ["check-create", "check-update", "on-end"]
    for name, request in ours.items():
        assert f"http://localhost{request.path}" == theirs[name]["url"]
        assert {word.lower() for word in theirs[name]["headers"]} <= set(request.headers)
        assert request.headers["content-type"] == theirs[name]["headers"]["Content-Type"]
        _alike(request.json, theirs[name]["body"])
    # Before there is a lease, Blazar has nothing that is not told here.
    asked_of, our_lease = theirs["check-create"]["body"]["lease"], ours["check-create"].json["lease"]
    assert set(our_lease) - set(asked_of) == {"id"}
    assert {**our_lease, **WHOSE} == {**asked_of, "id": made.id, **WHOSE}


WHOSE = dict.fromkeys(("name", "user_id", "project_id"), "of each its own")
OF_ITS_DATABASE = {"degraded", "events", "status", "trust_id", "lease_id", "resource_id", "id"}
"""Of leases and reservations that Blazar has: bookings here have none of it but the id of the lease."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def _alike(ours: Any, theirs: Any, key: str = "") -> None:
    """The same fields, of the same kind and in the same form."""
    if isinstance(theirs, dict):
        assert theirs.keys() - ours.keys() <= OF_ITS_DATABASE, key
        assert ours.keys() - theirs.keys() <= {"id", "before_end_date"}, key
        for name in theirs.keys() & ours.keys():
            _alike(ours[name], theirs[name], name)
    elif isinstance(theirs, list):
        for item, other in zip(ours, theirs, strict=False):
            _alike(item, other, key)
    else:
        assert type(ours) is type(theirs), key
        if key.endswith("_date") and theirs is not None:
            assert MOMENT.fullmatch(theirs), key
            assert MOMENT.fullmatch(ours), key


def test_it_is_told_of_every_end_once_with_the_time_that_it_had(setting: Setting) -> None:
    first, second, third = book(setting), book(setting, ask(10)), book(setting, ask(0, 8, 1, pool="t4"))
    setting.clock.forward(0.5)
    setting.ledger.upkeep.advance()
    setting.ledger.end(third.id, ADA)
    setting.ledger.cancel(second.id, ADA)
    setting.clock.forward(0.6)
    setting.ledger.upkeep.advance()
    setting.clock.forward(5)
    setting.ledger.upkeep.advance()
    setting.courier.run()
    setting.courier.run()
    ends = {
        request.json["lease"]["id"]: request.json["lease"]
        for request in setting.http.asked
        if request.path == "/v1/on-end"
    }
    assert setting.paths().count("on-end") == 3 == len(ends)
    assert ends[third.id]["end_date"] == "2026-11-23T12:30:00"
    assert ends[third.id]["reservations"][0]["allocations"][0]["hypervisor_hostname"] == "gpu-2"
    assert ends[first.id]["start_date"] == "2026-11-23T13:00:00"
    assert {BookingState.NO_SHOW, BookingState.ENDED} & {setting.ledger.get(first.id).state}


def test_its_no_is_the_reason_and_nothing_is_booked(setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", no())
    with pytest.raises(RefusedError) as refused:
        book(setting)
    (reason,) = refused.value.answer.reasons
    assert reason.code == "external"
    assert reason.text == "127.0.0.1, which keeps the accounts of this site, says no: the project has no credits left"
    assert not setting.kept()
    setting.service.take_back()
    assert setting.paths() == ["check-create"]


def test_an_admin_may_set_its_no_aside(setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", no())
    made = book(setting, by=ROOT, override=True)
    (entry,) = [audit_entry for audit_entry in setting.ledger.audit() if audit_entry.action == "booking.override"]
    assert (entry.target, entry.rule) == (made.id, "external")


def test_what_is_refused_here_is_not_asked_there(setting: Setting) -> None:
    with pytest.raises(RefusedError):
        book(setting, ask(1, 4, 99))
    assert not setting.http.asked
    assert setting.ledger.check(ask(1, 4), ADA).yes  # a question changes nothing there
    assert not setting.http.asked


def test_the_same_wish_again_is_not_asked_again(setting: Setting) -> None:
    assert book(setting, key="one").id == book(setting, key="one").id
    assert setting.paths() == ["check-create"]


def test_of_the_same_wish_twice_at_once_one_is_taken_back(setting: Setting) -> None:
    """Whoever does not wait for a slow service sends it again: both are asked for, and one of them is booked."""
    again: list[Booking] = []

    def slow(request: Asked) -> ScriptedAnswer:
        setting.http.on("POST", "/v1/check-create", YES)
        again.append(book(setting, key="k"))
        return YES

    setting.http.on("POST", "/v1/check-create", slow)
    assert book(setting, key="k").id == again[0].id
    setting.service.take_back()
    assert setting.kept() == {}
    checks, ends = setting.http.asked[:2], setting.http.asked[2:]
    assert [request.path for request in ends] == ["/v1/on-end"]
    assert {request.json["lease"]["id"] for request in checks} == {again[0].id, ends[0].json["lease"]["id"]}
    assert ends[0].json["lease"]["id"] != again[0].id


def test_a_series_is_asked_one_by_one_and_taken_back_as_a_whole(setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", YES, YES, no())
    with pytest.raises(RefusedError):
        book(setting, repeat="FREQ=DAILY;COUNT=3")
    setting.service.take_back()
    assert setting.paths() == ["check-create"] * 3 + ["on-end"] * 2
    assert not setting.kept()
    assert len({request.json["lease"]["id"] for request in setting.http.asked}) == 3


def test_a_yes_for_what_is_then_not_booked_is_taken_back(setting: Setting) -> None:
    """Somebody else is faster while the service thinks about it."""

    def thinks(request: Asked) -> ScriptedAnswer:
        with setting.ledger._transactions.change("v100") as transaction:
            for lane in transaction.lanes:
                hold = replace(other, id=f"x{lane.id}", lanes=(lane.id,))
                transaction.add(hold)
        return YES

    other = Booking(
        "x", setting.ledger.create(ask(100, 1), ROOT)[0].kind, ask(1, 4), BookingState.CONFIRMED, "u", "u", "p", "p",
        setting.clock.now, setting.clock.now,
    )  # fmt: skip
    setting.http.on("POST", "/v1/check-create", thinks)
    setting.http.asked.clear()
    with pytest.raises(RefusedError, match=r"v100 (is|are) free"):
        book(setting)
    assert len(setting.kept()) == 1
    setting.service.take_back()
    assert setting.paths() == ["check-create", "on-end"]
    assert not setting.kept()


def test_a_crash_between_yes_and_booking_is_mended_later(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*args: Any) -> Any:
        raise Killed

    remember = setting.service._remember
    with monkeypatch.context() as patch:
        patch.setattr(setting.ledger._transactions, "run", killed)
        patch.setattr(setting.service, "_remember", lambda back: None if back.failed else remember(back))
        with pytest.raises(Killed):
            book(setting)
    assert len(setting.kept()) == 1
    setting.service.take_back()  # whoever asked may still be at it
    assert setting.paths() == ["check-create"]
    setting.clock.now += IN_THE_MIDDLE
    setting.service.take_back()
    assert setting.paths() == ["check-create", "on-end"]
    assert not setting.kept()


def test_a_crash_after_the_booking_takes_nothing_back(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(setting.service, "_forget", lambda back: None)
        made = book(setting)
        setting.ledger.edit(made.id, ask(1, 5, 2), ADA)
    assert len(setting.kept()) == 1
    setting.clock.now += IN_THE_MIDDLE
    setting.service.take_back()
    assert setting.paths() == ["check-create", "check-update"]
    assert not setting.kept()


def test_a_change_is_asked_for_with_what_it_is_and_what_it_is_to_be(setting: Setting) -> None:
    made = book(setting)
    setting.ledger.edit(made.id, replace(made.ask, comment="thesis"), ADA)
    assert setting.paths() == ["check-create"]  # which is no use
    setting.ledger.edit(made.id, ask(1, 6, 2), ADA)
    body = setting.http.asked[-1].json
    assert (body["current_lease"]["end_date"], body["lease"]["end_date"]) == (
        "2026-11-23T17:00:00",
        "2026-11-23T19:00:00",
    )
    setting.http.on("POST", "/v1/check-update", no())
    with pytest.raises(RefusedError, match="no credits left"):
        setting.ledger.edit(made.id, ask(1, 8, 2), ADA)
    assert setting.ledger.get(made.id).ask.end == ask(1, 6).end
    assert setting.ledger.edit(made.id, ask(1, 2, 2), ADA).ask.gpu_hours == 4  # giving back needs nobody's yes


def test_a_change_that_fails_here_is_taken_back_there(setting: Setting) -> None:
    made = book(setting)
    book(setting, ask(5, 4, 3))
    with pytest.raises(RefusedError):
        setting.ledger.edit(made.id, ask(1, 6, 2), ADA)
    setting.service.take_back()
    change, back = setting.http.asked[-2:]
    assert change.path == back.path == "/v1/check-update"
    assert (back.json["current_lease"], back.json["lease"]) == (change.json["lease"], change.json["current_lease"])


def slow(sock: socket.socket) -> None:
    """Bytes that never end, none of them late."""
    sock.sendall(b"HTTP/1.1 204 No Content\r\n")
    for number in range(100):
        sock.sendall(f"x-{number}: y\r\n".encode())
        time.sleep(0.2)


HOSTILE = {
    "garbage": ScriptedAnswer(raw=lambda sock: sock.sendall(b"\x00\xff" * 5000)),
    "nothing": ScriptedAnswer(raw=lambda sock: None),
    "slow": ScriptedAnswer(raw=slow),
    "huge": ScriptedAnswer(403, body=b'{"message": "' + b"a" * 2_000_000),
    "other": ScriptedAnswer(200, {"ok": True}),
    "error": ScriptedAnswer(500, {"message": "oops"}),
    "redirect": ScriptedAnswer(302, headers={"location": "http://127.0.0.1:1/"}),
    "unknown": ScriptedAnswer(404),
    "token": ScriptedAnswer(401, {"detail": "Invalid token."}),
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_an_answer_that_is_none_is_an_outage(kind: str, setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", HOSTILE[kind])
    began = time.monotonic()
    with pytest.raises(RefusedError) as refused:
        book(setting)
    assert time.monotonic() - began < 5
    (reason,) = refused.value.answer.reasons
    assert reason.code == ("external" if kind == "huge" else "external_outage")
    assert len(reason.text) < 1000
    assert TOKEN not in reason.text
    if kind != "huge":
        assert len(setting.kept()) == 1  # it may have taken it for a yes
        setting.service.take_back()
    assert not setting.kept()


def test_a_connection_that_comes_late_is_not_waited_on(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the first of its addresses does not answer: nothing is left then that ends its bytes."""
    connect = socket.create_connection

    def late(*given: Any, **named: Any) -> socket.socket:
        time.sleep(1.2)
        return connect(*given, **named)

    monkeypatch.setattr(socket, "create_connection", late)
    setting.http.on("POST", "/v1/check-create", ScriptedAnswer(raw=slow))
    began = time.monotonic()
    with pytest.raises(RefusedError, match="in 1 s"):
        book(setting)
    assert time.monotonic() - began < 5


def test_what_it_says_cannot_steer_a_terminal(setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", no({"message": "\x1b[2J\u202eno\n" + "x" * 9000}))
    with pytest.raises(RefusedError) as refused:
        book(setting)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("document", [[], "no", {"message": 5}, {"message": " "}, None, {"a": 1}])
def test_a_no_without_words_is_a_no(document: Any, setting: Setting) -> None:
    setting.http.on("POST", "/v1/check-create", ScriptedAnswer(403, document))
    with pytest.raises(RefusedError, match="says no: it gave no reason"):
        book(setting)


def test_a_site_may_book_on_while_it_is_away(opened: Opened, http: ScriptedHttp) -> None:
    setting = opened(outage="allow")
    http.on("POST", "/v1/check-create", ScriptedAnswer(500))
    made = book(setting)
    (entry,) = [audit_entry for audit_entry in setting.ledger.audit() if audit_entry.action == "external.outage"]
    assert (entry.target, "answers 500" in entry.text) == (made.id, True)
    assert not setting.kept()
    http.on("POST", "/v1/check-create", no())
    with pytest.raises(RefusedError):  # its no counts all the same
        book(setting)


def test_an_end_is_told_however_long_it_is_away(setting: Setting) -> None:
    made = book(setting)
    setting.http.on("POST", "/v1/on-end", ScriptedAnswer(503))
    setting.ledger.cancel(made.id, ADA)
    for _ in range(20):
        setting.courier.run()
        setting.clock.now += timedelta(days=1)
    assert setting.paths().count("on-end") >= 20
    setting.http.on("POST", "/v1/on-end", YES)
    setting.clock.now += LONGEST_PAUSE
    setting.courier.run()
    before = setting.paths().count("on-end")
    setting.clock.now += timedelta(days=2)
    setting.courier.run()
    assert setting.paths().count("on-end") == before
    assert not [audit_entry for audit_entry in setting.ledger.audit() if audit_entry.action == "message.given_up"]


def test_the_token_is_read_anew_and_never_said(tmp_path: Path, http: ScriptedHttp) -> None:
    file = tmp_path / "token"
    rules = ExternalEnforcement.model_validate({"url": http.url, "token_file": str(file)})
    with pytest.raises(UsageError, match="cannot be read"):
        EnforcementClient(rules, {})
    file.write_text("first\n")
    client = EnforcementClient(rules, {"GPUYARD_ENFORCEMENT_TOKEN": "other"})
    http.on("POST", "/on-end", YES)
    client.post("on-end", {})
    file.write_text("second")
    client.post("on-end", {})
    assert [request.headers["x-auth-token"] for request in http.asked] == ["first", "second"]
    for bad in ("", "two words\nX-Admin: yes", "a" * 5000, "tokén"):
        file.write_text(bad)
        with pytest.raises(UsageError) as error:
            client.post("on-end", {})
        assert "words" not in str(error.value)
    with pytest.raises(UsageError, match="GPUYARD_ENFORCEMENT_TOKEN has no token"):
        EnforcementClient(ExternalEnforcement.model_validate({"url": http.url}), {})


def test_nobody_there_is_an_outage(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = EnforcementClient(
        ExternalEnforcement.model_validate({"url": f"http://127.0.0.1:{port}"}), {"GPUYARD_ENFORCEMENT_TOKEN": TOKEN}
    )
    with pytest.raises(OutageError, match="refused"):
        client.post("check-create", {})


def test_coral_credits_is_asked_told_and_given_back(opened: Opened, http: ScriptedHttp) -> None:
    credits = Credits(http, {(PROJECT, CLASS): 20.0})
    credits.install()
    setting = opened(url=f"{http.url}/consumer", service="coral-credits")
    made = book(setting)  # 4 h of 2 GPUs
    assert credits.hours[PROJECT, CLASS] == 20  # a check takes nothing
    setting.courier.run()
    assert credits.hours[PROJECT, CLASS] == 12
    with pytest.raises(RefusedError, match=r"Insufficient CUSTOM_GPU_V100 credits available\. Requested:24\.0"):
        book(setting, ask(20, 12, 2))
    with pytest.raises(RefusedError, match="No credit allocated for resource_type CUSTOM_GPU_T4"):
        book(setting, ask(20, 1, 1, pool="t4"))
    setting.ledger.edit(made.id, ask(1, 6, 2), ADA)
    setting.courier.run()
    setting.courier.run()
    assert credits.hours[PROJECT, CLASS] == 8
    setting.clock.forward(2)
    setting.ledger.upkeep.advance()
    setting.ledger.end(made.id, ADA)
    setting.courier.run()
    assert credits.hours[PROJECT, CLASS] == 18  # it was there for an hour
    assert credits.ended == [made.id]
    assert all(json.dumps(request.json) for request in http.asked)


def test_a_change_of_what_coral_credits_does_not_know_is_a_new_one(opened: Opened, http: ScriptedHttp) -> None:
    credits = Credits(http, {(PROJECT, CLASS): 20.0})
    credits.install()
    setting = opened(url=f"{http.url}/consumer", service="coral-credits")
    made = book(setting)
    with pytest.raises(RefusedError, match="Insufficient"):
        setting.ledger.edit(made.id, ask(1, 11, 2), ADA)
    setting.ledger.edit(made.id, ask(1, 10, 2), ADA)
    setting.courier.run()
    assert credits.hours[PROJECT, CLASS] == 0
    setting.ledger.cancel(made.id, ADA)
    setting.courier.run()
    assert credits.ended == [made.id]


def test_a_site_says_which_service_it_is(tmp_path: Path, http: ScriptedHttp) -> None:
    external = {"url": f"{http.url}/consumer", "service": "coral-credits"}
    document = {
        "booking": {},
        "accounting": {"external": external},
        "flavors": {"v100.2": flavor(gpus={"v100": 2}), "v100.1": flavor(gpus={"v100": 1})},
    }
    compiled = site(tmp_path, document).compiled
    ledger = open_ledger(tmp_path)
    with pytest.raises(UsageError, match="GPUYARD_ENFORCEMENT_TOKEN has no token"):
        open_enforcement(compiled, ledger, "https://keystone.example.org/v3", {}, Clock())
    opened = open_enforcement(compiled, ledger, "https://k/v3", {"GPUYARD_ENFORCEMENT_TOKEN": TOKEN}, Clock())
    assert opened is not None
    assert ledger.outside is opened.service
    assert opened.channel.name.startswith("external 127.0.0.1 ")
    assert TOKEN not in opened.channel.name
    http.on("POST", "/consumer/check-create", YES)
    ledger.create(ask(1, 4, 2), ADA)
    (request,) = http.asked
    assert request.json["lease"]["reservations"][0]["flavor_id"] == "v100.1"
    assert request.json["lease"]["resource_requests"] == {"CUSTOM_GPU_V100": 2}
    assert opened.loop.run_once("test")
    ledger.close()
