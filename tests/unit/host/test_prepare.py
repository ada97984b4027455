"""Planning and carrying out the preparation of a host, on the model of one."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuyard.host import report
from gpuyard.host.checks import check
from gpuyard.host.holders import DeviceHolder
from gpuyard.host.modules import ids_by_option, kept_out
from gpuyard.host.preparation import pending, plan_text
from gpuyard.host.preparation.files import GRUB_FILE, MODPROBE_FILE, OPTIONS_FILE, OUR_FILES, SCRIPT_FILE
from gpuyard.host.preparation.journal import JOURNAL_FILE, copy_of, load
from gpuyard.host.preparation.passthrough import LIST_FILE, read_list
from gpuyard.host.preparation.plan import plan_preparation
from gpuyard.host.preparation.preparation import Preparation
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.tree import LINK
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.model.finding import Severity
from gpuyard.model.plan import Plan, StepVerb
from tests.support.hypervisors import AMD, INTEL, debian, epyc, flat, look, titan_xp
from tests.support.kernel import GRUB_CFG, INITRD, Driver, ModelHost
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, names

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CARD_1 = ["0000:01:00.0", "0000:01:00.1"]
CARD_2 = ["0000:02:00.0", "0000:02:00.1"]


def apply(host: ModelHost, **changes: Any) -> Plan:
    """What ``gpuyard host apply --yes`` does."""
    preparation = Preparation(host, names())
    wishes = preparation.wishes.changed(**changes)
    plan = preparation.plan(wishes)
    preparation.apply(plan, wishes, NOW, lambda number, step: None)
    return plan


def planned(host: ModelHost, **changes: Any) -> Plan:
    preparation = Preparation(host, names())
    return preparation.plan(preparation.wishes.changed(**changes))


def undo(host: ModelHost) -> Plan:
    preparation = Preparation(host, names())
    plan = preparation.plan_undo()
    preparation.undo(plan, lambda number, step: None)
    return plan


def drivers(host: ModelHost, addresses: list[str]) -> set[str | None]:
    return {host.driver_of(address) for address in addresses}


def test_every_group_that_can_be_given_is_given_and_nothing_is_left_to_do() -> None:
    host = titan_xp()
    plan = apply(host)
    assert drivers(host, CARD_1 + CARD_2) == {"vfio-pci"}
    assert [entry.address for entry in read_list(host.tree)] == CARD_1 + CARD_2
    assert [step.name for step in plan.steps if step.kind == "group"] == ["13", "14"]
    assert host.driver_of("0000:03:00.0") == "nvme"
    assert planned(host).empty


def test_it_is_so_after_a_boot_too() -> None:
    host = titan_xp()
    apply(host)
    host.boot()
    assert drivers(host, CARD_1 + CARD_2) == {"vfio-pci"}
    assert planned(host).empty


def test_undo_brings_everything_back_byte_for_byte() -> None:
    host = titan_xp()
    before = flat(host)
    apply(host, identity=True)
    assert "gpuyard" in (host.tree.read(INITRD) or "")
    assert flat(host) != before
    undo(host)
    assert flat(host) == before
    assert undo(host).empty


def test_undo_after_a_boot_is_as_before_after_the_next_one() -> None:
    host = titan_xp()
    before = flat(host)
    apply(host, identity=True)
    host.boot()
    undo(host)
    assert drivers(host, CARD_1) == {"nouveau", "snd_hda_intel"}
    host.boot()
    assert flat(host) == before


def test_a_card_of_the_same_model_can_stay_with_the_host() -> None:
    host = titan_xp()
    apply(host, keep=["02:00.0"])
    assert drivers(host, CARD_1) == {"vfio-pci"}
    assert drivers(host, CARD_2) == {"nouveau", "snd_hda_intel"}
    host.boot()
    assert drivers(host, CARD_2) == {"nouveau", "snd_hda_intel"}
    assert planned(host).empty, "the wish is remembered"


def test_a_kept_card_can_be_given_later_and_back_again() -> None:
    host = titan_xp()
    apply(host, keep=["02:00.0"])
    plan = apply(host, give=["02:00.0"])
    assert [(step.verb, step.name) for step in plan.steps if step.kind == "group"] == [(StepVerb.BIND, "14")]
    assert drivers(host, CARD_2) == {"vfio-pci"}
    plan = apply(host, keep=["01:00.0"])
    assert [(step.verb, step.name) for step in plan.steps if step.kind == "group"] == [(StepVerb.RELEASE, "13")]
    assert drivers(host, CARD_1) == {"nouveau", "snd_hda_intel"}


def test_a_gpu_that_is_added_later_is_the_only_difference() -> None:
    host = titan_xp()
    apply(host)
    extra = Sysfs().function("05:00.0", V100, "0302", 20).nodes["sys"]
    host.nodes["sys"]["devices"]["pci0000:00"]["0000:05:00.0"] = extra["devices"]["pci0000:00"]["0000:05:00.0"]
    host.put("sys/bus/pci/devices/0000:05:00.0", extra["bus"]["pci"]["devices"]["0000:05:00.0"])
    plan = planned(host)
    assert [str(step) for step in plan.steps] == [
        f"update file /{LIST_FILE}",
        "run command initramfs",
        "bind group 20",
    ]
    assert [line for line in plan_text.diff(plan.steps[0]) if line[:2] in ("+0", "-0")] == [
        f"+0000:05:00.0 {V100} vfio-pci"
    ]


def test_another_card_at_an_address_is_not_taken_for_the_old_one() -> None:
    host = titan_xp()
    apply(host)
    folder = host.nodes["sys"]["devices"]["pci0000:00"]["0000:02:00.0"]
    folder["device"] = f"0x{V100[5:]}"
    host.boot()
    assert host.driver_of("0000:02:00.0") == "nouveau", "the list has other ids at this address"
    plan = apply(host)
    assert f"0000:02:00.0 {V100} vfio-pci" in host.tree.read(LIST_FILE).splitlines()  # type: ignore[union-attr]
    assert [step.name for step in plan.steps if step.kind == "group"] == ["14"]
    undo(host)
    assert host.driver_of("0000:02:00.0") == "nouveau"


def test_shared_groups_are_kept_and_given_whole() -> None:
    host = epyc()
    apply(host, keep=["0000:27:00.0"])
    assert drivers(host, ["0000:27:00.0", "0000:28:00.0"]) == {"nouveau"}
    assert drivers(host, ["0000:44:00.0", "0000:c3:00.0", "0000:c4:00.0"]) == {"vfio-pci"}


def test_what_the_host_needs_is_left_alone_also_when_asked_for() -> None:
    sysfs = Sysfs().function("01:00.0", TITAN_XP, "0300", 1).function("01:00.1", TITAN_XP_AUDIO, "0403", 1)
    host = debian(sysfs)  # its root disk is in group 1
    plan = planned(host)
    assert plan.empty
    assert "needed by the host: root disk" in plan.notes[0]
    requested_plan = planned(host, only=("0000:01:00.0",))
    assert "needed by the host: root disk" in requested_plan.refused
    with pytest.raises(BlockedError, match="root disk"):
        apply(host, only=("0000:01:00.0",))
    assert host.written == []


def test_a_gpu_that_is_not_there_cannot_be_given() -> None:
    assert "no GPU at 0000:77:00.0" in planned(titan_xp(), only=("0000:77:00.0",)).refused
    with pytest.raises(UsageError, match="no PCI address"):
        Wishes().changed(keep=["first"])
    with pytest.raises(UsageError, match="kept and given away"):
        Wishes().changed(keep=["01:00.0"], give=["0000:01:00.0"])


def test_intel_gets_its_option_and_the_gpus_are_given_at_the_next_boot() -> None:
    host = off()
    plan = apply(host)
    assert [step.kind for step in plan.steps].count("group") == 0
    waiting = pending.needs_reboot(pending.settings(look(host), load(host.tree)))
    assert [setting.name for setting in waiting][:1] == ["kernel option intel_iommu=on"]
    assert {setting.state for setting in waiting} == {pending.State.PENDING}
    assert planned(host).empty
    host.boot()
    assert drivers(host, CARD_1) == {"vfio-pci"}
    assert pending.needs_reboot(pending.settings(look(host), load(host.tree))) == ()
    assert planned(host).empty, "the option is ours, so it stays wanted"


def test_undo_of_a_kernel_option_is_byte_for_byte_too() -> None:
    host = off()
    before = flat(host)
    apply(host)
    host.boot()
    undo(host)
    host.boot()
    assert flat(host) == before


def off() -> ModelHost:
    """An Intel machine that was started without intel_iommu=on."""
    sysfs = Sysfs().function("01:00.0", TITAN_XP, "0300").function("01:00.1", TITAN_XP_AUDIO, "0403")
    host = debian(sysfs, command_line="", groups={"0000:01:00.0": 13, "0000:01:00.1": 13, "0000:03:00.0": 1})
    assert not look(host).inventory.iommu_on
    return host


def test_amd_needs_no_option_and_a_guides_one_is_named() -> None:
    sysfs = Sysfs().function("01:00.0", TITAN_XP, "0300", 13)
    host = debian(sysfs, AMD, "amd_iommu=on", "quiet")
    plan = planned(host)
    assert not [step for step in plan.steps if step.name == f"/{GRUB_FILE}"]
    assert "amd_iommu=on in /etc/default/grub:1 does nothing: the AMD IOMMU is on by default" in plan.notes


@pytest.mark.parametrize(("cpu", "table", "where"), [(AMD, "IVRS", "AMD-Vi"), ("Intel(R) Xeon(R)", "DMAR", "VT-d")])
def test_an_iommu_that_the_firmware_hides_is_a_refusal(cpu: str, table: str, where: str) -> None:
    host = debian(Sysfs().function("01:00.0", TITAN_XP, "0300"), cpu, "", groups={"0000:01:00.0": 13})
    for name in ("FACP", "APIC"):
        host.put(f"sys/firmware/acpi/tables/{name}", "")
    refused = planned(host).refused
    assert f"no ACPI table {table}" in refused
    assert where in refused


@pytest.mark.parametrize(("cpu", "options", "where"), [(AMD, "", "AMD-Vi"), (INTEL, "intel_iommu=on", "VT-d")])
def test_an_iommu_that_the_kernel_would_use_and_the_firmware_has_off_comes_first(
    cpu: str, options: str, where: str
) -> None:
    host = debian(Sysfs().function("01:00.0", TITAN_XP, "0300"), cpu, "", groups={"0000:01:00.0": 13})
    host.put("proc/cmdline", options)
    assert "the IOMMU is off, and that comes first" in planned(host).refused
    assert where in planned(host).refused


@pytest.mark.parametrize("command_line", ["", "iommu=off vfio-pci.ids=10de:1b02"])
def test_on_a_host_without_gpus_nothing_is_planned(command_line: str) -> None:
    plan = planned(debian(Sysfs(), command_line=command_line, groups={}))
    assert plan.empty
    assert plan.refusals == plan.reboot == ()


def test_a_host_that_keeps_all_of_its_gpus_needs_no_kernel_option() -> None:
    host = debian(Sysfs().function("01:00.0", TITAN_XP, "0300"), command_line="", groups={"0000:01:00.0": 13})
    assert planned(host, keep=["01:00.0"]).empty


def test_a_usb_controller_of_the_mainboard_goes_only_when_it_is_named() -> None:
    def host() -> ModelHost:
        return debian(Sysfs().function("01:00.0", TITAN_XP, "0300", 13).function("00:14.0", "8086:a36d", "0c03", 13))

    plan = planned(host())
    assert plan.empty
    assert any("00:14.0 USB controller" in note and "--give 00:14.0" in note for note in plan.notes)
    given = planned(host(), give=["00:14.0"])
    assert {"0000:01:00.0", "0000:00:14.0"} in [set(step.after) for step in given.steps if step.kind == "group"]


def test_options_of_others_that_switch_the_iommu_off_are_named_and_can_be_left_out() -> None:
    host = debian(
        Sysfs().function("01:00.0", TITAN_XP, "0300"),
        command_line="intel_iommu=off",
        groups={"0000:01:00.0": 13},
    )
    assert "intel_iommu=off in /etc/default/grub:1 keeps the IOMMU off" in planned(host).refused
    apply(host, replace_legacy=True)
    host.boot()
    assert look(host).inventory.facts.command_line == "quiet intel_iommu=on"
    assert host.driver_of("0000:01:00.0") == "vfio-pci"
    assert "intel_iommu=off" in (host.tree.read("etc/default/grub") or ""), "the operator's file is as it was"


def test_ids_that_take_a_card_which_the_host_keeps_are_a_refusal() -> None:
    host = titan_xp()
    host.put("etc/modprobe.d/vfio.conf", f"options vfio-pci ids={TITAN_XP}")
    assert f"ids={TITAN_XP} in /etc/modprobe.d/vfio.conf takes 02:00.0 too" in planned(host, keep=["02:00.0"]).refused
    assert not planned(host).refusals, "all cards of the model are given anyway"
    apply(host, keep=["02:00.0"], replace_legacy=True)
    assert "options vfio-pci ids=" in (host.tree.read(OPTIONS_FILE) or "").splitlines()
    assert ids_by_option(host.tree, "") == {}
    assert planned(host).empty


def test_a_softdep_of_somebody_else_stays_in_effect() -> None:
    """Of two softdeps of a module, modprobe heeds the first one only."""
    host = titan_xp()
    host.put("etc/modprobe.d/sound.conf", "softdep snd_hda_intel pre: snd_pcm post: snd_seq")
    host.put("lib/modules/6.1.0/modules.softdep", "softdep nouveau post: drm_display_helper")
    apply(host)
    lines = (host.tree.read(MODPROBE_FILE) or "").splitlines()
    assert "softdep snd_hda_intel pre: gpuyard_passthrough snd_pcm post: snd_seq" in lines
    assert "softdep nouveau pre: gpuyard_passthrough post: drm_display_helper" in lines
    assert planned(host).empty
    assert kept_out(host.tree, "")["snd_hda_intel"] == f"softdep in /{MODPROBE_FILE}"


def test_legacy_options_on_the_kernel_command_line_are_offered_to_be_replaced() -> None:
    host = debian(
        Sysfs().function("01:00.0", TITAN_XP, "0300", 13), command_line=f"intel_iommu=on vfio-pci.ids={TITAN_XP}"
    )
    (note,) = planned(host).notes
    assert note.startswith(f"vfio-pci.ids={TITAN_XP} in /etc/default/grub:1 takes every card")
    apply(host, replace_legacy=True)
    assert f"vfio-pci.ids={TITAN_XP}" not in (host.tree.read(GRUB_CFG) or "")


def test_a_device_that_somebody_has_open_is_not_taken_away() -> None:
    host = titan_xp()
    preparation = Preparation(host, names())
    preparation.held = {CARD_1[0]: [DeviceHolder(7, "python3", "/dev/nvidia0")]}
    plan = preparation.plan(Wishes())
    assert "0000:01:00.0 is in use by python3, process 7: end it, or use --no-live and reboot" in plan.refused
    assert preparation.plan(Wishes(live=False)).refusals == ()


def test_undo_refuses_while_a_vm_has_the_gpu() -> None:
    host = titan_xp()
    apply(host)
    preparation = Preparation(host, names())
    preparation.held = {CARD_1[0]: [DeviceHolder(7, "qemu-system-x86", "/dev/vfio/13")]}
    plan = preparation.plan_undo()
    assert "in use by a VM (qemu-system-x86, process 7)" in plan.refused
    with pytest.raises(BlockedError):
        preparation.undo(plan, lambda number, step: None)
    assert drivers(host, CARD_1) == {"vfio-pci"}


def test_an_unbind_that_hangs_is_given_up_and_the_next_undo_finishes() -> None:
    host = titan_xp()
    before = flat(host)
    host.held = {CARD_1[1]}
    with pytest.raises(GpuyardError, match=r"bind group 13: .*has not returned after 30 s"):
        apply(host)
    assert host.driver_of(CARD_1[0]) == "nouveau", "what was taken before is given back"
    journal = load(host.tree)
    assert journal is not None
    assert journal.intent == ("bind group 13", "bind group 14")
    host.held = set()
    undo(host)
    assert flat(host) == before


def test_a_file_of_others_at_one_of_our_paths_is_a_refusal() -> None:
    host = titan_xp()
    host.put(OPTIONS_FILE, "blacklist nouveau")
    assert f"/{OPTIONS_FILE} is there and gpuyard did not write it: move it away" in planned(host).refused


def test_a_command_that_fails_is_run_again_by_the_next_apply() -> None:
    host = titan_xp()
    tool = host.nodes["usr"]["sbin"].pop("update-initramfs")
    assert not [step for step in planned(host).steps if step.kind == "command"], "no tool, no step"
    host.nodes["usr"]["sbin"]["update-initramfs"] = tool
    host.failing = {"update-initramfs"}
    with pytest.raises(GpuyardError, match="run command initramfs: update-initramfs"):
        apply(host)
    host.failing = set()
    plan = apply(host)
    assert str(plan.steps[0]) == "run command initramfs"
    assert planned(host).empty


def test_boot_files_that_others_changed_since_are_made_anew() -> None:
    host = titan_xp()
    apply(host)
    host.put("boot/initrd.img-6.2.0", "a kernel that was installed since, with our files in it")
    plan = undo(host)
    assert "run command initramfs" in [str(step) for step in plan.steps]
    assert "made anew" in plan.notes[0]


def test_a_host_without_grub_or_grubby_is_told_what_to_do() -> None:
    host = off()
    del host.nodes["usr"]["sbin"]["update-grub"]
    assert "the kernel needs intel_iommu=on" in planned(host).refused


def test_a_damaged_journal_is_an_error_that_says_what_to_do() -> None:
    host = titan_xp()
    host.put(JOURNAL_FILE, "{")
    with pytest.raises(GpuyardError, match=r"is damaged .* mend it, or move it away"):
        planned(host)


def test_nothing_of_ours_is_outside_of_our_files() -> None:
    host = titan_xp()
    before = flat(host)
    apply(host, identity=True, live=False)
    changed = {path for path in {*before, *flat(host)} if before.get(path) != flat(host).get(path)}
    made = {GRUB_CFG, INITRD, JOURNAL_FILE}
    assert {path for path in changed if "originals" not in path} <= made | set(OUR_FILES)


def test_a_plan_is_pure() -> None:
    host = titan_xp()
    before = copy.deepcopy(host.nodes)
    machine = look(host)
    first = plan_preparation(machine, Wishes(), None, {})
    assert plan_preparation(machine, Wishes(), None, {}) == first
    assert host.nodes == before
    assert SCRIPT_FILE in [step.name[1:] for step in first.steps]


def test_check_and_scan_show_what_waits_for_a_reboot() -> None:
    host = off()
    apply(host)
    findings = check(look(host))
    waiting = [finding for finding in findings if finding.code == "pending-reboot"]
    assert [finding.severity for finding in waiting] == [Severity.WARNING] * 3
    assert waiting[0].reason == "kernel option intel_iommu=on: from the next boot on"
    rows = report.to_dict(look(host).inventory, pending.seen(host.tree, look(host).inventory))["preparation"]
    assert rows[0] == {
        "name": "kernel option intel_iommu=on",
        "wanted": True,
        "running": False,
        "state": pending.State.PENDING,
    }
    host.boot()
    (finding,) = [finding for finding in check(look(host)) if finding.code == "pending-reboot"]
    assert (finding.severity, finding.reason) == (Severity.OK, "3 settings of gpuyard's are in force")


def test_a_stranger_in_the_group_goes_only_if_it_is_named() -> None:
    """Whether the host needs a disk or a port cannot be known for certain, so nobody takes one by the way."""
    sysfs = Sysfs().function("01:00.0", TITAN_XP, "0300", 13).function("05:00.0", "8086:1533", "0200", 13)
    host = debian(sysfs)
    plan = planned(host)
    assert plan.empty
    assert "05:00.0 Ethernet controller 8086:1533 shares the group, and the host would lose it" in plan.notes[0]
    assert "--give 05:00.0 if that is meant" in planned(host, give=["01:00.0"]).refused
    apply(host, give=["05:00.0"])
    assert drivers(host, ["0000:01:00.0", "0000:05:00.0"]) == {"vfio-pci"}
    assert planned(host).empty, "it is remembered"


def test_a_vm_that_starts_after_the_plan_keeps_its_gpu() -> None:
    host = titan_xp()
    apply(host)
    preparation = Preparation(host, names())
    plan = preparation.plan_undo()
    host.put("proc/4711/comm", "qemu-system-x86")
    host.put("proc/4711/fd/20", {LINK: "/dev/vfio/13"})
    with pytest.raises(GpuyardError, match=r"release group 13: 0000:01:00.0, 0000:01:00.1 are in use by a VM"):
        preparation.undo(plan, lambda number, step: None)
    assert drivers(host, CARD_1) == {"vfio-pci"}
    del host.nodes["proc"]["4711"]
    undo(host)
    assert drivers(host, CARD_1 + CARD_2) == {"nouveau", "snd_hda_intel"}


def test_boot_files_that_a_package_changed_between_two_applies_are_not_put_back() -> None:
    host = titan_xp()
    apply(host, identity=True)
    host.put(GRUB_CFG, "# by a new kernel\nlinux /vmlinuz quiet intel_iommu=on iommu=pt")
    apply(host, identity=False)
    plan = undo(host)
    assert "run command boot loader" in [str(step) for step in plan.steps]
    assert f"restore file /{GRUB_CFG}" not in [str(step) for step in plan.steps]


def test_a_copy_that_is_damaged_is_not_put_back() -> None:
    host = titan_xp()
    apply(host)
    host.put(copy_of(INITRD), "half of it")
    plan = undo(host)
    assert "run command initramfs" in [str(step) for step in plan.steps]
    assert "gpuyard" not in (host.tree.read(INITRD) or "")


def test_a_driver_that_is_no_longer_there_does_not_keep_the_rest_from_being_undone() -> None:
    host = titan_xp()
    apply(host)
    host.boot()
    del host.drivers["nouveau"]
    with pytest.raises(GpuyardError, match=r"undone, but 0000:01:00.0 has not got its driver nouveau back"):
        undo(host)
    assert drivers(host, [CARD_1[1], CARD_2[1]]) == {"snd_hda_intel"}
    assert drivers(host, [CARD_1[0], CARD_2[0]]) == {None}
    assert JOURNAL_FILE.rpartition("/")[2] not in host.tree.names("var/lib/gpuyard")


def test_without_its_journal_undo_still_removes_what_is_ours() -> None:
    host = titan_xp()
    apply(host, identity=True)
    del host.nodes["var"]["lib"]["gpuyard"]
    plan = undo(host)
    assert not [path for path in OUR_FILES if host.tree.read(path) is not None]
    assert {str(step) for step in plan.steps} >= {"run command initramfs", "run command boot loader"}
    host.boot()
    assert drivers(host, CARD_1) == {"nouveau", "snd_hda_intel"}


def test_a_journal_of_a_newer_gpuyard_is_left_alone() -> None:
    host = titan_xp()
    host.put(JOURNAL_FILE, '{"gpuyard_journal": 99}')
    with pytest.raises(GpuyardError, match="written by a newer gpuyard"):
        planned(host)


def test_a_variant_driver_is_kept() -> None:
    host = titan_xp()
    host.drivers["nvgrace-gpu-vfio-pci"] = Driver("nvgrace-gpu-vfio-pci", "nvgrace_gpu_vfio_pci")
    host.load("nvgrace_gpu_vfio_pci")
    for path, value in (
        ("devices/0000:01:00.0/driver_override", "nvgrace-gpu-vfio-pci"),
        ("devices/0000:01:00.0/driver/unbind", "0000:01:00.0"),
        ("drivers_probe", "0000:01:00.0"),
    ):
        host.write_attribute(f"sys/bus/pci/{path}", value)
    apply(host)
    assert host.driver_of("0000:01:00.0") == "nvgrace-gpu-vfio-pci"
    assert f"0000:01:00.0 {TITAN_XP} nvgrace-gpu-vfio-pci" in (host.tree.read(LIST_FILE) or "").splitlines()


def test_an_option_that_is_switched_off_runs_until_the_next_boot() -> None:
    host = titan_xp()
    apply(host, identity=True)
    host.boot()
    apply(host, identity=False)
    (setting,) = pending.needs_reboot(pending.settings(look(host), load(host.tree)))
    assert (setting.name, setting.state) == ("kernel option iommu=pt", pending.State.LEAVING)
    assert undo(host).reboot == ("no kernel option iommu=pt",)


def test_a_gpu_that_is_gone_is_told() -> None:
    host = titan_xp()
    apply(host)
    del host.nodes["sys"]["bus"]["pci"]["devices"]["0000:02:00.0"]
    assert any("0000:02:00.0 [10de:1b02] was given away and is not there any more" in n for n in planned(host).notes)


def test_undo_without_live_leaves_drivers_to_the_next_boot() -> None:
    host = titan_xp()
    apply(host)
    preparation = Preparation(host, names())
    preparation.held = {CARD_1[0]: [DeviceHolder(7, "qemu-system-x86", "/dev/vfio/13")]}
    plan = preparation.plan_undo(live=False)
    assert "0000:01:00.0 with its own driver" in plan.reboot
    preparation.undo(plan, lambda number, step: None)
    assert drivers(host, CARD_1) == {"vfio-pci"}
    host.boot()
    assert drivers(host, CARD_1) == {"nouveau", "snd_hda_intel"}


def test_ids_that_nobody_can_take_out_stay_a_refusal() -> None:
    """They are on the command line and in no configuration that we know, so leaving them out is for the operator."""
    host = titan_xp()
    host.put("proc/cmdline", f"intel_iommu=on vfio-pci.ids={TITAN_XP}")
    for changes in ({}, {"replace_legacy": True}):
        refused = planned(host, keep=["02:00.0"], **changes).refused
        assert "it is in no boot configuration that gpuyard knows, so take it out by hand and reboot" in refused


def test_a_console_that_goes_dark_is_told() -> None:
    host = titan_xp()
    host.put("sys/class/graphics/fb0", {LINK: "../../devices/pci0000:00/0000:01:00.0/graphics/fb0"})
    host.put("sys/class/vtconsole/vtcon1/bind", "1")
    host.put("sys/class/vtconsole/vtcon1/name", "(M) frame buffer device")
    assert "0000:01:00.0: the text console may be on it (/dev/fb0)" in planned(host).refused
    host.nodes["sys"]["devices"]["pci0000:00"]["0000:01:00.0"]["driver"] = {LINK: "../../../bus/pci/drivers/bochs-drm"}
    assert "the text console goes dark with 01:00.0" in planned(host).notes


def test_drivers_that_shall_wait_for_a_boot_wait_until_somebody_says_otherwise() -> None:
    host = titan_xp()
    apply(host, live=False)
    assert planned(host).empty
    assert {step.kind for step in planned(host, live=True).steps} == {"group"}


def test_each_reason_is_said_once_for_all_functions() -> None:
    host = titan_xp()
    for number, address in enumerate(("0000:01:00.0", "0000:01:00.1")):
        host.put(f"sys/class/sound/dev{number}", {LINK: f"../../devices/pci0000:00/{address}/sound/dev{number}"})
        host.put(f"proc/7/fd/{number}", {LINK: f"/dev/snd/dev{number}"})
    host.put("proc/7/comm", "pipewire")
    refusals = planned(host).refusals
    assert refusals == (
        "0000:01:00.0, 0000:01:00.1 are in use by pipewire, process 7: end it, or use --no-live and reboot",
    )
    (missing,) = planned(titan_xp(), only=["0000:05:00.0", "0000:06:00.0"]).refusals
    assert missing.startswith("there is no GPU at 0000:05:00.0, 0000:06:00.0, to be given away")
