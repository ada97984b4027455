"""The model of a kernel keeps the contract that a real one was seen to keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.binding import RULES, Bench
from tests.support.hypervisors import debian
from tests.support.sysfs import TITAN_XP_AUDIO, Sysfs


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_binding(rule: Callable[[Bench], None]) -> None:
    host = debian(Sysfs().function("01:00.1", TITAN_XP_AUDIO, "0403", 13).function("06:00.0", "8086:2030", "0604", 14))
    host.run(["modprobe", "vfio-pci"])
    bench = Bench(host, "0000:01:00.1", "snd_hda_intel", "0000:06:00.0")
    rule(bench)
    bench.reset()
