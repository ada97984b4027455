"""Calendar feeds for other programs: anyone with the secret address of a feed can read it, without a login."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Request, Response
from icalendar import Alarm, Calendar, Event
from pydantic import BaseModel, Field

from gpuyard import installed_version
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.bookings.web.shown_bookings import hidden, is_near
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.rights import Verb, may
from gpuyard.model.text import printable
from gpuyard.openstack.people import Account
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.documents import Line, Moment, Sent
from gpuyard.web.gateway import public_url
from gpuyard.web.people import refuse_lent
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.preconditions import not_modified
from gpuyard.web.problems import Refusal, documented
from gpuyard.web.sessions import digest_of, new_secret
from gpuyard.web.sessions_api import User, users_meant
from gpuyard.web.settings import OthersShown
from gpuyard.web.store import Feed

TAG = "feeds"
PAST, FUTURE = timedelta(days=60), timedelta(days=400)
"""How far a feed reaches."""
BEFORE_START, BEFORE_END = timedelta(minutes=15), timedelta(hours=1)
"""When a calendar program reminds of one's own bookings."""
MOST_FEEDS = 50
"""Feeds of one person, at most."""
MOST_EVENTS = 1000
"""Most bookings in a feed; when there are more, those that are over are left out."""
STATUS = {
    BookingState.REQUESTED: "TENTATIVE",
    BookingState.WAITING: "TENTATIVE",
    BookingState.OFFERED: "TENTATIVE",
    BookingState.CANCELLED: "CANCELLED",
    BookingState.NO_SHOW: "CANCELLED",
    BookingState.EXPIRED: "CANCELLED",
}
"""The others are CONFIRMED. Cancelled ones are told of, too: a calendar would keep what is only missing."""


class FeedAsk(Sent):
    """What a feed is to show."""

    scope: Literal["user", "pool", "gpu"]
    target: Line = Field("", description="The pool's name, or the GPU's host/address; empty for your own bookings.")
    days: int = Field(365, ge=1, le=365, strict=True, description="After which its address does not answer any more.")


class FeedRow(BaseModel):
    """A feed."""

    id: str
    scope: Literal["user", "pool", "gpu"]
    target: str
    owner: str = Field(description="Id of the user who made it.")
    created: Moment
    expires: Moment
    used: Moment | None = Field(description="When it was last read, to the hour; null: never.")


class NewFeed(FeedRow):
    """A feed that was just made. Its address is told this once."""

    path: str = Field(description="Below the portal's address.")
    url: str


class FeedList(BaseModel):
    feeds: list[FeedRow]


FeedId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Secret = Annotated[str, Path(max_length=100)]


def install(app: FastAPI, sources: PortalContext, ledger: Ledger, authenticator: Authenticator) -> None:
    store, settings = authenticator.store, authenticator.settings

    @app.get("/v1/feeds", tags=[TAG], responses=responses(headers=False))
    def list_feeds(who: Who, user: User = "") -> FeedList:
        """The feeds of who asks, or, for admins, of others."""
        owners = users_meant(who, user, authenticator.people)
        feeds = [feed for owner in owners for feed in store.feeds(sources.now(), owner)]
        return FeedList(feeds=[FeedRow.model_validate(_row(feed)) for feed in feeds])

    @app.post("/v1/feeds", tags=[TAG], status_code=201, responses=responses(409, headers=False))
    def create_feed(request: Request, response: Response, who: Who, ask: FeedAsk) -> NewFeed:
        """A new feed. Whoever has its address can read it until it is deleted."""
        refuse_lent(who)
        person = who.person
        _refuse_unknown(ask, ledger)
        if len(store.feeds(sources.now(), person.user_id)) >= MOST_FEEDS:
            raise Refusal(409, "too_many_feeds", f"You have {MOST_FEEDS} feeds; delete one.", codes=["too_many_feeds"])
        secret, now = new_secret(), sources.now().replace(microsecond=0)
        target = person.user_id if ask.scope == "user" else ask.target
        feed = Feed(digest_of(secret), ask.scope, target, person.user_id, now, now + timedelta(days=ask.days))
        store.put_feed(feed)
        # Nobody's cache is to have the address.
        response.headers["Cache-Control"] = "no-store"
        path = f"/ical/{secret}.ics"
        root = public_url(request, settings.trusted_gateways, settings.public_url)
        return NewFeed.model_validate({**_row(feed), "path": path, "url": root + path})

    @app.delete("/v1/feeds/{id}", tags=[TAG], status_code=204, responses=responses(404, headers=False))
    def delete_feed(who: Who, id: FeedId) -> Response:
        """Its address does not answer any more."""
        feed = store.get_feed(id, sources.now())
        mine = feed is not None and feed.owner == who.person.user_id
        if feed is None or not (mine or may(who.person, Verb.ADMINISTER)) or not store.delete_feed(id):
            raise Refusal(404, "not_found", "You have no such feed.")
        if not mine:
            ledger.note(who.person, "feed.delete", id, f"of {feed.scope} {feed.target}")
        return Response(status_code=204)

    @app.get("/ical/{secret}.ics", tags=[TAG], response_class=Response, responses=_ical_responses())
    def calendar(request: Request, secret: Secret) -> Response:
        """A feed, as iCalendar."""
        authenticator.refuse_too_many_feed_reads(request, digest_of(secret))
        feed = store.get_feed(digest_of(secret), sources.now())
        account = authenticator.directory.account(feed.owner) if feed else None
        if feed is None or account is None or not authenticator.projects_of(account):
            raise Refusal(404, "not_found", "There is no such feed (any more).")
        now = sources.now()
        if feed.used is None or now - feed.used > timedelta(hours=1):
            store.note_use(feed.digest, now)
        bookings = _visible(feed_bookings(ledger, feed, now), feed, account, sources.settings.others)
        title = account.user if feed.scope == "user" else feed.target
        return _ical_response(request, sources, bookings, title, own=feed.scope == "user")


def _visible(bookings: Sequence[Booking], feed: Feed, account: Account, others: OthersShown) -> Sequence[Booking]:
    """Those of a feed as its owner sees them."""
    if others is OthersShown.NAMES or any("admin" in membership.roles for membership in account.memberships):
        return bookings
    projects = {membership.project_id for membership in account.memberships}
    return [booking if is_near(booking, feed.owner, projects) else hidden(booking, others) for booking in bookings]


def _ical_response(
    request: Request, sources: PortalContext, bookings: Sequence[Booking], title: str, own: bool
) -> Response:
    """The feed, or 304. `own`: it has the bookings of its owner, and links to their page."""
    settings = sources.settings
    page = f"{public_url(request, settings.trusted_gateways, settings.public_url)}/bookings" if own else ""
    versions = [(booking.id, booking.version, booking.user, booking.project) for booking in bookings]
    content_key = repr((installed_version(), sources.site_name, title, page, versions))
    tag = f'"{hashlib.sha256(content_key.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if not_modified(request, tag):
        return Response(status_code=304, headers=headers)
    text = ical(bookings, sources.site_name, f"{title} on {sources.site_name}", page)
    return Response(text, media_type="text/calendar; charset=utf-8", headers=headers)


def _ical_responses() -> dict[int | str, dict[str, Any]]:
    content = {"text/calendar": {"schema": {"type": "string"}}}
    return {200: {"description": "RFC 5545", "content": content}, **documented(404, 422, 429, 503)}


def _row(feed: Feed) -> dict[str, object]:
    return {
        "id": feed.digest, "scope": feed.scope, "target": feed.target, "owner": feed.owner,
        "created": feed.created, "expires": feed.expires, "used": feed.used,
    }  # fmt: skip


def _refuse_unknown(ask: FeedAsk, ledger: Ledger) -> None:
    """Raise Refusal 422 for a pool or a GPU that does not exist: its feed would be empty for ever."""
    problem = ""
    if ask.scope == "pool" and ask.target not in ledger.book.pools:
        problem = f"there is no pool {ask.target!r}; there are {', '.join(ledger.book.pools)}"
    elif ask.scope == "gpu" and not _lanes(ledger, ask.target):
        problem = f"there is no GPU {ask.target!r}; name one as in host/0000:3b:00.0"
    elif ask.scope == "user" and ask.target:
        problem = "a feed of scope user shows your own bookings; leave it empty"
    if problem:
        raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [f"target: {problem}"])


def _lanes(ledger: Ledger, gpu: str) -> dict[int, str]:
    """Lanes of a GPU, with their pools; several when a slot has left the site and come back as another one."""
    return {
        lane.id: lane.pool
        for lane in ledger.lanes()
        if gpu.lower() in {f"{lane.host}/{address}".lower() for address in lane.addresses}
    }


def feed_bookings(ledger: Ledger, feed: Feed, now: datetime) -> list[Booking]:
    """Return the bookings that a feed shows, by start."""
    since, until = now - PAST, now + FUTURE

    def find(query: Query) -> list[Booking]:
        bookings = ledger.find(query, MOST_EVENTS)
        return bookings if len(bookings) < MOST_EVENTS else ledger.find(replace(query, start=now), MOST_EVENTS)

    if feed.scope == "user":
        kinds = frozenset({BookingKind.BOOKING})
        return find(Query(user_id=feed.target, kinds=kinds, start=since, end=until))
    kinds = frozenset({BookingKind.BOOKING, BookingKind.HOLD})  # runners come and go faster than calendars are read
    if feed.scope == "pool":
        return find(Query(pool=feed.target, kinds=kinds, start=since, end=until))
    lanes = _lanes(ledger, feed.target)
    shown = [
        booking
        for pool in sorted(set(lanes.values()))
        for booking in find(Query(pool=pool, kinds=kinds, start=since, end=until))
        if set(booking.lanes) & set(lanes) or booking.ask.gpu.lower() == feed.target.lower()
    ]
    return sorted(shown, key=lambda booking: (booking.ask.start, booking.id))


def ical(bookings: Sequence[Booking], site: str, title: str, page: str = "") -> bytes:
    """Return bookings as iCalendar: the same bytes for the same bookings, whenever it is asked. `page`: where their
    owner sees to them; with it come reminders of start and end."""
    calendar = Calendar()
    calendar.add("prodid", "-//gpuyard//bookings//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", printable(title))
    calendar.add("refresh-interval", timedelta(minutes=15), parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", "PT15M")
    for booking in bookings:
        event = _event(booking, site)
        if page:
            event.add("url", page)
            if booking.state not in STATUS:
                event.add_component(_alarm("begins", "START", BEFORE_START))
                event.add_component(_alarm("ends", "END", BEFORE_END))
        calendar.add_component(event)
    return bytes(calendar.to_ical())


def _event(booking: Booking, site: str) -> Event:
    ask = booking.ask
    what = ask.gpu or f"{ask.gpus} x {ask.pool}"
    event = Event()
    event.add("uid", f"{booking.id}@{site}")
    event.add("sequence", booking.version)
    event.add("dtstamp", booking.changed)
    event.add("last-modified", booking.changed)
    event.add("created", booking.created)
    event.add("dtstart", ask.start)
    event.add("dtend", ask.end)
    event.add("summary", printable(f"Hold: {what}" if booking.kind is BookingKind.HOLD else f"{what}, {booking.user}"))
    event.add("status", STATUS.get(booking.state, "CONFIRMED"))
    event.add("description", "\n".join(map(printable, _details(booking))))
    event.add("transp", "TRANSPARENT" if booking.state in STATUS else "OPAQUE")
    return event


def _alarm(what: str, related: str, before: timedelta) -> Alarm:
    alarm = Alarm()
    alarm.add("action", "DISPLAY")
    alarm.add("description", f"Your booking {what} soon")
    alarm.add("trigger", -before, parameters={"RELATED": related})
    return alarm


def _details(booking: Booking) -> list[str]:
    lines = [f"{booking.kind.value} {booking.id} of {booking.user} in {booking.project}: {booking.state.value}"]
    return lines + [text for text in (booking.ask.comment, booking.reason) if text]
