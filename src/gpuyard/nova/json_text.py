"""Parses JSON inside an option, and explains where it is wrong and how to fix it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JsonProblem:
    """A reason why a value is not JSON."""

    line: int
    """Lines below the first one of the value."""
    message: str
    fix: str


@dataclass(frozen=True)
class JsonValue:
    """A value that is valid JSON."""

    data: Any
    repeated: tuple[str, ...]
    """Keys that occur twice in one object: the last one counts."""


def read_json(text: str) -> JsonValue | JsonProblem:
    """Parse as Nova does. Never raises."""
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend(name for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(items)

    try:
        return JsonValue(json.loads(text, object_pairs_hook=pairs), tuple(repeated))
    except json.JSONDecodeError as error:
        message, fix = _explain(text, error)
        return JsonProblem(text[: error.pos].count("\n"), message, fix)
    except (ValueError, RecursionError):
        return JsonProblem(0, "it is nested too deeply or has a number that is too long", "write it in a simpler way")


def _explain(text: str, error: json.JSONDecodeError) -> tuple[str, str]:
    character, before = text[error.pos : error.pos + 1], text[: error.pos].rstrip()
    near = f"at {text[error.pos : error.pos + 20].splitlines()[0]!r}" if character.strip() else "at its end"
    if not text.strip():
        return "it is empty", "remove the line, or write a JSON object"
    if character in ("#", ";"):
        return f"{near} it has a comment, and JSON knows none", "move the comment to a line of its own, not indented"
    if character == "'":
        return f"{near} it has single quotes", "write double quotes: JSON knows only those"
    if (character in ("}", "]") and before.endswith(",")) or "trailing comma" in error.msg:
        return "it has a comma before a closing bracket", "remove the last comma"
    if error.msg == "Extra data":
        return f"{near} something stands after its end", "write one value, or repeat the key for each"
    if not character.strip() or error.msg.startswith("Unterminated"):
        return "it is not complete", "close its quotes and brackets; lines that continue a value must be indented"
    word = re.match(r"\w+", text[error.pos :])
    if word and word.group() in ("True", "False", "None"):
        right = {"True": "true", "False": "false", "None": "null"}[word.group()]
        return f"{near} it has Python's {word.group()}", f"write {right}"
    if word or "property name" in error.msg:
        return f"{near} something is not in double quotes", "put names and values into double quotes"
    return f"{near}: {error.msg}", 'write a JSON object: {"key": "value", ...}'


def object_lines(text: str) -> Iterator[int]:
    """Yield, for each object of a JSON list or for one that stands alone, the number of lines between the start of the
    text and it."""
    level, quoted, line, skip = 0, False, 0, False
    depth = 1 if text.lstrip().startswith("[") else 0
    for character in text:
        if character == "\n":
            line += 1
        if skip:
            skip = False
        elif quoted:
            skip, quoted = character == "\\", character != '"'
        elif character == '"':
            quoted = True
        elif character in "[{":
            if character == "{" and level == depth:
                yield line
            level += 1
        elif character in "]}":
            level -= 1


# What people write for a key that is not close enough to be recognised.
USUAL_MISTAKES = {
    "vendor": "vendor_id", "product": "product_id", "device": "product_id", "device_id": "product_id",
    "pci_address": "address", "pci_addr": "address", "addr": "address", "bdf": "address", "dev_name": "devname",
    "ifname": "devname", "type": "device_type", "numa": "numa_policy", "class": "resource_class",
}  # fmt: skip


def meant(key: str, known_keys: Sequence[str]) -> str | None:
    """Return the one of the known keys that somebody meant; None when that is not clear."""
    lowered = key.strip().lower().replace("-", "_")
    usual = USUAL_MISTAKES.get(lowered)
    if usual in known_keys:
        return usual
    close = difflib.get_close_matches(lowered, known_keys, n=1, cutoff=0.75)
    return close[0] if close else None
