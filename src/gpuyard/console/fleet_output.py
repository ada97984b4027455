"""Shows the progress of a run on many hosts: a line per host, and a table at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from gpuyard.console.output import Format, print_list
from gpuyard.host.fleet import Ending, Event, Outcome

COLUMNS = ("Host", "Result", "Seconds", "Reason")
VERDICTS = {0: "ok", 1: "error", 2: "usage", 3: "blocked"}


class FleetDisplay:
    """An `on_event` of `fleet.run`. A terminal has the hosts that are at work in its last lines, updated in place."""

    def __init__(self, hosts: int, stream: TextIO = sys.stderr) -> None:
        self._hosts, self._stream = hosts, stream
        self._live = stream.isatty()
        self._working: dict[str, str] = {}
        self._finished = 0
        self._drawn = 0

    def __call__(self, event: Event) -> None:
        lines: list[str] = []
        if isinstance(event, Outcome):
            self._working.pop(event.host, None)
            self._finished += 1
            lines.append(_ended(event))
        else:
            steps = f"{event.done}/{event.of} " if event.of else ""
            self._working[event.host] = f"{event.host}: {steps}{event.text}"
            if not self._live and event.of:
                lines.append(self._working[event.host])
        if self._live:
            self._redraw(lines)
        else:
            self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()

    def _redraw(self, finished: list[str]) -> None:
        """Finished hosts scroll away above those at work."""
        size = _size(self._stream)
        area = list(self._working.values())[: max(size.lines - 2, 0)]
        if self._working:
            area.append(f"{self._finished} of {self._hosts} hosts done")
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # A line that is cut keeps to one row; one that scrolls away may be as long as it is.
        text = [*finished, *(line[: size.columns - 1] for line in area)]
        self._stream.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in text))
        self._drawn = len(area)


def _ended(outcome: Outcome) -> str:
    if outcome.ending is Ending.NOT_TRIED:
        return f"{outcome.host}: {verdict(outcome)}: {outcome.reason}"
    reason = f"  {outcome.reason}" if outcome.reason else ""
    return f"{outcome.host}: {verdict(outcome)} after {outcome.seconds:.1f} s{reason}"


def _size(stream: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return os.terminal_size((80, 24))
    return size if size.columns and size.lines else os.terminal_size((80, 24))


def verdict(outcome: Outcome) -> str:
    """One or two words: ``ok``, ``blocked``, ``timed out``."""
    if outcome.ending is not Ending.DONE:
        return str(outcome.ending.value)
    return VERDICTS.get(outcome.exit, f"exit {outcome.exit}")


def print_summary(outcomes: Mapping[str, Outcome], format_: Format = Format.TABLE) -> None:
    """A table on standard output; below it, what the hosts printed besides that gave no result."""
    rows: list[dict[str, Any]] = [
        {
            "Host": outcome.host,
            "Result": verdict(outcome),
            "Seconds": f"{outcome.seconds:.1f}",
            "Reason": outcome.reason,
        }
        for outcome in outcomes.values()
    ]
    print_list(rows, COLUMNS, format_)
    if format_ is Format.TABLE:
        for outcome in outcomes.values():
            if outcome.ending is not Ending.DONE and len(outcome.noise) > 1:
                print("\n".join([f"\n{outcome.host} said:", *(f"  {line}" for line in outcome.noise)]))
