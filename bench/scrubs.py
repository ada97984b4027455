"""A scrub between two tenants: what gpuyard takes for it itself, beside what the kernel takes for the resets.

python -m bench.scrubs

On a host with 600 processes that have 40 files open each: who has a GPU open is looked at before each reset. The tree
is made of files; what VFIO does is a model, which takes 100 ms for a reset and nothing for the rest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.scrubbing import LEADER, PEER, ScrubHost

from bench.table import Measured, finish, show, sized
from gpuyard.host.local_host import LocalHost
from gpuyard.host.scrub import scrub
from gpuyard.host.scrub_unit import in_a_process
from gpuyard.host.tree import LINK
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome

PROCESSES, FILES, TIMES = sized((600, 40, 10), (60, 4, 2))
RESET = 0.1


def main() -> None:
    host = ScrubHost()
    for pid in range(100, 100 + PROCESSES):
        host.process(pid, *(f"/var/lib/nova/disk-{number}" for number in range(FILES)))
    for function in (host.functions[LEADER], host.functions[PEER]):
        function.reset_bus = slow(function.reset_bus)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        write(host.nodes, Path(folder))
        local_host = LocalHost(folder)
        own = []
        for _ in range(TIMES):
            result = in_a_process(
                local_host, ScrubOrder("", LEADER), {}, scrub=partial(scrub, open_group=host.open_group)
            )
            assert result.outcome is ScrubOutcome.CLEAN, result.reason
            own.append((result.seconds - result.reset_seconds) * 1000)
    show("Scrubs", [Measured("a group of 2 GPUs, beside its resets", "ms", own, 1000)])


def slow(reset: Any) -> Any:
    def wait(group: int) -> None:
        time.sleep(RESET)
        reset(group)

    return wait


def write(nodes: Mapping[str, Any], folder: Path) -> None:
    for name, node in nodes.items():
        path = folder / name
        if isinstance(node, str):
            path.write_text(node)
        elif LINK in node:
            path.symlink_to(node[LINK])
        else:
            path.mkdir()
            write(node, path)


if __name__ == "__main__":
    main()
    sys.exit(finish())
