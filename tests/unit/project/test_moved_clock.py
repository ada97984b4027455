"""The clock that other processes go by in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.moved_clock import MovedClock

TELLS = """
import sys, time
from datetime import datetime, timezone
for _ in sys.stdin:
    began = time.monotonic()
    time.sleep(0.1)
    print(datetime.now(timezone.utc).isoformat(), int(time.time()), time.monotonic() - began, flush=True)
"""


def test_a_process_goes_by_it_while_it_runs(tmp_path: Path) -> None:
    clock = MovedClock(tmp_path, datetime(2027, 9, 30, 20, tzinfo=UTC))
    environment = {**os.environ, **clock.environment}
    command = [sys.executable, "-c", TELLS]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        for moment in (clock(), datetime(2027, 10, 31, 0, 30, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)):
            clock.until(moment)
            process.stdin.write("now\n")
            process.stdin.flush()
            iso_time, stamp, waited = process.stdout.readline().split()
            assert (
                timedelta(0) <= datetime.fromisoformat(iso_time) - moment + timedelta(seconds=1) < timedelta(minutes=1)
            )
            assert abs(int(stamp) - datetime.fromisoformat(iso_time).timestamp()) <= 1
            assert 0.1 <= float(waited) < 30, "what passes is as ever"
        process.stdin.close()


def test_it_does_not_go_back(tmp_path: Path) -> None:
    clock = MovedClock(tmp_path, datetime(2027, 9, 30, 20, tzinfo=UTC))
    clock.until(datetime(2027, 9, 30, 19, tzinfo=UTC))
    assert clock() >= datetime(2027, 9, 30, 19, 59, 59, tzinfo=UTC)
