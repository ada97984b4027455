"""What an agent in a guest sends, read strictly: whoever has the guest can send anything. Pure.

A report is JSON: ``{"v": 1, "boot": ..., "driver": ..., "seen": GPUs on the guest's bus, "cards": [UUIDs], "samples":
[[number, [a row per card]]], "xids": [[number, index of the card or -1, Xid]]}``. A row is null for a card that does
not answer, else ``[use, memory, temperature, power, ECC errors, remapped rows, slow]``, each of them null when it is
not known. The number of a sample is the tenths of a second since the guest's boot. What is out of range refuses the
whole report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

VERSION = 1
MOST_BYTES = 64 * 1024
MOST_SAMPLES = 60
MOST_CARDS = 64
MOST_XIDS = 50
LONGEST = 60 * 3600 * 10
"""Tenths of a second between the first and the last sample of a report."""
BIGGEST = 2**53 - 1
BOOT = re.compile(r"[0-9a-f]{16}")
CARD = re.compile(r"[A-Za-z0-9-]{0,64}")
DRIVER = re.compile(r"[A-Za-z0-9.+~_-]{0,40}")
RANGES = ((0, 100), (0, 100), (-50, 250), (0, 5000), (0, BIGGEST), (0, 2), (0, 255))
"""Of the numbers of a row: percent, percent, degrees C, W, errors, Rows, bits of NVML."""
KEYS = frozenset({"v", "boot", "driver", "seen", "cards", "samples", "xids"})
ROWS_FAILED = 2


class SampleError(ValueError):
    """The report is not in the form that is expected; the message says what is wrong, and repeats nothing of it."""


class SampleRow(NamedTuple):
    """A GPU at one moment. None: not known."""

    use: int | None
    """Percent of the time in which anything ran on it."""
    memory: int | None
    """Percent."""
    temperature: int | None
    """Degrees C."""
    power: int | None
    """W."""
    ecc: int | None
    """Uncorrectable errors since the driver was loaded."""
    rows: int | None
    """0: no row was remapped; 1: some wait for a reset; ROWS_FAILED: a remapping failed."""
    slow: int | None
    """Bits of NVML's clocks event reasons: what slows it down."""


class Sample(NamedTuple):
    number: int
    """Tenths of a second since the boot of the guest."""
    rows: tuple[SampleRow | None, ...]
    """By card; None for one that does not answer."""


class Xid(NamedTuple):
    number: int
    """Of the line in the kernel's log: rises within a boot."""
    card: int
    """Index; -1 when it is none of the cards."""
    code: int


@dataclass(frozen=True)
class AgentReport:
    boot: str
    driver: str
    seen: int
    """GPUs on the guest's bus, with a driver or without."""
    cards: tuple[str, ...]
    """UUIDs; empty for one that has none."""
    samples: tuple[Sample, ...]
    """The oldest first; at least one."""
    xids: tuple[Xid, ...] = ()


def report_of(body: bytes) -> AgentReport:
    """Raises SampleError."""
    if len(body) > MOST_BYTES:
        raise SampleError(f"a report may have {MOST_BYTES} bytes")
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        raise SampleError("a report is JSON") from None
    if not isinstance(told, dict) or not told.keys() <= KEYS:
        raise SampleError(f"a report is an object with {', '.join(sorted(KEYS))}")
    _whole(told.get("v"), VERSION, VERSION, "v, the version of the form,")
    cards = _cards(told)
    return AgentReport(
        boot=_text(told, "boot", BOOT),
        driver=_text(told, "driver", DRIVER),
        seen=_whole(told.get("seen"), 0, MOST_CARDS, "seen"),
        cards=cards,
        samples=_samples(told, len(cards)),
        xids=_xids(told, len(cards)),
    )


def _cards(told: Mapping[str, Any]) -> tuple[str, ...]:
    cards = _list(told.get("cards"), MOST_CARDS, "cards")
    for card in cards:
        if not isinstance(card, str) or not CARD.fullmatch(card):
            raise SampleError("cards are UUIDs: letters, digits and -")
    named = [card for card in cards if card]
    if len(set(named)) != len(named):
        raise SampleError("a card is named twice")
    return tuple(cards)


def _samples(told: Mapping[str, Any], cards: int) -> tuple[Sample, ...]:
    found: list[Sample] = []
    for one in _list(told.get("samples"), MOST_SAMPLES, "samples"):
        if not isinstance(one, list) or len(one) != 2 or not isinstance(one[1], list) or len(one[1]) != cards:
            raise SampleError("a sample is a number and a row for each card")
        number = _whole(one[0], 0, BIGGEST, "the number of a sample")
        if found and number <= found[-1].number:
            raise SampleError("the numbers of samples rise")
        found.append(Sample(number, tuple(None if row is None else _row(row) for row in one[1])))
    if not found:
        raise SampleError("a report has a sample")
    if found[-1].number - found[0].number > LONGEST:
        raise SampleError(f"the samples of a report are of {LONGEST // 36000} hours at most")
    return tuple(found)


def _row(row: Any) -> SampleRow:
    if not isinstance(row, list) or len(row) != len(RANGES):
        raise SampleError(f"a row has {len(RANGES)} numbers")
    for value, (least, most), name in zip(row, RANGES, SampleRow._fields, strict=True):
        if value is not None:
            _whole(value, least, most, name)
    return SampleRow(*row)


def _xids(told: Mapping[str, Any], cards: int) -> tuple[Xid, ...]:
    found: list[Xid] = []
    for one in _list(told.get("xids", []), MOST_XIDS, "xids"):
        if not isinstance(one, list) or len(one) != 3:
            raise SampleError("an Xid is its number in the log, a card and a code")
        number = _whole(one[0], 0, BIGGEST, "the number of an Xid in the log")
        if found and number <= found[-1].number:
            raise SampleError("the numbers of Xids in the log rise")
        found.append(Xid(number, _whole(one[1], -1, cards - 1, "a card"), _whole(one[2], 0, 9999, "an Xid")))
    return tuple(found)


def _list(value: Any, most: int, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise SampleError(f"{name} is a list of {most} at most")
    return value


def _text(told: Mapping[str, Any], key: str, form: re.Pattern[str]) -> str:
    value = told.get(key)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise SampleError(f"{key} is not in its form")
    return value


def _whole(value: Any, least: int, most: int, name: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise SampleError(f"{name} is a whole number from {least} to {most}")
    return value
