"""Parser of the reports of agents in guests, and a strict one: whoever has the guest can send anything. Pure.

A report is JSON: ``{"v": 2, "boot": ..., "driver": ..., "seen": GPUs on the guest's bus, "cards": [UUIDs], "samples":
[[number, [a row per card]]], "stuck": true, "xids": [[number, card, Xid, detail]]}``. A row is null for a card that
does not answer, else ``[use, memory, temperature, power, ECC errors, remapped rows, slow, recovery]``, each of them
null when it is not known. The number of a sample is the tenths of a second since the guest's boot. `stuck` is there
when the driver did not answer; the rows of the last sample are null then. An Xid's card is its UUID, or its address on
the guest's bus where no UUID is known; its detail is a number of health/xid.py, or null. What is out of range refuses
the whole report.

Agents of version 1 are in images that were built before: their rows have no recovery, and their Xids are ``[number,
index of the card or -1, Xid]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

VERSIONS = 1, 2
MOST_BYTES = 64 * 1024
MOST_SAMPLES = 60
MOST_CARDS = 64
MOST_XIDS = 200
LONGEST = 60 * 3600 * 10
"""Tenths of a second between the first and the last sample of a report."""
BIGGEST = 2**53 - 1
BOOT = re.compile(r"[0-9a-f]{16}")
CARD = re.compile(r"[A-Za-z0-9-]{0,64}")
CARD_OR_ADDRESS = re.compile(r"[A-Za-z0-9:.-]{0,64}")
DRIVER = re.compile(r"[A-Za-z0-9.+~_-]{0,40}")
RANGES = ((0, 100), (0, 100), (-50, 250), (0, 5000), (0, BIGGEST), (0, 2), (0, 255), (0, 255))
"""Of the numbers of a row: percent, percent, degrees C, W, errors, Rows, bits of NVML, action of NVML."""
KEYS = frozenset({"v", "boot", "driver", "seen", "cards", "samples", "stuck", "xids"})
ROWS_FAILED = 2


class SampleError(ValueError):
    """The report is not in the expected form; the message says what is wrong, and repeats nothing of it."""


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
    recovery: int | None = None
    """NVML's recovery action: what the driver wants done with it. 0: nothing."""


class Sample(NamedTuple):
    number: int
    """Tenths of a second since the boot of the guest."""
    rows: tuple[SampleRow | None, ...]
    """By card; None for one that does not answer."""


class Xid(NamedTuple):
    number: int
    """Of the line in the kernel's log: rises within a boot."""
    card: str
    """UUID, or address on the guest's bus; empty when it is none of the cards."""
    code: int
    detail: int | None = None
    """A detail of the message, as a number (health/xid.py)."""


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
    stuck: bool = False
    """The driver did not answer: nothing is known of the cards at its last sample."""


def report_of(body: bytes) -> AgentReport:
    """Parse a report. Raises SampleError."""
    if len(body) > MOST_BYTES:
        raise SampleError(f"a report may have {MOST_BYTES} bytes")
    try:
        report = json.loads(body)
    except (ValueError, RecursionError):
        raise SampleError("a report is JSON") from None
    if not isinstance(report, dict) or not report.keys() <= KEYS:
        raise SampleError(f"a report is an object with {', '.join(sorted(KEYS))}")
    version = _whole(report.get("v"), *VERSIONS, "v, the version of the form,")
    cards = _cards(report)
    if not isinstance(report.get("stuck", False), bool):
        raise SampleError("stuck is true or false")
    return AgentReport(
        boot=_text(report, "boot", BOOT),
        driver=_text(report, "driver", DRIVER),
        seen=_whole(report.get("seen"), 0, MOST_CARDS, "seen"),
        cards=cards,
        samples=_samples(report, len(cards), version),
        xids=_xids(report, cards, version),
        stuck=report.get("stuck", False),
    )


def _cards(report: Mapping[str, Any]) -> tuple[str, ...]:
    cards = _list(report.get("cards"), MOST_CARDS, "cards")
    for card in cards:
        if not isinstance(card, str) or not CARD.fullmatch(card):
            raise SampleError("cards are UUIDs: letters, digits and -")
    named = [card for card in cards if card]
    if len(set(named)) != len(named):
        raise SampleError("a card is named twice")
    return tuple(cards)


def _samples(report: Mapping[str, Any], cards: int, version: int) -> tuple[Sample, ...]:
    samples: list[Sample] = []
    for entry in _list(report.get("samples"), MOST_SAMPLES, "samples"):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list) or len(entry[1]) != cards:
            raise SampleError("a sample is a number and a row for each card")
        number = _whole(entry[0], 0, BIGGEST, "the number of a sample")
        if samples and number <= samples[-1].number:
            raise SampleError("the numbers of samples rise")
        samples.append(Sample(number, tuple(None if row is None else _row(row, version) for row in entry[1])))
    if not samples:
        raise SampleError("a report has a sample")
    if samples[-1].number - samples[0].number > LONGEST:
        raise SampleError(f"the samples of a report are of {LONGEST // 36000} hours at most")
    return tuple(samples)


def _row(row: Any, version: int) -> SampleRow:
    numbers = len(RANGES) if version > 1 else len(RANGES) - 1
    if not isinstance(row, list) or len(row) != numbers:
        raise SampleError(f"a row has {numbers} numbers")
    for value, (least, most), name in zip(row, RANGES, SampleRow._fields, strict=False):
        if value is not None:
            _whole(value, least, most, name)
    return SampleRow(*row)


def _xids(report: Mapping[str, Any], cards: tuple[str, ...], version: int) -> tuple[Xid, ...]:
    xids: list[Xid] = []
    for entry in _list(report.get("xids", []), MOST_XIDS, "xids"):
        if not isinstance(entry, list) or len(entry) != (4 if version > 1 else 3):
            raise SampleError("an Xid is its number in the log, a card, a code and a detail")
        number = _whole(entry[0], 0, BIGGEST, "the number of an Xid in the log")
        if xids and number <= xids[-1].number:
            raise SampleError("the numbers of Xids in the log rise")
        code, detail = _whole(entry[2], 0, 9999, "an Xid"), entry[3] if version > 1 else None
        if detail is not None:
            _whole(detail, 0, 255, "the detail of an Xid")
        xids.append(Xid(number, _card(entry[1], cards, version), code, detail))
    return tuple(xids)


def _card(card: Any, cards: tuple[str, ...], version: int) -> str:
    if version == 1:
        index = _whole(card, -1, len(cards) - 1, "a card")
        return cards[index] if index >= 0 else ""
    if not isinstance(card, str) or not CARD_OR_ADDRESS.fullmatch(card):
        raise SampleError("the card of an Xid is a UUID or an address")
    return card


def _list(value: Any, most: int, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise SampleError(f"{name} is a list of {most} at most")
    return value


def _text(report: Mapping[str, Any], key: str, form: re.Pattern[str]) -> str:
    value = report.get(key)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise SampleError(f"{key} is not in its form")
    return value


def _whole(value: Any, least: int, most: int, name: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise SampleError(f"{name} is a whole number from {least} to {most}")
    return value
