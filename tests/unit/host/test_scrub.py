"""The scrub of one group on a model of a host: what is touched, by which reset, and what counts as clean."""

from __future__ import annotations

from itertools import count

import pytest

from gpuyard.host.scrub import scrub
from gpuyard.model.scrub import ScrubOutcome, ScrubResult
from tests.support.scrubbing import AUDIO, CARD, DEAD, LEADER, LONE, PEER, ScrubHost


def scrubbed(host: ScrubHost, address: str, **more: object) -> ScrubResult:
    ticks = count()
    now = lambda: float(next(ticks))  # noqa: E731
    return scrub(host.tree, address, "order", host.open_group, now, **more)  # type: ignore[arg-type]


def untouched(host: ScrubHost) -> bool:
    return not any(function.resets for function in host.functions.values())


def test_a_gpu_alone_on_its_bus_is_reset_by_it() -> None:
    host = ScrubHost()
    result = scrubbed(host, LONE)
    assert (result.outcome, result.reason, result.method) == (ScrubOutcome.CLEAN, "", "bus")
    assert (result.order, result.address, result.functions) == ("order", LONE, (LONE,))
    assert host.functions[LONE].memory == 0
    assert host.functions[LEADER].resets == []
    assert result.reset_seconds == 1.0 < result.seconds
    assert f"{LONE}: BAR 0 00001234, BAR 1 ffffffff" in result.evidence
    assert f"{LONE}: link x16, 8.0 GT/s PCIe" in result.evidence


def test_a_group_goes_together_bus_by_bus_and_its_port_stays() -> None:
    host = ScrubHost()
    assert scrubbed(host, PEER).functions == (LEADER, PEER)
    assert [host.functions[address].resets for address in (LEADER, PEER)] == [["bus"], ["bus"]]
    assert scrubbed(host, CARD).functions == (CARD, AUDIO)
    assert [host.functions[address].resets for address in (CARD, AUDIO)] == [["bus"], ["bus"]]


def test_without_its_bus_the_function_alone_is_reset_if_that_counts() -> None:
    host = ScrubHost()
    host.functions[LONE].bus = [LONE, LEADER]  # on one bus with a GPU of another group
    result = scrubbed(host, LONE)
    assert (result.outcome, result.method) == (ScrubOutcome.CLEAN, "flr")
    assert host.functions[LEADER].resets == []


@pytest.mark.parametrize("methods", ["pm", "pm bus", ""])
def test_a_reset_that_need_not_clear_anything_does_not_count(methods: str) -> None:
    host = ScrubHost()
    host.functions[LONE].bus = []
    host.attribute(LONE, "reset_method", methods)
    result = scrubbed(host, LONE)
    assert result.outcome is ScrubOutcome.REFUSED
    assert "can be reset only by pm" in result.reason or "in no way" in result.reason
    assert untouched(host)


def not_listed(host: ScrubHost) -> None:
    host.give(LONE, LEADER, PEER, CARD)


def no_list(host: ScrubHost) -> None:
    host.remove_file("etc/gpuyard/passthrough")


def another_driver(host: ScrubHost) -> None:
    from gpuyard.host.tree import LINK

    host.put(f"sys/devices/pci0000:00/{AUDIO}/driver", {LINK: "../../../bus/pci/drivers/snd_hda_intel"})


def no_driver(host: ScrubHost) -> None:
    host.remove_file(f"sys/devices/pci0000:00/{AUDIO}/driver")


def hidden_processes(host: ScrubHost) -> None:
    del host.nodes["proc"]["1"]


def unseen_process(host: ScrubHost) -> None:
    host.put("proc/77/comm", "qemu-system-x86")
    host.put("proc/77/cmdline", "qemu-system-x86")  # its descriptors and its program are not shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (not_listed, f"{AUDIO} is not in /etc/gpuyard/passthrough"),
        (no_list, "is not in /etc/gpuyard/passthrough"),
        (another_driver, f"{AUDIO} is with snd_hda_intel and not with vfio-pci"),
        (no_driver, f"{AUDIO} is with no driver"),
        (hidden_processes, "not every process can be looked at"),
        (unseen_process, "not every process can be looked at"),
    ],
)
def test_nothing_is_touched_that_is_not_given_whole_and_idle(change: object, said: str) -> None:
    host = ScrubHost()
    change(host)  # type: ignore[operator]
    result = scrubbed(host, CARD)
    assert result.outcome is ScrubOutcome.REFUSED
    assert said in result.reason
    assert untouched(host)
    assert host.opened == []


def test_what_somebody_has_open_is_left_alone() -> None:
    host = ScrubHost()
    host.process(4711, "/dev/vfio/40")
    result = scrubbed(host, AUDIO)
    assert (result.outcome, host.opened) == (ScrubOutcome.BUSY, [])
    assert "0000:3b:00.0 is in use by qemu-system-x86, process 4711" in result.reason
    host = ScrubHost()
    host.busy = {32}
    assert scrubbed(host, LONE).outcome is ScrubOutcome.BUSY


def test_processes_are_looked_at_again_before_each_reset() -> None:
    host = ScrubHost()
    leader = host.functions[LEADER]
    plain = leader.reset_bus

    def somebody_comes(group: int) -> None:
        plain(group)
        host.process(4712, "/dev/vfio/19")

    leader.reset_bus = somebody_comes  # type: ignore[method-assign]
    result = scrubbed(host, LEADER)
    assert result.outcome is ScrubOutcome.BUSY
    assert host.functions[PEER].resets == []
    assert scrubbed(host, LEADER, own_pid=4712).outcome is ScrubOutcome.CLEAN  # it is us


@pytest.mark.parametrize("address", ["0000:26:00.0", "0000:99:00.0"])
def test_bridges_and_what_is_not_there_are_not_clean(address: str) -> None:
    host = ScrubHost()
    result = scrubbed(host, address)
    assert result.outcome in (ScrubOutcome.REFUSED, ScrubOutcome.FAILED)
    assert untouched(host)


def test_what_does_not_come_back_has_failed() -> None:
    host = ScrubHost()
    host.functions[PEER].survives = False
    result = scrubbed(host, LEADER)
    assert result.outcome is ScrubOutcome.FAILED
    assert result.reason == f"{PEER} does not answer as 10de:1db4 any more, after its reset"
    host = ScrubHost()
    host.functions[LONE].refuses = True
    assert "its reset: Inappropriate ioctl" in scrubbed(host, LONE).reason
    host = ScrubHost()
    host.functions[LONE].survives = False
    host.functions[LONE].bars = {}
    assert "does not answer" in scrubbed(host, LONE).reason, "VFIO still has its ids"
    host = ScrubHost()
    host.attribute(LONE, "config", "de10ffff" + "00" * 60)
    assert scrubbed(host, LONE).outcome is ScrubOutcome.FAILED
    host = ScrubHost()
    host.functions[LONE].bars = {0: DEAD, 1: DEAD}
    assert "its memory regions read 0xff" in scrubbed(host, LONE).reason


def test_a_link_must_come_back_as_wide_as_it_was() -> None:
    host = ScrubHost()
    plain = host.functions[LONE].reset_bus

    def narrow(group: int) -> None:
        plain(group)
        host.attribute(LONE, "current_link_width", "8")

    host.functions[LONE].reset_bus = narrow  # type: ignore[method-assign]
    assert scrubbed(host, LONE).reason == f"{LONE}: its link has come back with 8 lanes of 16"
    assert scrubbed(host, LONE).outcome is ScrubOutcome.CLEAN  # as it was before
    assert scrubbed(host, LONE, widths={LONE: 16}).outcome is ScrubOutcome.FAILED  # but not before an interruption


def test_an_error_that_nobody_has_thought_of_is_not_clean() -> None:
    host = ScrubHost()
    del host.functions[LONE]
    result = scrubbed(host, LONE)
    assert result.outcome is ScrubOutcome.FAILED
    assert "KeyError" in result.reason
