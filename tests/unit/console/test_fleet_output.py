"""What an operator sees while many hosts work, on a terminal and in a log, and at the end."""

from __future__ import annotations

import io
import json
import os
import pty
import termios

import pytest

from gpuyard.console.fleet_output import FleetDisplay, print_summary
from gpuyard.console.output import Format
from gpuyard.host.fleet import Ending, Event, Outcome, Progress

BROKEN = Outcome("gpu2", Ending.FAILED, 1, "KeyError: 'gpu'", noise=("Traceback:", "KeyError: 'gpu'"), seconds=0.5)
FINE = Outcome("gpu1", Ending.DONE, 0, noise=("Welcome!", "to gpu1"), seconds=2.04)
BLOCKED = Outcome("gpu3", Ending.DONE, 3, "no IOMMU", seconds=1)
EVENTS: list[Event] = [
    Progress("gpu1", "connecting"),
    Progress("gpu2", "connecting"),
    Progress("gpu1", "x" * 60, 1, 2),
    BROKEN,
    FINE,
]


def test_a_log_has_one_line_for_a_step_and_one_for_an_outcome() -> None:
    stream = io.StringIO()
    display = FleetDisplay(2, stream)
    for event in EVENTS:
        display(event)
    assert stream.getvalue().splitlines() == [
        f"gpu1: 1/2 {'x' * 60}",
        "gpu2: failed after 0.5 s  KeyError: 'gpu'",
        "gpu1: ok after 2.0 s",
    ]


def test_a_host_that_was_not_tried_says_why() -> None:
    stream = io.StringIO()
    FleetDisplay(2, stream)(Outcome("gpu3", Ending.NOT_TRIED, 1, "stopped after gpu2 failed"))
    assert stream.getvalue() == "gpu3: not tried: stopped after gpu2 failed\n"


END = "<end>"


def _shown(terminal: int) -> str:
    """What was written since, up to END: a terminal hands it on in pieces, of a line or less."""
    text = ""
    while not text.endswith(END):
        text += os.read(terminal, 4096).decode()
    return text.removesuffix(END).replace("\r\n", "\n")


def test_a_terminal_has_the_hosts_at_work_in_its_last_lines() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (3, 40))
    with open(theirs, "w") as stream:
        display = FleetDisplay(2, stream)
        shown = []
        for event in EVENTS:
            display(event)
            print(END, end="", file=stream, flush=True)
            shown.append(_shown(ours))
    os.close(ours)
    assert shown == [
        "\r\x1b[Jgpu1: connecting\n0 of 2 hosts done\n",
        "\x1b[2A\r\x1b[Jgpu1: connecting\n0 of 2 hosts done\n",  # gpu2 has no room
        f"\x1b[2A\r\x1b[Jgpu1: 1/2 {'x' * 29}\n0 of 2 hosts done\n",
        f"\x1b[2A\r\x1b[Jgpu2: failed after 0.5 s  KeyError: 'gpu'\ngpu1: 1/2 {'x' * 29}\n1 of 2 hosts done\n",
        "\x1b[2A\r\x1b[Jgpu1: ok after 2.0 s\n",
    ]


def test_the_summary_has_every_host_and_what_failed_ones_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary({outcome.host: outcome for outcome in (FINE, BROKEN, BLOCKED)})
    text = capsys.readouterr().out
    assert "| gpu1 | ok      | 2.0     |" in text
    assert "| gpu3 | blocked | 1.0     | no IOMMU" in text
    assert text.endswith("\ngpu2 said:\n  Traceback:\n  KeyError: 'gpu'\n")


def test_the_summary_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary({outcome.host: outcome for outcome in (FINE, BROKEN)}, Format.JSON)
    assert [row["Result"] for row in json.loads(capsys.readouterr().out)] == ["ok", "failed"]
