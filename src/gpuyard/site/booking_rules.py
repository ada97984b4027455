"""What may stand under ``booking`` in ``site.yaml``: the rules of bookings, of the site, of a pool, of a project.

What a pool states goes before what the site states, and a project's before both. A key that does not exist is an
error, so that no rule is silently off.
"""

from __future__ import annotations

import difflib
import re
from datetime import timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from gpuyard.model.booking import QuietHours, ReclaimAction, Rules
from gpuyard.model.events import EVENTS

UNITS = {
    **dict.fromkeys(("min", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("w", "week", "weeks"), timedelta(weeks=1)),
}
DURATION = re.compile(r"^(\d{1,6})\s*([a-z]+)$")
LONGEST = timedelta(days=3660)
HOURS = re.compile(r"^([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)$")
MIDNIGHT = 24 * 60
SMTPS = 465
"""The port of SMTP that is encrypted from the beginning."""


def parse_duration(value: object) -> timedelta:
    """``"15 days"`` -> 15 days. Raises ValueError that says what to write instead."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip().lower()
    match = DURATION.match(text)
    if not match or match.group(2) not in UNITS:
        raise ValueError(f"{value!r} is not a duration; write a whole number and a unit, as in '15 days' or '30 min'")
    duration = int(match.group(1)) * UNITS[match.group(2)]
    if duration > LONGEST:
        raise ValueError(f"{value!r} is more than {LONGEST.days} days")
    return duration


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("must be more than nothing; write '15 min' or more")
    return value


def parse_quiet_hours(value: object) -> QuietHours:
    """``"22:00-06:00"``. Raises ValueError."""
    if isinstance(value, QuietHours):
        return value
    match = HOURS.match(str(value).strip())
    if match:
        hour, minute, until_hour, until_minute = (int(part) for part in match.groups())
        start, end = hour * 60 + minute, until_hour * 60 + until_minute
        if start <= MIDNIGHT >= end and start != end:
            return QuietHours(start, end)
    raise ValueError(f"{value!r} is not a part of a day; write it as in '22:00-06:00'")


def _known_zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError(f"there is no time zone {name!r}; write one as in 'Europe/Rome' or 'UTC'")
    return name


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\d+\s*(min|h|d|w|[a-z]+)$", "examples": ["15 days", "30 min"]}
Duration = Annotated[timedelta, BeforeValidator(parse_duration), WithJsonSchema(_DURATION_SCHEMA)]
SomeTime = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(_positive), WithJsonSchema(_DURATION_SCHEMA)
]
Quiet = Annotated[
    QuietHours,
    BeforeValidator(parse_quiet_hours),
    WithJsonSchema({"type": "string", "pattern": HOURS.pattern, "examples": ["22:00-06:00"]}),
]


def parse_no_show(value: object) -> timedelta | bool:
    """A duration, or true or false."""
    return value if isinstance(value, bool) else _positive(parse_duration(value))


NoShow = Annotated[
    timedelta | bool,
    BeforeValidator(parse_no_show),
    WithJsonSchema({"anyOf": [_DURATION_SCHEMA, {"type": "boolean"}]}),
]
Number = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class BookingRules(BaseModel):
    """Rules of bookings. What is left out: as in the pool, in the site, and then the default that is named here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    must_book: bool | None = Field(
        None, description="GPUs are only for those who have booked them; otherwise a project may also use as many as "
        "its 'gpus' says without a booking, until somebody has booked them. Default: true."
    )  # fmt: skip
    longest: SomeTime | None = Field(None, description="Longest booking. Default: 15 days.")
    most_active: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = Field(
        None, description="Most bookings that a user may have in a pool that have not ended. Default: 2."
    )
    ahead: SomeTime | None = Field(None, description="How far ahead a booking may start. Default: 60 days.")
    notice: Duration | None = Field(
        None, description="How long before its start a booking must be made. Default: 0 min."
    )
    gpu_hours_per_month: Number | None = Field(
        None, description="GPU-hours of a pool that a project may book in a month (UTC). Default: any number."
    )
    may_book: bool | None = Field(None, description="Whether bookings can be made at all. Default: true.")
    users: list[str] | None = Field(
        None, description="Names of the users who may book. Default: everybody with the role member in the project."
    )
    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True)] | None = Field(
        None, description="The highest comes first on the waitlist. Default: 0."
    )
    quiet_hours: list[Quiet] | None = Field(
        None,
        description="Parts of the day, in the site's time zone, in which no booking starts or ends. Default: none.",
    )
    approval: bool | None = Field(None, description="An admin must approve each booking. Default: false.")
    no_show: NoShow | None = Field(
        None, description="A booking without a server is released after this time; false is never. Default: 4 h."
    )
    offer: SomeTime | None = Field(None, description="How long an offer to the waitlist stands. Default: 2 h.")
    hold: Duration | None = Field(None, description="How long before the start GPUs are kept free. Default: 10 min.")
    window: SomeTime | None = Field(
        None, description="With unbooked use: how long booked GPUs are released for their owner. Default: 15 min."
    )
    end_soon: Duration | None = Field(None, description="How long before the end to remind the owner. Default: 4 h.")
    grace: Duration | None = Field(
        None, description="How long after the warning a server without a booking keeps its GPU. Default: 1 h."
    )
    reclaim: ReclaimAction | None = Field(
        None, description="What then happens to it. 'stop' frees nothing: a server that is off keeps its GPU. Default: "
        "shelve."
    )  # fmt: skip


class Mail(BaseModel):
    """An SMTP server for messages. A password comes from GPUYARD_SMTP_PASSWORD, never from this file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, StringConstraints(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] = 25
    sender: Annotated[str, StringConstraints(pattern=r"^[^@\s]+@[^@\s]+$")] = Field(
        description="Address of the sender."
    )
    user: str | None = None
    starttls: bool = False

    @model_validator(mode="after")
    def _no_password_in_the_open(self) -> Mail:
        if self.user and not self.starttls and self.port != SMTPS:
            raise ValueError(
                f"the password of {self.user} would go to {self.host} unencrypted; say 'starttls: true', "
                f"or port {SMTPS}"
            )
        return self


def _known_event(kind: str) -> str:
    if kind not in EVENTS:
        near = difflib.get_close_matches(kind, EVENTS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EVENTS)}"
        raise ValueError(f"there is no event {kind!r}; {hint}")
    return kind


class Webhook(BaseModel):
    """An address that is told what happens. Requests are signed with the secret in the variable that is named here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, StringConstraints(pattern=r"^https?://")]
    secret_variable: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")] = Field(
        "GPUYARD_WEBHOOK_SECRET", description="Environment variable that has the key of the HMAC."
    )
    events: list[Annotated[str, AfterValidator(_known_event)]] = Field(
        default_factory=list, description="Only these, as in 'booking.started'; all when empty."
    )


class SiteBooking(BookingRules):
    """Bookings of the site: with this key, even empty, GPUs can be booked."""

    timezone: Annotated[str, AfterValidator(_known_zone)] = Field("UTC", description="For quiet hours and messages.")
    dry_run: bool = Field(
        True, description="Only say what would be reclaimed, in the audit log and to the owners; reclaim nothing."
    )
    mail: Mail | None = None
    webhooks: list[Webhook] = Field(default_factory=list)

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)


def resolve(*layers: BookingRules | None) -> Rules:
    """Complete rules; what a later layer states goes before what an earlier one states."""
    stated: dict[str, Any] = {}
    for layer in layers:
        if layer is not None:
            stated |= {
                name: getattr(layer, name) for name in BookingRules.model_fields if getattr(layer, name) is not None
            }
    if "no_show" in stated:
        stated["no_show"] = {False: None, True: Rules.no_show}.get(stated["no_show"], stated["no_show"])
    if "users" in stated:
        stated["users"] = frozenset(stated["users"])
    if "quiet_hours" in stated:
        stated["quiet_hours"] = tuple(stated["quiet_hours"])
    return Rules(**stated)
