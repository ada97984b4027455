"""Reads YAML that somebody else has written: checks it against bounds before anything is made of it, and keeps its
lines.

Brackets and the beginnings of values are counted in the text first, because the library takes seconds for many of
them; then the composed tree is measured with its aliases written out; only then are values constructed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpuyard.model.errors import UsageError
from gpuyard.model.text import printable

Path = tuple[str | int, ...]
BRACKETS = re.compile(r"[\[\]{}]")
MOST_OPEN = 100
"""The most open brackets. Quoted ones and those in comments count as well, which does no harm."""
BEGINNINGS = re.compile(r"\r\n|[,\n\r\x85\u2028\u2029\[{]|- ")
"""Characters that a value comes after, roughly: in texts and comments too. All of YAML's line ends are among them."""
MOST_DIGITS = 100
"""The most characters of a number. Python takes long to write a longer one in decimal, and raises from 4,300 digits on,
which hexadecimal ones reach unnoticed."""
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


@dataclass(frozen=True)
class Bounds:
    """The largest document that is read."""

    values: int
    """The most values, with every alias written out: a few anchors that name each other stand for billions."""
    depth: int = 20


class DocumentError(UsageError):
    """Raised for text that is not YAML, or not within its bounds. `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True)
class Document:
    """A parsed document: mappings, lists, text, numbers, booleans, times and None."""

    value: Any
    lines: Mapping[Path, int]
    """Path of keys -> line, from 1."""

    def line(self, path: Path) -> int:
        """Return the line of the deepest part of the path that the text has."""
        return next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 1)


def values(text: str, bounds: Bounds) -> Any:
    """Return the value of a text; None for an empty one. Raises DocumentError."""
    return _read(text, bounds)[0]


def document(text: str, bounds: Bounds) -> Document:
    """Return the same as `values`, with lines. Raises DocumentError."""
    value, root = _read(text, bounds)
    return Document(value, {} if root is None else _lines(root))


def _read(text: str, bounds: Bounds) -> tuple[Any, Node | None]:
    yaml = YAML(typ="safe", pure=True)
    _before_reading(text, bounds)
    try:
        root = yaml.compose(text)
        if root is None:
            return None, None
        _measure(root, bounds)
        return yaml.constructor.construct_document(root), root
    except DuplicateKeyError as error:
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        problem = f"{printable(key)!r} stands here for the second time; keep one of them"
        raise DocumentError(_line(error), problem) from None
    except MarkedYAMLError as error:
        raise DocumentError(_line(error), f"not YAML: {error.problem or error.context}") from None
    except (YAMLError, RecursionError) as error:
        raise DocumentError(1, f"not YAML: {printable(str(error))}") from None
    except DocumentError:
        raise
    except Exception as error:  # the library's own reading of numbers, times and tags fails in many ways
        raise DocumentError(1, f"not YAML that can be read: {printable(str(error))}") from None


def _before_reading(text: str, bounds: Bounds) -> None:
    """The library takes a second for 20,000 values, and several for a line of nothing but opening brackets: both are
    counted before. Raises DocumentError."""
    if sum(1 for _ in BEGINNINGS.finditer(text)) > bounds.values:
        raise DocumentError(1, f"more than {bounds.values} values, by its lines, commas and brackets; make it smaller")
    open_now = 0
    for bracket in BRACKETS.finditer(text):
        open_now = open_now + 1 if bracket[0] in "[{" else max(0, open_now - 1)
        if open_now > MOST_OPEN:
            raise DocumentError(text.count("\n", 0, bracket.start()) + 1, f"more than {MOST_OPEN} open brackets")


def _measure(root: Node, bounds: Bounds) -> None:
    count, waiting = 0, [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > bounds.depth:
            raise DocumentError(1, f"nested more than {bounds.depth} deep; an anchor that contains itself?")
        if count > bounds.values:
            too_many = f"more than {bounds.values} values once its aliases are written out; use fewer aliases"
            raise DocumentError(1, too_many)
        if isinstance(node, ScalarNode) and str(node.tag) in NUMBERS and len(node.value) > MOST_DIGITS:
            too_long = f"a number of {len(node.value)} characters; quote it if it is a text"
            raise DocumentError(node.start_mark.line + 1, too_long)
        if isinstance(node, SequenceNode):
            waiting += [(part, depth + 1) for part in node.value]
        elif isinstance(node, MappingNode):
            waiting += [(part, depth + 1) for pair in node.value for part in pair]


def _lines(root: Node) -> dict[Path, int]:
    """Of a tree that has been measured."""
    lines: dict[Path, int] = {}
    waiting: list[tuple[Path, Node]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, SequenceNode):
            parts = [((*path, index), part, part) for index, part in enumerate(node.value)]
        elif isinstance(node, MappingNode):
            parts = [((*path, str(key.value)), key, value) for key, value in node.value]
        else:
            continue
        for place, start, value in parts:
            lines[place] = start.start_mark.line + 1
            waiting.append((place, value))
    return lines


def _line(error: MarkedYAMLError) -> int:
    return error.problem_mark.line + 1 if error.problem_mark is not None else 1
