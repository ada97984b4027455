"""Search on pages: filters rows by ``?q=`` in the address, after others' data has been hidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Query

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
Sought = Annotated[str, Query(max_length=200)]


def matching(rows: Iterable[Row], q: str) -> list[Row]:
    """Return the rows (dataclasses) in which each word of `q` occurs somewhere, in any case; all for no words."""
    words = q.casefold().split()
    return [row for row in rows if not words or stands_in(words, _texts(asdict(row)))]


def stands_in(words: Iterable[str], texts: Iterable[str]) -> bool:
    """Return whether every word occurs in the texts. `words`: casefolded."""
    text = "\n".join(texts).casefold()
    return all(word in text for word in words)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
