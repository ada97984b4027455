"""Rules for any host: apply then undo is the identity, critical devices stay, every crash can be recovered."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.host.preparation.files import MODPROBE_FILE
from gpuyard.host.preparation.kernel_options import ours
from gpuyard.host.preparation.preparation import Preparation
from gpuyard.host.preparation.wishes import Wishes
from tests.support.hypervisors import debian, flat, look, titan_xp
from tests.support.kernel import GRUB_CFG, INITRD, LostPower, ModelHost
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, names

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
FUNCTIONS = ((V100, "0302"), (TITAN_XP, "0300"), (TITAN_XP_AUDIO, "0403"), ("8086:1533", "0200"), ("8086:2030", "0604"))


@st.composite
def hosts(draw: st.DrawFn) -> tuple[ModelHost, Wishes]:
    """A machine with up to eight functions in up to six groups, one of which may hold the root disk or the uplink.

    With some of them legacy options in place, the IOMMU off at first, and GPUs that the operator wants to keep.
    """
    sysfs, groups, gpus, ports = Sysfs(), {}, [], []
    for number in range(draw(st.integers(1, 8))):
        ids, class_id = draw(st.sampled_from(FUNCTIONS))
        address, group = f"{0x10 + number:02x}:00.0", draw(st.integers(1, 6))
        sysfs.function(address, ids, class_id, group)
        groups[f"0000:{address}"] = group
        gpus += [f"0000:{address}"] if class_id in ("0300", "0302") else []
        ports += [f"0000:{address}"] if class_id in ("0200", "0403") else []
    legacy = draw(st.sampled_from(["", f" vfio-pci.ids={V100}"]))
    iommu_on = draw(st.booleans())
    if iommu_on:
        host = debian(sysfs, command_line=f"intel_iommu=on{legacy}")
    else:
        host = debian(sysfs, command_line=legacy.strip(), groups={**groups, "0000:03:00.0": 1, "0000:04:00.0": 2})
    kept_gpus = draw(st.lists(st.sampled_from(gpus), unique=True)) if gpus else []
    named = draw(st.lists(st.sampled_from(ports), unique=True)) if ports else []
    wishes = Wishes(keep=tuple(kept_gpus), give=tuple(named), identity=draw(st.booleans()), replace_legacy=bool(legacy))
    return host, wishes


def apply(host: ModelHost, wishes: Wishes) -> None:
    preparation = Preparation(host, names())
    preparation.apply(preparation.plan(wishes), wishes, NOW, lambda number, step: None)
    assert Preparation(host, names()).plan(wishes).empty
    assert (host.tree.read(MODPROBE_FILE) or "") in (host.tree.read(INITRD) or ""), "the initramfs is up to date"
    assert set(ours(look(host), None)) <= set((host.tree.read(GRUB_CFG) or "").split()), "so is GRUB's menu"


def undo(host: ModelHost) -> None:
    preparation = Preparation(host, names())
    preparation.undo(preparation.plan_undo(), lambda number, step: None)


def settled(host: ModelHost) -> dict[str, object]:
    """The host, but for which run of a command made a boot file: after a crash in one it may be made anew."""
    return {path: re.sub(r"^# run \d+\n", "", str(node)) for path, node in flat(host).items()}


def touched(host: ModelHost) -> set[str]:
    """Addresses of which a driver or an override was written."""
    return {address for write in host.written for address in re.findall(r"0000:[0-9a-f]{2}:00\.0", " ".join(write))}


@MANY
@given(hosts())
def test_apply_then_undo_is_the_identity(made: tuple[ModelHost, Wishes]) -> None:
    host, wishes = made
    before = flat(host)
    apply(host, wishes)
    undo(host)
    assert flat(host) == before


@MANY
@given(hosts(), st.booleans())
def test_so_it_is_with_boots_in_between(made: tuple[ModelHost, Wishes], again: bool) -> None:
    host, wishes = made
    before = flat(host)
    apply(host, wishes)
    host.boot()
    if again:  # the groups are known now
        apply(host, wishes)
        host.boot()
    undo(host)
    host.boot()
    assert flat(host) == before


@MANY
@given(hosts())
def test_apply_does_what_was_wished_and_then_has_nothing_to_do(made: tuple[ModelHost, Wishes]) -> None:
    host, wishes = made
    for _ in range(2):  # twice, where the first boot shows the groups
        apply(host, wishes)
        host.boot()
    assert Preparation(host, names()).plan(wishes).empty
    machine = look(host)
    for slot in machine.slots:
        is_kept = any(gpu.address in wishes.keep for gpu in slot.gpus)
        others = [f for f in machine.group_members(slot) if f not in (*slot.gpus, *slot.companions)]
        strangers = {f.address for f in others if not f.stays_with_host}
        passed_through = slot.usable and not is_kept and strangers <= set(wishes.give)
        members = {host.driver_of(function.address) for function in (*slot.gpus, *slot.companions)}
        assert members == {"vfio-pci"} if passed_through else "vfio-pci" not in members, slot


@MANY
@given(hosts())
def test_what_the_host_needs_and_what_it_keeps_is_never_touched(made: tuple[ModelHost, Wishes]) -> None:
    host, wishes = made
    apply(host, wishes)
    host.boot()
    apply(host, wishes)
    undo(host)
    inventory = look(host).inventory
    forbidden = {*inventory.needed_by_host, *wishes.keep, *(f.address for f in inventory.functions if f.is_bridge)}
    if not host.groups:  # known from the beginning: then no member of their groups either
        groups = {f.iommu_group for f in inventory.functions if f.address in forbidden and not f.is_bridge} - {None}
        forbidden |= {f.address for f in inventory.functions if f.iommu_group in groups}
    assert not touched(host) & forbidden


@MANY
@given(hosts(), st.data())
def test_every_crash_of_an_apply_is_recovered(made: tuple[ModelHost, Wishes], data: st.DataObject) -> None:
    host, wishes = made
    before = settled(host)
    host.changes_left = data.draw(st.integers(0, 60), "changes until the power is lost")
    crashed = lost_power(host, lambda: apply(host, wishes))
    if crashed and data.draw(st.booleans(), "it boots"):
        host.boot()
    if data.draw(st.booleans(), "it is undone at once"):
        undo(host)
    else:
        apply(host, wishes)
        undo(host)
    host.boot()
    assert settled(host) == before


@MANY
@given(hosts(), st.data())
def test_every_crash_of_an_undo_is_recovered(made: tuple[ModelHost, Wishes], data: st.DataObject) -> None:
    host, wishes = made
    before = settled(host)
    apply(host, wishes)
    host.changes_left = data.draw(st.integers(0, 60), "changes until the power is lost")
    crashed = lost_power(host, lambda: undo(host))
    if crashed and data.draw(st.booleans(), "it boots"):
        host.boot()
    if data.draw(st.booleans(), "it is applied again"):
        apply(host, wishes)
    undo(host)
    host.boot()
    assert settled(host) == before


@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_no_change_is_left_out_by_chance(verb: str) -> None:
    """Each single point of one host, after random ones of many."""
    for changes in range(200):
        host = titan_xp()
        before = settled(host)
        wishes = Wishes(identity=True)
        if verb == "undo":
            apply(host, wishes)
        host.changes_left = changes
        crashed = lost_power(host, lambda: apply(host, wishes) if verb == "apply" else undo(host))  # noqa: B023
        undo(host)
        host.boot()
        assert settled(host) == before, changes
        if not crashed:
            assert changes > 20
            return
    pytest.fail("it never came to its end")


def lost_power(host: ModelHost, work: Callable[[], None]) -> bool:
    try:
        work()
    except LostPower:
        return True
    finally:
        host.changes_left = None
    return False
