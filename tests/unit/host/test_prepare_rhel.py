"""Preparing a host of the RHEL family, on the model of one: grubby, boot loader entries, dracut; and who has none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpuyard.host.preparation.files import DRACUT_FILE, GRUB_FILE, HOOK_FILE, OPTIONS_FILE
from gpuyard.host.preparation.journal import load
from gpuyard.host.preparation.kernel_options import ours
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.preparation.preparation import Preparation
from gpuyard.model.errors import GpuyardError
from gpuyard.model.plan import Plan
from tests.support.hypervisors import AMD, flat, look
from tests.support.kernel import LostPower
from tests.support.rhel import (
    COMMAND_LINE,
    DEFAULTS,
    ENTRIES,
    GRUBENV,
    KERNELS,
    RESCUE,
    RhelHost,
    bls,
    entry,
    image,
    rhel,
    set_options,
    update_args,
)
from tests.support.sysfs import TITAN_XP, Sysfs, names

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CARDS = ("0000:01:00.0", "0000:02:00.0")
RELEASES = pytest.mark.parametrize("release", [8, 9])


def planned(host: RhelHost, **changes: Any) -> Plan:
    preparation = Preparation(host, names())
    return preparation.plan(preparation.wishes.changed(**changes))


def apply(host: RhelHost, **changes: Any) -> Plan:
    preparation = Preparation(host, names())
    wishes = preparation.wishes.changed(**changes)
    plan = preparation.plan(wishes)
    preparation.apply(plan, wishes, NOW, lambda number, step: None)
    return plan


def undo(host: RhelHost) -> Plan:
    preparation = Preparation(host, names())
    plan = preparation.plan_undo()
    preparation.undo(plan, lambda number, step: None)
    return plan


def commands(host: RhelHost, name: str = "grubby") -> list[tuple[str, ...]]:
    return [command[1:] for command in host.commands if command[0] == name]


def running(host: RhelHost) -> list[str]:
    return host.text("proc/cmdline").split()


def off(release: int = 9, options: str = "quiet", **others: Any) -> RhelHost:
    """An Intel machine that was started without intel_iommu=on."""
    groups = {"0000:01:00.0": 13, "0000:03:00.0": 1}
    return rhel(release, options, Sysfs().function("01:00.0", TITAN_XP, "0300"), groups=groups, **others)


def but_bytes(files: dict[str, object]) -> dict[str, object]:
    """To compare where boot files were made anew: images by what is in them, and without what grubby made once."""
    anew = {path: "gpuyard" in str(text) for path, text in files.items() if path in map(image, KERNELS)}
    return {path: text for path, text in {**files, **anew}.items() if path != COMMAND_LINE}


# What is done


@RELEASES
def test_the_iommu_is_switched_on_and_the_cards_are_given_at_the_next_boot(release: int) -> None:
    host = off(release)
    plan = apply(host)
    assert commands(host) == [("--update-kernel=ALL", "--args=intel_iommu=on")]
    assert "kernel option intel_iommu=on" in plan.reboot
    assert planned(host).empty
    host.boot()
    assert "intel_iommu=on" in running(host)
    assert host.driver_of(CARDS[0]) == "vfio-pci"
    assert ours(look(host), load(host.tree)) == ("intel_iommu=on",)
    assert planned(host).empty, "the option is ours, so it stays wanted"


@RELEASES
def test_a_kernel_that_is_installed_later_has_the_options(release: int) -> None:
    host = off(release)
    apply(host)
    host.install_kernel("6.2.0")
    host.boot()
    assert "intel_iommu=on" in running(host)
    assert planned(host).empty


@RELEASES
def test_an_option_that_the_operator_has_set_stays_theirs(release: int) -> None:
    host = rhel(release)
    apply(host)
    assert commands(host) == []
    assert ours(look(host), load(host.tree)) == ()
    undo(host)
    assert commands(host) == []


def test_an_option_among_several_values_is_given() -> None:
    host = rhel(9, "intel_iommu=on,sm_on quiet")
    apply(host)
    assert commands(host) == []


@RELEASES
def test_a_wish_that_is_taken_back_takes_its_option_out(release: int) -> None:
    host = rhel(release)
    before = host.text(entry("6.1.0")), host.text(GRUBENV), host.text(DEFAULTS)
    apply(host, identity=True)
    assert commands(host)[-1] == ("--update-kernel=ALL", "--args=iommu=pt")
    apply(host, identity=False)
    assert commands(host)[-1] == ("--update-kernel=ALL", "--remove-args=iommu=pt")
    assert (host.text(entry("6.1.0")), host.text(GRUBENV), host.text(DEFAULTS)) == before
    assert planned(host).empty


def test_what_stays_wanted_is_not_set_again() -> None:
    host = off()
    apply(host, identity=True)
    apply(host, identity=False)
    assert commands(host)[-1] == ("--update-kernel=ALL", "--remove-args=iommu=pt")
    host.boot()
    assert "intel_iommu=on" in running(host)


def test_one_kernel_with_an_option_is_not_enough() -> None:
    host = off()
    host.put(entry("6.1.0"), bls("6.1.0", "root=/dev/vda ro intel_iommu=on"))
    assert "run command boot loader" in [str(step) for step in planned(host).steps]
    apply(host)
    assert "intel_iommu=on" in host.text(entry("5.14.0"))
    assert planned(host).empty


def test_an_option_in_etc_default_grub_alone_is_not_enough_either() -> None:
    host = off()
    host.put(DEFAULTS, 'GRUB_CMDLINE_LINUX="intel_iommu=on"')
    apply(host)
    host.boot()
    assert "intel_iommu=on" in running(host)


def test_the_rescue_entry_is_no_reason_to_do_something() -> None:
    host = off()
    apply(host)
    host.put(RESCUE, bls("0-rescue", "root=/dev/vda ro"))
    assert planned(host).empty


@RELEASES
def test_legacy_options_are_replaced_and_come_back(release: int) -> None:
    legacy = f"vfio-pci.ids={TITAN_XP}"
    host = rhel(release, f"intel_iommu=on {legacy} quiet")
    before = flat(host)
    where = "/etc/default/grub:2"
    assert any(note.startswith(f"{legacy} in {where} takes every card") for note in planned(host).notes)
    apply(host, replace_legacy=True)
    assert commands(host) == [("--update-kernel=ALL", f"--remove-args={legacy}")]
    apply(host, identity=True)
    assert planned(host).empty
    host.boot()
    assert legacy not in running(host)
    apply(host, replace_legacy=False, identity=False)
    assert commands(host)[-1] == ("--update-kernel=ALL", f"--args={legacy}", "--remove-args=iommu=pt")
    assert planned(host).empty
    undo(host)
    host.boot()
    assert flat(host) == before


def test_an_iommu_that_somebody_switched_off_is_switched_on() -> None:
    host = off(9, "intel_iommu=off quiet")
    assert "intel_iommu=off in /etc/default/grub:2 keeps the IOMMU off" in planned(host).refused
    apply(host, replace_legacy=True)
    host.boot()
    assert "intel_iommu=on" in running(host)
    assert "intel_iommu=off" not in running(host)


def test_another_value_that_grubby_displaces_is_named_and_given_back() -> None:
    host = rhel(9, "intel_iommu=on iommu=soft")
    assert "iommu=soft in /etc/default/grub:2 gives way to iommu=pt" in planned(host, identity=True).notes
    apply(host, identity=True)
    host.boot()
    assert "iommu=soft" not in running(host)
    apply(host, identity=False)
    host.boot()
    assert "iommu=soft" in running(host)
    assert planned(host).empty


def test_what_tuned_sets_counts_and_cannot_be_taken_out() -> None:
    host = rhel(8, "intel_iommu=on")
    grubenv = f"{host.text(GRUBENV)}\ntuned_params=iommu=pt amd_iommu=on"
    host.put("boot/efi/EFI/rocky/grubenv", grubenv)
    assert "amd_iommu=on is set by tuned" in planned(host, replace_legacy=True).refused
    host.put(RESCUE, bls("0-rescue", "$kernelopts $tuned_params"))
    host.put("boot/efi/EFI/rocky/grubenv", grubenv.replace(" amd_iommu=on", ""))
    apply(host)
    assert commands(host) == []


def test_other_lines_of_etc_default_grub_are_not_lost() -> None:
    host = off()
    line = 'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params"'
    host.put(DEFAULTS, f"{host.text(DEFAULTS)}\n{line}")
    before = host.text(DEFAULTS)
    plan = apply(host)
    assert commands(host) == [("--update-kernel=ALL", "--args=intel_iommu=on", "--no-etc-grub-update")]
    assert host.text(DEFAULTS) == before
    assert any("have intel_iommu=on in GRUB_CMDLINE_LINUX there" in note for note in plan.notes)
    assert planned(host).empty


def test_amd_needs_no_option() -> None:
    host = rhel(9, "quiet", cpu=AMD)
    apply(host)
    assert commands(host) == []
    assert planned(host).empty


# The initramfs


def test_the_images_of_all_kernels_get_our_files_and_no_other_image_does() -> None:
    host = rhel()
    apply(host, unsafe_interrupts=True)
    assert commands(host, "dracut") == [("--regenerate-all", "--force")]
    for kernel in KERNELS:
        for path in (LIST_FILE, OPTIONS_FILE):
            assert host.text(path) in host.text(image(kernel))
    assert HOOK_FILE not in [path for path, content in flat(host).items() if content]
    assert DRACUT_FILE in flat(host)
    run = load(host.tree).runs["initramfs"]  # type: ignore[union-attr]
    assert set(run.originals) == {image(kernel) for kernel in KERNELS}, "neither the rescue image nor kdump's"


@pytest.mark.parametrize(
    ("name", "ours_too"),
    [
        ("boot/initramfs-5.14.0-427.el9.x86_64.img", True),
        ("boot/initramfs-6.1.0-smp.img", True),
        ("boot/initramfs-6.1.0-ump.img", False),
        ("boot/initrd-6.4.0-150600.21-default", True),
        ("boot/initrd.img-6.12.0-1-amd64", True),
        ("boot/initrd", False),
    ],
)
def test_images_by_name(name: str, ours_too: bool) -> None:
    host = rhel()
    host.put(name, "as installed")
    apply(host)
    assert (name in load(host.tree).runs["initramfs"].originals) is ours_too  # type: ignore[union-attr]


def test_kdumps_own_image_is_no_reason_against_the_old_bytes() -> None:
    host = rhel()
    before = flat(host)
    apply(host)
    host.put(image("6.1.0kdump"), "made anew by kdump")
    undo(host)
    host.put(image("6.1.0kdump"), "as kdump made it")
    assert flat(host) == before


# The way back


@RELEASES
def test_undo_is_byte_for_byte(release: int) -> None:
    host = off(release, "quiet")
    before = flat(host)
    assert COMMAND_LINE not in before
    apply(host, identity=True)
    assert COMMAND_LINE in flat(host), "grubby makes it"
    host.boot()
    undo(host)
    host.boot()
    assert flat(host) == before
    assert len(commands(host)) == 1, "no need to run it again"


@RELEASES
def test_undo_with_a_kernel_that_was_installed_since_takes_the_options_out(release: int) -> None:
    host = off(release)
    before = flat(host)
    apply(host)
    host.install_kernel("6.2.0")
    plan = undo(host)
    assert "run command initramfs" in [str(step) for step in plan.steps]
    host.boot()
    assert "intel_iommu=on" not in running(host)
    assert LIST_FILE not in host.text(image("6.2.0"))
    mine = {path: text for path, text in flat(host).items() if "6.2.0" not in path}
    assert but_bytes(mine) == but_bytes(before)


def test_undo_after_grub_has_written_to_its_environment_block() -> None:
    """It does at every boot. On RHEL 8 the options are in there too, so the old bytes would be the wrong ones."""
    host = off(8)
    before = flat(host)
    apply(host)
    real = "boot/efi/EFI/rocky/grubenv"
    host.put(real, host.text(real).replace("boot_success=0", "boot_success=1"))
    plan = undo(host)
    assert commands(host)[-1] == ("--update-kernel=ALL", "--remove-args=intel_iommu=on")
    assert plan.notes[0].startswith("boot loader: not certain that only gpuyard has changed it")
    assert host.tree.link(GRUBENV), "the link to the EFI partition stays one"
    host.put(real, host.text(real).replace("boot_success=1", "boot_success=0"))
    host.boot()
    assert but_bytes(flat(host)) == but_bytes(before)
    assert "intel_iommu=on" not in host.text(COMMAND_LINE)


def test_on_rhel_9_the_environment_block_is_left_alone() -> None:
    host = off()
    before = flat(host)
    apply(host)
    host.put(GRUBENV, f"{host.text(GRUBENV)}\nboot_indeterminate=1")
    undo(host)
    assert len(commands(host)) == 1
    assert "boot_indeterminate=1" in host.text(GRUBENV)
    host.put(GRUBENV, before[GRUBENV])
    host.boot()
    assert flat(host) == before


def test_undo_when_a_kernel_was_removed_since_brings_back_the_rest() -> None:
    host = off()
    before = flat(host)
    apply(host)
    gone = (entry("5.14.0"), image("5.14.0"), "lib/modules/5.14.0/modules.dep")
    for path in gone:
        host.remove_file(path)
    undo(host)
    host.boot()
    left = {path: text for path, text in flat(host).items() if path != "lib/modules/5.14.0"}
    assert but_bytes(left) == but_bytes({path: text for path, text in before.items() if path not in gone})


@pytest.mark.parametrize("verb", ["apply", "undo"])
@RELEASES
def test_power_lost_at_any_change_is_recovered(verb: str, release: int) -> None:
    """Also in the middle of grubby and dracut, which write one file after the other."""
    work = {"apply": lambda host: apply(host, identity=True), "undo": undo}[verb]
    for changes in range(200):
        for finish in ("undo", "apply"):
            host = off(release)
            before = flat(host)
            if verb == "undo":
                apply(host, identity=True)
            crashed = lost_power(host, work, changes)
            host.boot()
            if finish == "apply":
                apply(host, identity=True)
                assert planned(host).empty, changes
                for path in [COMMAND_LINE, *(() if release == 8 else map(entry, KERNELS))]:
                    assert "intel_iommu=on iommu=pt" in host.text(path), (changes, path)
                assert set(ours(look(host), load(host.tree))) == {"intel_iommu=on", "iommu=pt"}, changes
                host.boot()
                assert {"intel_iommu=on", "iommu=pt"} <= set(running(host)), changes
            undo(host)
            host.boot()
            assert but_bytes(flat(host)) == but_bytes(before), (changes, finish)
            assert "iommu" not in host.text(COMMAND_LINE), (changes, finish)
        if not crashed:
            assert changes > 20
            return
    pytest.fail("it never came to its end")


def lost_power(host: RhelHost, work: Any, changes: int) -> bool:
    host.changes_left = changes
    try:
        work(host)
    except LostPower:
        return True
    finally:
        host.changes_left = None
    return False


def test_a_grubby_that_fails_is_run_again() -> None:
    host = off()
    host.failing = {"grubby"}
    with pytest.raises(GpuyardError, match="run command boot loader: grubby ended with 1"):
        apply(host)
    host.failing = set()
    assert "run command boot loader" in [str(step) for step in apply(host).steps]
    assert planned(host).empty


# Who cannot be helped


def test_a_host_of_ostree_is_refused() -> None:
    host = rhel()
    host.put("run/ostree-booted", "")
    assert "set kernel options with 'rpm-ostree kargs'" in planned(host).refused


def test_entries_that_cannot_be_read_are_a_refusal_when_an_option_is_needed() -> None:
    host = off()
    host.nodes["boot"]["loader"]["entries"] = {}
    refused = planned(host).refused
    assert "the kernel needs intel_iommu=on, and grubby needs boot loader entries" in refused
    assert f"/{ENTRIES}" in refused


def test_entries_that_grub_does_not_use_are_a_refusal() -> None:
    host = off()
    host.put(DEFAULTS, host.text(DEFAULTS).replace("BLSCFG=true", "BLSCFG=false"))
    assert "GRUB_ENABLE_BLSCFG=false" in planned(host).refused


def test_kernelopts_without_a_value_are_a_refusal() -> None:
    """grubby would end with success and have changed nothing that counts."""
    host = off(8)
    host.put("boot/efi/EFI/rocky/grubenv", "boot_success=0")
    assert "$kernelopts, which is not in /boot/grub2/grubenv" in planned(host).refused


def suse(options: str) -> RhelHost:
    """GRUB without grub.d and without grubby, and dracut, with no option in /etc/default/grub but `options`."""
    host = off(9, options)
    del host.nodes["boot"]["loader"], host.nodes["usr"]["sbin"]["grubby"]
    host.put("usr/sbin/grub2-mkconfig", "")
    host.put(DEFAULTS, f'GRUB_CMDLINE_LINUX_DEFAULT="{options}"')
    return host


def test_without_grubby_an_option_is_for_the_operator_to_set() -> None:
    host = suse("quiet")
    assert "the kernel needs intel_iommu=on, and this host's boot loader is neither" in planned(host).refused
    assert "set it by hand and reboot, then plan again" in planned(host).refused


def test_without_grubby_options_that_must_go_are_for_the_operator_too() -> None:
    host = suse("intel_iommu=on amd_iommu=on")
    host.boot()
    assert not planned(host).refusals
    refused = planned(host, replace_legacy=True).refused
    assert "amd_iommu=on in /etc/default/grub:1 must go, and this host's boot loader is neither" in refused


def test_without_grubby_all_else_works_when_no_option_is_missing() -> None:
    host = suse("intel_iommu=on")
    host.boot()
    before = flat(host)
    apply(host)
    assert host.driver_of(CARDS[0]) == "vfio-pci"
    assert commands(host) == []
    assert commands(host, "dracut")
    assert planned(host).empty
    undo(host)
    assert flat(host) == before


def test_nothing_of_debians_is_written() -> None:
    host = off()
    apply(host, identity=True)
    assert not {GRUB_FILE, HOOK_FILE} & {*flat(host)}


# The model's grubby, against results of the real one


@pytest.mark.parametrize(
    ("words", "removed", "added", "after"),
    [
        ("ro quiet", "", "intel_iommu=on iommu=pt", "ro quiet intel_iommu=on iommu=pt"),
        ("ro iommu=soft quiet", "", "iommu=pt", "ro quiet iommu=pt"),
        ("ro iommu=pt quiet", "iommu=pt", "", "ro quiet"),
        ("ro iommu=soft quiet", "iommu=pt", "", "ro iommu=soft quiet"),
        ("ro iommu=pt iommu=pt", "iommu=pt", "", "ro iommu=pt"),
        ("ro iommu=pt quiet", "iommu", "", "ro quiet"),
        ("ro intel_iommu=off", "intel_iommu=off", "intel_iommu=on", "ro intel_iommu=on"),
        ("ro $tuned_params", "", "iommu=pt", "ro $tuned_params iommu=pt"),
    ],
)
def test_options_as_grubby_changes_them(words: str, removed: str, added: str, after: str) -> None:
    assert " ".join(update_args(words.split(), removed.split(), added.split())) == after
    assert set_options("a\noptions x\nb", after.split()) == f"a\noptions {after}\nb"
