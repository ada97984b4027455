"""``python -m tests.support.patient MINUTES serve ...``: gpuyard itself, that looks more often, and takes what was the
same before and after that many minutes to have been so all the time. On a clock that goes forward by hours between two
looks a month is over in minutes then, and not all of it is time in which nobody looked; nothing else differs."""

from __future__ import annotations

import sys
from datetime import timedelta

from gpuyard.cli.main import run
from gpuyard.server import site_parts
from gpuyard.usage import recorder

if __name__ == "__main__":
    site_parts.PERIOD = 0.4
    recorder.GAP = timedelta(minutes=int(sys.argv.pop(1)))
    run()
