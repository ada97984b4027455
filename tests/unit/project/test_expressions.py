"""Every regular expression of the program takes time in proportion to what it reads, whatever that is."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter

import pytest

from gpuyard.model.text import printable, without_blocks

SRC = Path(__file__).parents[3] / "src/gpuyard"
LENGTH = 6000
LIMIT = 0.25
"""Seconds. What is quadratic takes a hundred times what a linear one takes, and fails also on a fast machine."""
FUNCTIONS = frozenset({"compile", "match", "search", "fullmatch", "findall", "finditer", "sub", "split"})
FLAGS = {"IGNORECASE": re.IGNORECASE, "MULTILINE": re.MULTILINE, "DOTALL": re.DOTALL, "ASCII": re.ASCII, "M": re.M}


WAYS = {"sub": "findall", "split": "findall", "finditer": "findall", "search": "findall"}
"""What the test tries instead of them: the same work, and for `search` no less of it."""


def expressions() -> dict[str, tuple[re.Pattern[str], str]]:
    """Place -> expression, and the way in which it is used, of all that are written out in the source."""
    expressions_by_place = {}
    everything = "\n".join(path.read_text() for path in SRC.rglob("*.py"))
    used = dict(re.findall(r"\b([A-Z_]{2,})\.(fullmatch|match|search|findall|finditer|sub)\(", everything))
    for path in sorted(SRC.rglob("*.py")):
        tree = ast.parse(path.read_text())
        named = {
            node.value: target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            of, text = node.func.value, node.args[0]
            if not (isinstance(of, ast.Name) and of.id == "re" and node.func.attr in FUNCTIONS):
                continue
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                names = {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)} & set(FLAGS)
                flags = re.RegexFlag(0)
                for name in names:
                    flags |= FLAGS[name]
                way = used.get(named.get(node, ""), "findall") if node.func.attr == "compile" else node.func.attr
                expressions_by_place[f"{path.relative_to(SRC)}:{node.lineno}"] = (
                    re.compile(text.value, flags),
                    WAYS.get(way, way),
                )
    return expressions_by_place


def pumps(pattern: str) -> set[str]:
    """Pieces that, said again and again, could make the expression try the same thing from every place."""
    words = {word for word in re.findall(r"[\w/:.=-]{2,}", pattern) if not word.isdigit()}
    letters = " a0_-.\n\t\"'=:[{(/A\\$#,"
    pairs = ("a ", " a", "a.", "0.", "a=", "${", "{#", "{%", "{{ ", "[a", "'a'", "a,", "\n ", ": ")
    return {*letters, *pairs, *words}


EXPRESSIONS = expressions()


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_it_is_linear(place: str) -> None:
    subject, way = EXPRESSIONS[place]
    read = getattr(subject, way)
    pieces = pumps(subject.pattern)
    starts = {"", *(word for word in pieces if len(word) > 2)}
    for piece in pieces:
        for start in starts:
            text = start + piece * (LENGTH // len(piece)) + "\x01"
            taken = seconds(read, text)
            if taken > LIMIT:  # once more: somebody else may have had the processor
                taken = min(taken, seconds(read, text))
            assert taken < LIMIT, f"{subject.pattern} with {way} of {start + piece!r}: {taken:.2f} s"


def seconds(read: Callable[[str], object], text: str) -> float:
    began = perf_counter()
    read(text)
    return perf_counter() - began


def test_it_sees_the_one_that_stopped_the_portal() -> None:
    text = "a" + " " * 8000 + "b"
    assert seconds(re.compile(r'\s*(?:W/)?"([^"]*)"\s*').findall, text) > LIMIT


def test_blocks_are_taken_out_as_the_expression_did_that_was_quadratic() -> None:
    ends = {"{%": "%}", "{#": "#}"}
    old = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
    for pieces in product(["{#", "#}", "{%", "%}", "a", "\n"], repeat=5):
        text = "".join(pieces)
        assert without_blocks(text, ends) == old.sub(lambda match: "\n" * match[0].count("\n"), text)
    assert seconds(lambda text: without_blocks(text, ends), "{#" * 200_000) < 2


def test_printable_shows_what_it_replaces() -> None:
    assert printable("Zoë\u2019s run") == "Zoë\u2019s run"
    assert printable("a\x1b[31mb\n\u202ec\0") == r"a\x1b[31mb\n\u202ec\x00"
