"""Cleans the text of a serial console into lines that can be read and shown. Pure; takes anything that a guest may
write."""

from __future__ import annotations

import re

MOST_CHARACTERS = 256 * 1024
"""The end of a console that is read, in characters. Nova keeps less."""
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|[()][A-Z0-9]|[=>78cM])")
"""Sequences that terminals make colours and cursor moves of."""


def plain_lines(text: str) -> list[str]:
    """Return the lines with nothing but printable characters, in a time that is proportional to the length of the
    text."""
    return [_plain(line) for line in text[-MOST_CHARACTERS:].splitlines()]


def _plain(line: str) -> str:
    if line.isprintable():
        return line.rstrip()
    line = ESCAPES.sub("", line)
    return "".join(sign if sign.isprintable() else " " for sign in line).rstrip()
