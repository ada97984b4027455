"""The ladder of verify, rung by rung, on a host that is right but for one thing; and VFIO where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpuyard.host.checks import Machine
from gpuyard.host.checks.prepared import CHECKS, verify
from gpuyard.host.checks.vfio import VfioProblem, VfioRefusedError, open_group
from gpuyard.host.judge import judge
from gpuyard.host.preparation.passthrough import Passthrough
from gpuyard.host.tree import LINK, RecordedTree
from gpuyard.model.finding import Finding, Severity, worst
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs

A, B, C, AUDIO = "0000:27:00.0", "0000:28:00.0", "0000:44:00.0", "0000:44:00.1"
IDS = {A: V100, B: V100, C: TITAN_XP, AUDIO: TITAN_XP_AUDIO}
RECORDED: dict[str, int | None] = {A: 19, B: 19, C: 32, AUDIO: 32}
WANTED = [Passthrough(address, ids, "vfio-pci") for address, ids in IDS.items()]


def host(groups: Mapping[str, int] | None = None, drivers: Mapping[str, str | None] | None = None) -> Sysfs:
    """Two V100 in group 19, a Titan Xp and its audio in group 32, all with vfio-pci, or as given."""
    machine = Sysfs()
    machine.function("26:00.0", "1022:1483", "0604", (groups or {}).get(A, 19), driver="pcieport")
    given = {**dict.fromkeys(IDS, "vfio-pci"), **(drivers or {})}
    for address, ids in IDS.items():
        number = (groups or RECORDED).get(address)
        driver = {"driver": driver} if (driver := given[address]) else {}
        machine.function(address, ids, "0403" if address == AUDIO else "0300", number, **driver)
        machine.put(f"dev/vfio/{number}", "")
    machine.put("sys/class/iommu/ivhd0", {LINK: "../../devices/virtual/iommu/ivhd0"})
    return machine


class Kernel:
    """Answers as vfio.open_group would, and remembers what was opened."""

    def __init__(self, ids: Mapping[str, str] | None = None, refused: Mapping[int, VfioProblem] | None = None) -> None:
        self.ids = {**IDS, **(ids or {})}
        self.refused = refused or {}
        self.opened: dict[int, list[str]] = {}

    def open_group(self, group: int, addresses: Sequence[str]) -> dict[str, str]:
        if group in self.refused:
            raise VfioRefusedError(self.refused[group], f"the reason for {group}", "the remedy")
        self.opened[group] = list(addresses)
        return {address: self.ids[address] for address in addresses}


def climb(
    machine: Sysfs,
    kernel: Kernel | None = None,
    passthroughs: Sequence[Passthrough] = WANTED,
    recorded: Mapping[str, int | None] = RECORDED,
) -> list[Finding]:
    inventory = machine.inventory()
    observed = Machine(RecordedTree(machine.nodes), inventory, judge(inventory))
    return verify(observed, passthroughs, recorded, (kernel or Kernel()).open_group)


def but_ok(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.reason) for finding in findings if finding.severity is not Severity.OK]


def test_a_host_that_is_right_climbs_to_the_top() -> None:
    kernel = Kernel()
    findings = climb(host(), kernel)
    assert but_ok(findings) == []
    assert list(dict.fromkeys(finding.code for finding in findings)) == list(CHECKS)
    assert kernel.opened == {19: [A, B], 32: [C, AUDIO]}


def test_nothing_prepared_proves_nothing() -> None:
    findings = climb(host(), passthroughs=[])
    assert worst(findings) is Severity.ERROR
    assert "nothing to verify" in findings[0].reason


@pytest.mark.parametrize("groups", [{}, RECORDED], ids=["no groups", "groups of VFIO's no-IOMMU mode"])
def test_without_an_iommu_nothing_is_opened(groups: dict[str, int]) -> None:
    machine, kernel = host(groups), Kernel()
    del machine.nodes["sys"]["class"]
    if groups:
        for number in set(groups.values()):
            machine.put(f"sys/kernel/iommu_groups/{number}/name", "vfio-noiommu")
    else:
        for function in machine.nodes["sys"]["devices"]["pci0000:00"].values():
            del function["iommu_group"]
    findings = climb(machine, kernel)
    assert but_ok(findings) == [("iommu", "the IOMMU is off: there are no IOMMU groups")]
    assert kernel.opened == {}


def test_a_function_that_is_gone_is_named_with_where_it_may_be_now() -> None:
    machine = host()
    del machine.nodes["sys"]["bus"]["pci"]["devices"][C]
    machine.function("45:00.0", TITAN_XP, "0300", 40)
    kernel = Kernel()
    findings = climb(machine, kernel)
    assert but_ok(findings) == [
        ("functions", f"{C} {TITAN_XP} is not there; the same model is at 0000:45:00.0"),
        ("groups", "group 32 holds 44:00.1 now; recorded was group 32 (44:00.0, 44:00.1)"),
    ]
    assert kernel.opened == {19: [A, B]}


def test_another_card_at_an_address_is_not_opened() -> None:
    kernel = Kernel()
    other = [Passthrough(f.address, "10de:1eb8" if f.address == A else f.ids, f.driver) for f in WANTED]
    ((check, reason),) = but_ok(climb(host(), kernel, other))
    assert (check, "[10de:1db4], not 10de:1eb8" in reason) == ("functions", True)
    assert kernel.opened == {32: [C, AUDIO]}


def test_a_function_in_no_group_cannot_be_given_away() -> None:
    groups = {address: number for address, number in RECORDED.items() if number is not None and address != C}
    problems = but_ok(climb(host(groups)))
    assert any(check == "functions" and C in reason and "is in no IOMMU group" in reason for check, reason in problems)


def test_other_numbers_with_the_same_members_do_no_harm() -> None:
    kernel = Kernel()
    findings = climb(host({A: 21, B: 21, C: 32, AUDIO: 32}), kernel)
    assert but_ok(findings) == []
    assert "group 19 has the number 21 now and the same functions" in [finding.reason for finding in findings]
    assert kernel.opened == {21: [A, B], 32: [C, AUDIO]}


@pytest.mark.parametrize(
    ("groups", "recorded", "reasons"),
    [
        pytest.param(
            {A: 19, B: 20, C: 32, AUDIO: 32},
            RECORDED,
            [
                "group 19 holds 27:00.0 now; recorded was group 19 (27:00.0, 28:00.0)",
                "group 20 holds 28:00.0 now; recorded was group 19 (27:00.0, 28:00.0)",
            ],
            id="split",
        ),
        pytest.param(
            {A: 19, B: 19, C: 32, AUDIO: 32},
            {**RECORDED, B: 20},
            ["group 19 holds 27:00.0, 28:00.0 now; recorded was group 19 (27:00.0), group 20 (28:00.0)"],
            id="merged",
        ),
        pytest.param(
            {A: 19, B: 19, C: 32, AUDIO: 32},
            {A: 19, C: 32, AUDIO: 32},
            ["group 19 holds 27:00.0, 28:00.0 now; recorded was group 19 (27:00.0)"],
            id="joined by a new one",
        ),
        pytest.param(
            {A: 21, B: 21, C: 19, AUDIO: 32},
            RECORDED,
            [
                "group 19 holds 44:00.0 now; recorded was group 32 (44:00.0, 44:00.1)",
                "group 32 holds 44:00.1 now; recorded was group 32 (44:00.0, 44:00.1)",
            ],
            id="split into a number that another group had",
        ),
    ],
)
def test_other_members_are_drift_and_not_opened(
    groups: dict[str, int], recorded: dict[str, int | None], reasons: list[str]
) -> None:
    kernel = Kernel()
    assert but_ok(climb(host(groups), kernel, recorded=recorded)) == [("groups", reason) for reason in reasons]
    assert not any(f"group {number} " in reason for number in kernel.opened for reason in reasons)
    assert len(kernel.opened) == len(set(groups.values())) - len(reasons)


def test_bridges_and_the_chipset_do_not_count_as_members() -> None:
    machine, bridge = host(), "0000:26:00.0"
    machine.function("26:00.1", "1022:1482", "0600", 19)  # the dummy host bridge that EPYCs have beside their ports
    assert but_ok(climb(machine, recorded={**RECORDED, bridge: 19})) == []
    machine.function("26:00.1", "1022:1482", "0600", 19, driver="amd_smn")
    assert "is with amd_smn" in but_ok(climb(machine))[0][1]


def test_a_member_that_was_taken_out_of_host_and_list_is_not_missed() -> None:
    machine, kernel = host(), Kernel()
    del machine.nodes["sys"]["bus"]["pci"]["devices"][B]
    assert but_ok(climb(machine, kernel, [f for f in WANTED if f.address != B])) == []
    assert kernel.opened[19] == [A]


def test_a_gpu_added_to_a_group_recorded_without_an_iommu_is_not_compared() -> None:
    assert but_ok(climb(host(), recorded={**RECORDED, A: None})) == []


def test_groups_of_a_host_whose_iommu_was_off_are_taken_as_they_are() -> None:
    findings = climb(host(), recorded=dict.fromkeys(IDS))
    assert but_ok(findings) == []
    assert any("group 19: 27:00.0, 28:00.0; nothing was recorded" in finding.reason for finding in findings)


@pytest.mark.parametrize("driver", ["snd_hda_intel", "nouveau"])
def test_a_member_with_a_driver_of_the_host_holds_its_group_up(driver: str) -> None:
    kernel = Kernel()
    ((check, reason),) = but_ok(climb(host(drivers={AUDIO: driver}), kernel))
    assert check == "drivers"
    assert reason.startswith("44:00.1 ")
    assert reason.endswith(f"is with {driver}, a driver of the host: group 32 is not viable")
    assert kernel.opened == {19: [A, B]}


@pytest.mark.parametrize("driver", [None, "pci-stub"])
@pytest.mark.parametrize("wanted", [WANTED, WANTED[:3]], ids=["wanted", "not wanted"])
def test_a_companion_that_no_driver_uses_does_no_harm(driver: str | None, wanted: list[Passthrough]) -> None:
    kernel = Kernel()
    findings = climb(host(drivers={AUDIO: driver}), kernel, wanted)
    assert worst(findings) is (Severity.WARNING if wanted is WANTED else Severity.OK)
    assert kernel.opened == {19: [A, B], 32: [C]}


@pytest.mark.parametrize("driver", [None, "pci-stub"])
def test_a_gpu_must_be_with_its_vfio_driver(driver: str | None) -> None:
    findings = climb(host(drivers={C: driver}))
    assert worst(findings) is Severity.ERROR
    assert "not with vfio-pci" in but_ok(findings)[0][1]


def test_a_variant_of_vfio_pci_is_a_vfio_driver() -> None:
    kernel = Kernel()
    variant = [*WANTED[:2], Passthrough(C, TITAN_XP, "nvgrace-gpu-vfio-pci"), WANTED[3]]
    assert but_ok(climb(host(drivers={C: "nvgrace-gpu-vfio-pci"}), kernel, variant)) == []
    findings = climb(host(drivers={C: "mlx5_vfio_pci"}), kernel)
    ((_, reason),) = but_ok(findings)
    assert reason.startswith("44:00.0 ")
    assert reason.endswith("is with mlx5_vfio_pci, not with vfio-pci")
    assert worst(findings) is Severity.WARNING
    assert kernel.opened[32] == [C, AUDIO]


def test_a_group_without_its_device_node_is_not_opened() -> None:
    machine, kernel = host(), Kernel()
    del machine.nodes["dev"]["vfio"]["19"]
    assert but_ok(climb(machine, kernel)) == [("device-nodes", "there is no /dev/vfio/19")]
    assert kernel.opened == {32: [C, AUDIO]}


def test_a_group_that_a_vm_uses_is_fine() -> None:
    findings = climb(host(), Kernel(refused={19: VfioProblem.BUSY}))
    assert but_ok(findings) == []
    assert any("group 19 is in use by a VM" in finding.reason for finding in findings)


@pytest.mark.parametrize("problem", [problem for problem in VfioProblem if problem is not VfioProblem.BUSY])
def test_what_vfio_refuses_is_blocked_with_its_reason(problem: VfioProblem) -> None:
    findings = climb(host(), Kernel(refused={19: problem}))
    assert Finding("opened", Severity.ERROR, "", "the reason for 19", "the remedy", {"group": 19}) in findings
    assert any("44:00.0" in finding.reason for finding in findings if finding.code == "opened")


@pytest.mark.parametrize(
    ("read", "says"),
    [("ffff:ffff", "was opened and does not answer"), ("10de:1eb8", "answers as 10de:1eb8, not 10de:1db4")],
)
def test_a_config_space_that_is_wrong_is_blocked(read: str, says: str) -> None:
    ((check, reason),) = but_ok(climb(host(), Kernel({B: read})))
    assert (check, says in reason, "28:00.0" in reason) == ("opened", True, True)


def test_every_blocked_finding_says_what_to_do() -> None:
    machine = host({A: 19, B: 19, C: 33, AUDIO: 32}, drivers={A: "nouveau"})
    without_node = host()
    del without_node.nodes["dev"]["vfio"]["19"]
    findings = [*climb(machine), *climb(host(), Kernel({B: "ffff:ffff"})), *climb(Sysfs()), *climb(without_node)]
    blocked = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert {finding.code for finding in blocked} == set(CHECKS)
    assert all(finding.remedy for finding in blocked)


def test_without_vfio_the_refusal_says_so(tmp_path: Path) -> None:
    with pytest.raises(VfioRefusedError, match="VFIO is not loaded: modprobe vfio-pci") as caught:
        open_group(19, [A], str(tmp_path))
    assert caught.value.problem is VfioProblem.NO_NODE


def test_a_node_that_is_not_vfio_is_a_failure_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").symlink_to("/dev/null")
    with pytest.raises(VfioRefusedError, match="ioctl") as caught:
        open_group(19, [A], str(tmp_path))
    assert caught.value.problem is VfioProblem.FAILED
