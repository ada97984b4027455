"""Many hosts over ssh: the size of what goes to each, and how long a check of 1, 10 and 50 of them takes.

python -m bench.fleet

All hosts are this machine, over a real OpenSSH server on the loopback: it does the work of all of them besides its own,
so the numbers for many hosts are those of its cores. Without sshd only the size is shown.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support import sshd

from bench.table import Measured, finish, leave_out, milliseconds, show, sized
from gpuyard.host import bundle, fleet

COUNTS = sized((1, 10, 50), (1, 2))
VERB = ("check", "--json")


def main() -> None:
    zipapp = bundle.build()
    show(
        "What goes to a host",
        [
            Measured("zipapp", "kB", [len(zipapp) / 1000], bundle.LIMIT_BYTES / 1000),
            Measured("building it", "ms", milliseconds(bundle.build, 5)),
        ],
    )
    if why := sshd.missing():
        leave_out("Many hosts", why)
        return
    names = [f"gpu{number}" for number in range(max(COUNTS))]
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder, sshd.running(Path(folder), names) as server:
        options = fleet.FleetOptions(ssh=server.ssh, python=sys.executable)
        ssh = [*server.ssh, names[0], "true"]
        rows = [Measured("ssh HOST true", "s", seconds(lambda: subprocess.run(ssh, check=True)))]
        rows += [Measured(f"gpuyard, hosts: {count}", "s", checks(names[:count], options, zipapp)) for count in COUNTS]
        show(f"Wall time of '{VERB[0]}' over ssh, {options.at_once} at a time", rows)


def checks(names: list[str], options: fleet.FleetOptions, zipapp: bytes) -> list[float]:
    def once() -> None:
        outcomes = fleet.run(names, VERB, options, zipapp=zipapp)
        failed = [outcome for outcome in outcomes.values() if outcome.ending is not fleet.Ending.DONE]
        assert not failed, failed[0]

    return seconds(once)


def seconds(run: Callable[[], object]) -> list[float]:
    return [each / 1000 for each in milliseconds(run, 3)]


if __name__ == "__main__":
    main()
    sys.exit(finish())
