"""Small things done to text that others have written. Each takes time in proportion to the text."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Tuple

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What spreadsheets take for the beginning of one, in the width of East Asian letters too."""


def printable(text: str) -> str:
    """One line without what a terminal or a reader would act upon: escapes, line ends, changes of direction."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """As `printable`, line by line."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


def cell(value: Any) -> Any:
    """A value as a cell of CSV that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def cleaned(value: Any) -> Any:
    """JSON that somebody else has made, with every text of it `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(one) for one in value]
    return {key: cleaned(one) for key, one in value.items()} if isinstance(value, dict) else value


def blocks(text: str, ends: Mapping[str, str]) -> Iterator[Tuple[int, int]]:
    """Where the blocks between marks, as ``{"{#": "#}"}``, start and end."""
    at, left = 0, dict(ends)
    while left:
        found = re.compile("|".join(map(re.escape, left))).search(text, at)
        if found is None:
            break
        end = text.find(left[found[0]], found.end())
        if end < 0:  # nor is there one for any further block of its kind
            del left[found[0]]
            continue
        at = end + len(left[found[0]])
        yield found.start(), at


def without_blocks(text: str, ends: Mapping[str, str]) -> str:
    """The text without these blocks; lines stay where they are."""
    kept, at = [], 0
    for start, end in blocks(text, ends):
        kept += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end
    return "".join(kept) + text[at:]


def counted(number: int, noun: str) -> str:
    """``1 host``, ``2 hosts``; of a noun that takes an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
