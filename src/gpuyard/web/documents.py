"""Types that documents of the API share: moments, lines of text, links, bodies that refuse unknown keys."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from gpuyard.model.moments import iso_text

RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+ -]\d\d:\d\d)")


FIRST_YEAR, LAST_YEAR = 1971, 9000


def parse_moment(value: object) -> object:
    """Parse RFC 3339 to UTC with whole seconds. Raises ValueError that says what to write instead."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not RFC3339.fullmatch(value):
        raise ValueError("is no time with its offset; write it as in 2026-11-26T14:00:00Z or 2026-11-26T15:00:00+01:00")
    # A plus that was not escaped in an address arrives as a space.
    text = re.sub(r" (\d\d:\d\d)$", r"+\1", value).replace(" ", "T", 1).upper()
    try:
        moment = datetime.fromisoformat(text)
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise ValueError
        return moment.astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise ValueError(f"is no time between {FIRST_YEAR} and {LAST_YEAR}") from None


def one_line(text: str) -> str:
    """Return the text without spaces around it. Raises ValueError for several lines, and for characters that cannot be
    seen."""
    if any(not character.isprintable() for character in text):
        raise ValueError("has control characters; write one line of text")
    return text.strip()


_MOMENT_SCHEMA = {"type": "string", "format": "date-time", "examples": ["2026-11-26T14:00:00Z"]}


Moment = Annotated[
    datetime,
    BeforeValidator(parse_moment),
    PlainSerializer(iso_text, return_type=str, when_used="json"),
    WithJsonSchema(_MOMENT_SCHEMA),
]


Line = Annotated[str, StringConstraints(max_length=255), AfterValidator(one_line)]


Comment = Annotated[str, StringConstraints(max_length=1000), AfterValidator(one_line)]


Flag = Annotated[bool, Field(strict=True)]


class Sent(BaseModel):
    """A body that somebody sends: unknown keys are errors, so that no wish is silently ignored."""

    model_config = ConfigDict(extra="forbid")


class Link(BaseModel):
    rel: str
    href: str
