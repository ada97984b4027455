"""Small functions on text that others have written. Each takes time in proportion to the text."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Tuple

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that spreadsheets take for the beginning of a formula, also in their full-width forms."""


def printable(text: str) -> str:
    """Return one line, in which characters that a terminal or a reader would act upon are escaped: escapes, line ends,
    changes of direction."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_lines(text: str) -> str:
    """Do the same as `printable`, line by line."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


def cell(value: Any) -> Any:
    """Return a value as a cell of CSV that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def cleaned(value: Any) -> Any:
    """Return JSON that somebody else has made, with every text of it `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return {key: cleaned(item) for key, item in value.items()} if isinstance(value, dict) else value


def blocks(text: str, ends: Mapping[str, str]) -> Iterator[Tuple[int, int]]:
    """Yield start and end of the blocks between marks, such as ``{"{#": "#}"}``."""
    at, left = 0, dict(ends)
    while left:
        match = re.compile("|".join(map(re.escape, left))).search(text, at)
        if match is None:
            break
        end = text.find(left[match[0]], match.end())
        if end < 0:  # nor is there one for any further block of its kind
            del left[match[0]]
            continue
        at = end + len(left[match[0]])
        yield match.start(), at


def without_blocks(text: str, ends: Mapping[str, str]) -> str:
    """Return the text without these blocks; lines stay where they are."""
    parts, at = [], 0
    for start, end in blocks(text, ends):
        parts += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end
    return "".join(parts) + text[at:]


def counted(number: int, noun: str) -> str:
    """Return ``1 host``, ``2 hosts``, for a noun that takes an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return ``first``, ``second``, ``third``, ``4th`` and so on; for the small numbers of a count of tries."""
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
