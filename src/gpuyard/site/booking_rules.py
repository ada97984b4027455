"""Schema of ``booking`` in ``site.yaml``: the rules of bookings of the site, of a pool and of a project.

A pool's rules override the site's, and a project's override both (`resolve`). A key that does not exist is an error,
so that no rule is silently off.
"""

from __future__ import annotations

import difflib
import re
from datetime import timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    create_model,
    model_validator,
)

from gpuyard.model.booking import RULES, QuietHours, ReclaimAction, Rules, rule_text
from gpuyard.model.events import EVENTS
from gpuyard.site.strict import Strict

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
    """Parse a duration: ``"15 days"`` -> 15 days. Raises ValueError that says what to write instead."""
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


def stated(value: timedelta | bool) -> str | bool:
    """Return the text of a duration, 15 days -> ``"15 days"``, as `parse_duration` reads it."""
    if isinstance(value, bool):
        return value
    minutes = value // timedelta(minutes=1)
    size, unit = next((size, unit) for size, unit in ((1440, "days"), (60, "h"), (1, "min")) if minutes % size == 0)
    return f"{minutes // size} {unit}"


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("must be more than nothing; write '15 min' or more")
    return value


def parse_quiet_hours(value: object) -> QuietHours:
    """Parse a part of a day, as in ``"22:00-06:00"``. Raises ValueError."""
    if isinstance(value, QuietHours):
        return value
    match = HOURS.match(str(value).strip())
    if match:
        hour, minute, until_hour, until_minute = (int(part) for part in match.groups())
        start, end = hour * 60 + minute, until_hour * 60 + until_minute
        if start <= MIDNIGHT >= end and start != end:
            return QuietHours(start, end)
    raise ValueError(f"{value!r} is not a part of a day; write it as in '22:00-06:00'")


def known_zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError(f"there is no time zone {name!r}; write one as in 'Europe/Rome' or 'UTC'")
    return name


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\d+\s*(min|h|d|w|[a-z]+)$", "examples": ["15 days", "30 min"]}
_STATED = PlainSerializer(stated, when_used="json")
Duration = Annotated[timedelta, BeforeValidator(parse_duration), _STATED, WithJsonSchema(_DURATION_SCHEMA)]
SomeTime = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(_positive), _STATED, WithJsonSchema(_DURATION_SCHEMA)
]
Quiet = Annotated[
    QuietHours,
    BeforeValidator(parse_quiet_hours),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": HOURS.pattern, "examples": ["22:00-06:00"]}),
]


def parse_no_show(value: object) -> timedelta | bool:
    """Parse a duration, or true or false."""
    return value if isinstance(value, bool) else _positive(parse_duration(value))


NoShow = Annotated[
    timedelta | bool,
    BeforeValidator(parse_no_show),
    _STATED,
    WithJsonSchema({"anyOf": [_DURATION_SCHEMA, {"type": "boolean"}]}),
]
INPUTS: dict[str, Any] = {
    "bool": bool,
    "timedelta": Duration,
    "Optional[timedelta]": NoShow,
    "Optional[FrozenSet[str]]": list[str],
    "Tuple[QuietHours, ...]": list[Quiet],
    "ReclaimAction": ReclaimAction,
}
"""Type of a rule -> its type in the site file; numbers have bounds besides."""


def _fields() -> dict[str, Any]:
    fields = {}
    for key, rule in RULES.items():
        text, least, most = (rule.metadata[name] for name in ("text", "least", "most"))
        if rule.type in ("int", "Optional[int]"):
            kind: Any = Annotated[int, Field(ge=least, le=most, strict=True)]
        else:
            kind = SomeTime if rule.type == "timedelta" and least else INPUTS[str(rule.type)]
        description = f"{text[0].upper()}{text[1:]}. Default: {rule_text(key, rule.default)}."
        fields[key] = (kind | None, Field(None, description=description))
    return fields


class BookingRules(create_model("_Rules", **_fields())):  # type: ignore[misc]
    """Rules of bookings. What is left out: as in the pool, in the site, and then the default that is named here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, rules: Rules) -> BookingRules:
        """All of them stated, so that `resolve` makes the same of it."""
        stated = {key: getattr(rules, key) for key in RULES}
        users = None if rules.users is None else sorted(rules.users)
        return cls(**{**stated, "no_show": rules.no_show or False, "users": users})


class Mail(Strict):
    """An SMTP server for messages. A password comes from GPUYARD_SMTP_PASSWORD, never from this file."""

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


class Webhook(Strict):
    """An address that is told what happens. Requests are signed with the secret in the variable that is named here."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://")]
    secret_variable: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")] = Field(
        "GPUYARD_WEBHOOK_SECRET", description="Environment variable that has the key of the HMAC."
    )
    events: list[Annotated[str, AfterValidator(_known_event)]] = Field(
        default_factory=list, description="Only these, as in 'booking.started'; all when empty."
    )


class SiteBooking(BookingRules):
    """Bookings of the site: with this key, even empty, GPUs can be booked."""

    timezone: Annotated[str, AfterValidator(known_zone)] = Field("UTC", description="For quiet hours and messages.")
    dry_run: bool = Field(
        True, description="Only say what would be reclaimed, in the audit log and to the owners; reclaim nothing."
    )
    domains: list[str] = Field(
        default_factory=list,
        description="Names of further Keystone domains whose projects are let in and may book, as those of the "
        "default domain and those under 'projects' are.",
    )
    anonymous_details: bool = Field(
        False,
        description="Tell also who has not logged in which hosts there are (/metrics, /status), why a loop fails "
        "(/readyz) and, unless 'others' hides that, why operators hold GPUs (/status).",
    )
    public_status: bool = Field(
        True,
        description="Tell also who has not logged in how many GPUs of each pool are in which state, what is out of use "
        "and what is planned (/status); false: only who is logged in.",
    )
    start: bool = Field(
        True,
        description="Let people start servers from the pages, in their own name: each session keeps their Keystone "
        "token, encrypted with a key that only their browser has. false: pages show the command that does it.",
    )
    others: Literal["names", "projects", "nothing"] = Field(
        "names",
        description="What people see of bookings and servers of projects that are not theirs: names and comments, only "
        "the project, or nothing but that a GPU is taken, and until when. Admins see all. Who has used what before "
        "is for themselves, managers of their project and admins, whatever is said here.",
    )
    mail: Mail | None = None
    webhooks: list[Webhook] = Field(default_factory=list)

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)


def resolve(**layers: BookingRules | None) -> Rules:
    """Return complete rules; what a later layer states overrides earlier ones. Layers have the names that people know
    them by."""
    stated: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, layer in layers.items():
        values = {key: getattr(layer, key, None) for key in RULES}
        values = {key: value for key, value in values.items() if value is not None}
        stated |= values
        origins |= dict.fromkeys(values, name)
    if "no_show" in stated:
        stated["no_show"] = {False: None, True: Rules.no_show}.get(stated["no_show"], stated["no_show"])
    if "users" in stated:
        stated["users"] = frozenset(stated["users"])
    if "quiet_hours" in stated:
        stated["quiet_hours"] = tuple(stated["quiet_hours"])
    return Rules(**stated, origins=origins)
