"""What a server that accepts GPUs runs, on a made-up machine, and what is read of its console."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gpuyard.health.acceptance_guest import AcceptanceOutput, GuestVerdict, accept_data, read_console
from gpuyard_lab.acceptance_guest import accept_orders

NONCE = "0123456789abcdef" * 2
V100, BAR = b"\xde\x10\xb4\x1d", "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n"
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMI = 'case "$1" in *driver_version*) echo 570.1 ;; *) echo "Tesla V100, 00000000:05:00.0, 0" ;; esac'


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools: dict[str, str] = {"nvidia-smi": SMI}
        for folder in ("dev", "bin", "sys/class/tty/console", "run"):
            (root / folder).mkdir(parents=True)
        (root / "sys/class/tty/console/active").write_text("tty0 ttyS0\n")
        (root / "dev/ttyS0").touch()
        (root / "kernel.log").touch()

    def plug(self, number: int = 0, config: bytes = V100, bars: str = BAR + 5 * NO_BAR) -> None:
        folder = self.root / f"sys/bus/pci/devices/0000:0{number + 5}:00.0"
        folder.mkdir(parents=True)
        for name, text in (("vendor", "0x10de\n"), ("device", "0x1db4\n"), ("class", "0x030200\n"), ("resource", bars)):
            (folder / name).write_text(text)
        (folder / "config").write_bytes(config + bytes(60))

    def accept(self, gpus: int = 1) -> AcceptanceOutput:
        """What gpuyard hears of it."""
        user_data = accept_data(NONCE, gpus, {"10de:1db4"})
        assert accept_orders(user_data).ids == {"10de:1db4"}
        document = YAML(typ="safe").load(user_data)
        for file in document["write_files"]:
            path = self.root / file["path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["content"])
        for name, text in self.tools.items():
            tool = self.root / "bin" / name
            tool.write_text(f"#!/bin/sh\n{text}\n")
            tool.chmod(0o755)
        ((_, script),) = document["runcmd"]
        environment = {
            "PATH": f"{self.root}/bin:{os.defpath}", "GPUYARD_ROOT": str(self.root),
            "GPUYARD_SYSFS": str(self.root / "sys"), "GPUYARD_DMESG": f"cat {self.root}/kernel.log",
            "GPUYARD_PAUSE": "0.05",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", str(self.root / script.lstrip("/"))], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        console = (self.root / "dev/ttyS0").read_text()
        assert re.search(r"^gpuyard-accept: [0-9a-f]{32} over$", console, re.MULTILINE)
        return read_console(console, NONCE, gpus)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_gpu_that_is_well_passes(machine: Machine) -> None:
    machine.plug()
    assert machine.accept() == AcceptanceOutput(True, GuestVerdict.OK, "Tesla V100 at 00000000:05:00.0", "570.1")


def test_what_is_wrong_with_it_is_said(machine: Machine) -> None:
    assert machine.accept().words == "0 of 1 GPUs (10de:1db4) are on the machine's PCI bus"
    machine.plug(config=b"\xff\xff\xff\xff")
    output = machine.accept()
    assert output.verdict is GuestVerdict.FAILED


@pytest.mark.parametrize(
    ("config", "bars", "words"),
    [
        (b"\xff\xff\xff\xff", BAR, "0000:05:00.0 does not answer: its config space reads 0xff"),
        (V100, 6 * NO_BAR, "0000:05:00.0 has no BAR in the guest's memory"),
    ],
)
def test_what_the_bus_shows(tmp_path: Path, config: bytes, bars: str, words: str) -> None:
    machine = Machine(tmp_path)
    machine.plug(config=config, bars=bars)
    output = machine.accept()
    assert (output.verdict, output.words) == (GuestVerdict.FAILED, words)


def test_an_image_without_a_driver_says_nothing_of_the_gpu(machine: Machine) -> None:
    machine.plug()
    machine.tools = {}
    output = machine.accept()
    assert output.verdict is GuestVerdict.UNABLE
    assert "there is no nvidia-smi" in output.words


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"nvidia-smi": "echo 'No devices were found'; exit 6"}, "nvidia-smi failed (6): No devices were found"),
        ({"nvidia-smi": 'echo "Tesla V100, 00000000:05:00.0, 7"'}, "00000000:05:00.0 has 7 uncorrected ECC errors"),
        ({"nvidia-smi": SMI, "gpu_burn": "echo 'GPU 0: FAULTY'"}, "gpu_burn: GPU 0: FAULTY"),
        ({"nvidia-smi": SMI, "nvbandwidth": "echo broken; exit 3"}, "nvbandwidth ended with status 3: broken"),
    ],
)
def test_what_the_driver_and_tools_find(tmp_path: Path, tools: dict[str, str], words: str) -> None:
    machine = Machine(tmp_path)
    machine.plug()
    machine.tools = tools
    output = machine.accept()
    assert (output.verdict, output.words) == (GuestVerdict.FAILED, words)


TREES = {
    "t4": """\
<nvidia_smi_log>
  <gpu id="00000000:00:1E.0">
    <pci><pci_gpu_link_info>
        <pcie_gen>
          <max_link_gen>3</max_link_gen>
          <current_link_gen>3</current_link_gen>
        </pcie_gen>
        <link_widths>
          <max_link_width>16x</max_link_width>
          <current_link_width>8x</current_link_width>
        </link_widths>
    </pci_gpu_link_info></pci>
    <ecc_errors>
      <volatile>
        <dram_uncorrectable>0</dram_uncorrectable>
      </volatile>
      <aggregate>
        <sram_correctable>0</sram_correctable>
        <sram_uncorrectable>0</sram_uncorrectable>
        <dram_correctable>0</dram_correctable>
        <dram_uncorrectable>0</dram_uncorrectable>
      </aggregate>
    </ecc_errors>
    <retired_pages>
      <multiple_single_bit_retirement>
        <retired_count>0</retired_count>
      </multiple_single_bit_retirement>
      <double_bit_retirement>
        <retired_count>0</retired_count>
      </double_bit_retirement>
      <pending_blacklist>No</pending_blacklist>
      <pending_retirement>No</pending_retirement>
    </retired_pages>
    <remapped_rows>N/A</remapped_rows>
  </gpu>
</nvidia_smi_log>
"""
}
"""A healthy T4 in a slot of eight lanes, driver 515.105.01: lines of what `nvidia-smi -q -x` said (influxdata/telegraf
8ef97ac, plugins/inputs/nvidia_smi/testdata/tesla-t4.xml)."""
ROWS = """<remapped_rows>
      <remapped_row_corr>0</remapped_row_corr>
      <remapped_row_unc>{unc}</remapped_row_unc>
      <remapped_row_pending>{pending}</remapped_row_pending>
      <remapped_row_failure>{failure}</remapped_row_failure>
    </remapped_rows>"""
"""As cards from Ampere on have it (nvsmi_device_v12.dtd)."""


def described(change: tuple[str, str] = ("", "")) -> str:
    """nvidia-smi of such a card, changed in one place."""
    text = TREES["t4"].replace(*change) if change[0] else TREES["t4"]
    return f"case \"$1\" in -q) cat <<'END'\n{text}END\n;; *) {SMI}\n;; esac"


def rows(unc: int = 0, pending: str = "No", failure: str = "No") -> tuple[str, str]:
    return "<remapped_rows>N/A</remapped_rows>", ROWS.format(unc=unc, pending=pending, failure=failure)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rows(failure="Yes"), "has a row of its memory that could not be remapped"),
        (rows(pending="Yes"), "has a row remapping that is still pending after a reset"),
        (("retirement>No<", "retirement>Yes<"), "has a page retirement that is still pending in a new server"),
        (
            ("</aggregate>", "<sram_threshold_exceeded>Yes</sram_threshold_exceeded>\n</aggregate>"),
            "has more uncorrectable SRAM errors than NVIDIA lets a card have",
        ),
    ],
)
def test_what_a_card_has_kept_of_its_memory_fails_it(machine: Machine, change: tuple[str, str], words: str) -> None:
    """The flags of NVIDIA's "GPU Memory Error Management" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt: "RMA Policy
    Thresholds for Row-Remapping", "... for SRAM Failure Modes", "Error Recovery and Response Flags")."""
    machine.plug()
    machine.tools["nvidia-smi"] = described(change)
    output = machine.accept()
    assert (output.verdict, output.words) == (GuestVerdict.FAILED, f"00000000:00:1E.0 {words}")


LOST = "a GPU has fallen off the bus, or cannot be reached any more"
BLAMED = {
    8: "the external power cables of a GPU are not properly attached",
    10: "the kernel has an interrupt issue with a GPU",
    14: "the InfoROM of a GPU is corrupted",
    15: LOST,
}
"""Exit codes of nvidia-smi that blame a GPU (docs.nvidia.com/deploy/nvidia-smi, "Return Value")."""
CORRUPTED = "WARNING: infoROM is corrupted at gpu 0000:00:1E.0"
"""The line below the table of such a card (pytorch/pytorch#87464; the same in NVIDIA/gpu-operator#20)."""


@pytest.mark.parametrize("says", [CORRUPTED, ""])
def test_a_corrupted_inforom_fails_it(machine: Machine, says: str) -> None:
    """nvidia-smi without arguments ends with 14 then, and nvidia-smi -q -x with 0 (microsoft/pai#3756). 14 is "infoROM
    is corrupted" (docs.nvidia.com/deploy/nvidia-smi, "Return Value")."""
    machine.plug()
    table = f"echo '| NVIDIA-SMI 515.105.01 |'; echo '{says}'"
    machine.tools["nvidia-smi"] = f"if [ $# = 0 ]; then {table}; exit 14; fi\n{described()}"
    output = machine.accept()
    words = "0000:00:1E.0 has a corrupted InfoROM" if says else "nvidia-smi ended with status 14: " + BLAMED[14]
    assert (output.verdict, output.words) == (GuestVerdict.FAILED, words)


def test_a_corrupted_inforom_fails_it_where_the_exit_code_does_not_tell(machine: Machine) -> None:
    """An image may wrap nvidia-smi; the line counts by itself."""
    machine.plug()
    machine.tools["nvidia-smi"] = f"[ $# != 0 ] || echo '{CORRUPTED}'\n{described()}"
    assert machine.accept().words == "0000:00:1E.0 has a corrupted InfoROM"


NOTHING_YET = {"ecc-corrected": 0, "ecc-uncorrected": 0, "pages-retired": 0}
OLD_ECC = """<aggregate>
      <single_bit>
        <device_memory>4</device_memory>
        <total>5</total>
      </single_bit>
      <double_bit>
        <device_memory>N/A</device_memory>
        <total>900000</total>
      </double_bit>"""
"""As a Pascal card has it (influxdata/telegraf c68ce79, tesla_p4.xml beside the T4's), with numbers."""
HOPPER_ECC = """<aggregate>
      <sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>2</sram_uncorrectable_secded>"""
"""As newer drivers have it (nvsmi_device_v12.dtd)."""


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (("", ""), {}),
        (("<sram_uncorrectable>0", "<sram_uncorrectable>N/A"), {}),
        (("<sram_uncorrectable>0", "<sram_uncorrectable>3"), {"ecc-uncorrected": 3}),
        (("<dram_correctable>0", "<dram_correctable>12"), {"ecc-corrected": 12}),
        (("<retired_count>0", "<retired_count>2"), {"pages-retired": 4}),
        (("<aggregate>", OLD_ECC), {"ecc-corrected": 5, "ecc-uncorrected": 900000}),
        (("<aggregate>", HOPPER_ECC), {"ecc-uncorrected": 3}),
        (rows(unc=2), {"rows-corrected": 0, "rows-uncorrected": 2}),
    ],
)
def test_what_a_card_has_kept_is_said_by_value(
    machine: Machine, change: tuple[str, str], facts: dict[str, float]
) -> None:
    """And fails none by itself: gpuyard knows what it had before. Both counts of pages change at once."""
    machine.plug()
    machine.tools["nvidia-smi"] = described(change)
    output = machine.accept()
    assert (output.verdict, output.words) == (GuestVerdict.OK, "Tesla V100 at 00000000:05:00.0")
    assert output.facts == NOTHING_YET | facts


WORKS = "echo 'GPU 0: OK'; sleep 1"


def links(machine: Machine, *trees: tuple[str, str]) -> AcceptanceOutput:
    """nvidia-smi of a GPU whose link is as the T4's while gpu_burn works, and asleep before and after; one GPU for
    each change of its tree."""
    machine.plug()
    both = "".join(TREES["t4"].replace(*tree) for tree in trees) or TREES["t4"]
    asleep = both.replace("<current_link_gen>3", "<current_link_gen>1")
    busy = machine.root / "busy"
    machine.tools |= {
        "nvidia-smi": f"case \"$1\" in -q) if [ -e {busy} ]; then cat <<'END'\n{both}END\n"
        f"else cat <<'END'\n{asleep}END\nfi ;; *) {SMI}\n;; esac",
        "gpu_burn": f"touch {busy}; {WORKS}; rm {busy}",
    }
    return machine.accept()


def test_the_link_is_read_while_the_card_works(machine: Machine) -> None:
    """Generation 3 is 8 GT/s (PCI Express Base Specification)."""
    output = links(machine)
    assert output.words == "Tesla V100 at 00000000:05:00.0; gpu_burn ran for 30 s"
    assert (output.facts["link-width"], output.facts["link-speed"]) == (8, 8)
    assert output.short == {"link-width": (8, 16)}


@pytest.mark.parametrize("ends", [("4", "3"), ("3", "4"), ("3", "N/A")])
def test_the_lesser_of_card_and_slot_is_what_a_link_can(machine: Machine, ends: tuple[str, str]) -> None:
    """Newer drivers have both ends, as max_device_link_gen and max_host_link_gen (a100-sxm4-v12.xml beside
    the T4's)."""
    both = f"<max_device_link_gen>{ends[0]}</max_device_link_gen>\n<max_host_link_gen>{ends[1]}</max_host_link_gen>"
    output = links(machine, ("<max_link_gen>3</max_link_gen>", f"<max_link_gen>4</max_link_gen>\n{both}"))
    assert "link-speed" not in output.short


def test_of_several_gpus_each_says_what_it_shows(machine: Machine) -> None:
    output = links(
        machine,
        ("<current_link_width>8x", "<current_link_width>16x"),
        ('id="00000000:00:1E.0"', 'id="00000000:00:1F.0"'),
    )
    assert (output.facts["link-width"], output.short) == (8, {"link-width": (8, 16)})
    said_of_links = re.findall(r"fact (link-width .*)", (machine.root / "dev/ttyS0").read_text())
    assert sorted(said_of_links) == ["link-width 16 of 16", "link-width 8 of 16"]


def test_a_virtual_gpu_has_no_link(machine: Machine) -> None:
    """All is N/A there (tesla_p4.xml, as above)."""
    output = links(machine, ("3</current_link_gen>", "N/A</current_link_gen>"), ("8x</cur", "N/A</cur"))
    assert output.verdict is GuestVerdict.OK


TWO = """\
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.59     12.25

SUM host_to_device_memcpy_ce 67.84
COEFFICIENT_OF_VARIATION host_to_device_memcpy_ce 0.00
"""
"""As nvbandwidth v0.10 prints it for H100s, with two columns of them and one value changed."""
ONE = """\
nvbandwidth Version: v0.5

Device 0: NVIDIA A10

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0
 0     25.17

SUM host_to_device_memcpy_ce 25.17
"""
"""As nvbandwidth v0.5 prints it on an A10."""


@pytest.mark.parametrize(
    ("prints", "bandwidth"), [(ONE, 25.17), (TWO, 12.25), ("SUM host_to_device_memcpy_ce 0.4\n", 0.4), ("?\n", None)]
)
def test_bandwidth_is_said_by_value(machine: Machine, prints: str, bandwidth: float | None) -> None:
    machine.plug()
    machine.tools["nvbandwidth"] = f"cat <<'END'\n{prints}END"
    output = machine.accept()
    assert (output.verdict, output.facts.get("bandwidth")) == (GuestVerdict.OK, bandwidth)


# What the work brings.


def at_work(machine: Machine, then: str, *, log: str = "") -> None:
    """gpu_burn ends well; from then on nvidia-smi is what `then` does, and the kernel's log has this line."""
    machine.plug()
    burnt = machine.root / "burnt"
    machine.tools["gpu_burn"] = f"touch {burnt}; echo '{log}' >>{machine.root}/kernel.log; echo 'GPU 0: OK'"
    machine.tools["nvidia-smi"] = f"if [ -e {burnt} ]; then {then}\nelse {described()}\nfi"


def ends(status: int, says: str = "") -> str:
    """An nvidia-smi whose -q ends like this, and that answers other questions."""
    return f"case \"$1\" in -q) echo '{says}'; exit {status} ;; *) {SMI}\n;; esac"


@pytest.mark.parametrize("status", BLAMED)
def test_an_exit_code_that_blames_a_gpu_fails_it(machine: Machine, status: int) -> None:
    machine.plug()
    machine.tools["nvidia-smi"] = ends(status)
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED, f"nvidia-smi -q -x ended with status {status}: {BLAMED[status]}"
    )  # fmt: skip


def test_a_gpu_that_is_lost_while_it_works_fails(machine: Machine) -> None:
    """nvidia-smi ends with 15 then, "The GPU has fallen off the bus or has otherwise become inaccessible" (the same
    list of return values)."""
    at_work(machine, ends(15))
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED, f"after the work: nvidia-smi -q -x ended with status 15: {LOST}"
    )  # fmt: skip


def test_what_does_not_answer_in_time_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.health.acceptance_guest.CHECK_SECONDS", 1)
    machine.plug()
    machine.tools["nvidia-smi"] = f'case "$1" in -q) sleep 30 ;; *) {SMI}\n;; esac'
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED, "nvidia-smi -q -x ended with status 124: it has not answered in 1 s"
    )  # fmt: skip


def test_a_call_that_worked_before_has_to_work_after_the_work(machine: Machine) -> None:
    """255 is "Other error or internal driver error occurred" (the same list): an image whose nvidia-smi knows no -x may
    always end so."""
    at_work(machine, ends(255, "Unknown Error"))
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED,
        "after the work: nvidia-smi -q -x ended with status 255: it worked before; now it says: Unknown Error",
    )
    machine.root.joinpath("burnt").unlink()
    machine.root.joinpath("dev/ttyS0").write_text("")
    machine.tools["nvidia-smi"] = ends(255, "Unknown Error")
    assert machine.accept().verdict is GuestVerdict.OK


def test_ecc_errors_that_come_with_the_work_fail_it(machine: Machine) -> None:
    """Volatile ones, which gpu-check asks for: the driver counts them from when it is loaded (nvml.h,
    NVML_VOLATILE_ECC)."""
    at_work(machine, f"case \"$1\" in -q) {described()} ;; *) echo 'Tesla V100, 00000000:05:00.0, 7' ;; esac")
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED, "after the work: 00000000:05:00.0 has 7 uncorrected ECC errors"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("NVRM: Xid (PCI:0000:05:00): 48, pid=7, name=gpu_burn, DBE", "the kernel log has "),
        ("NVRM: Xid (PCI:0000:05:00): 45, pid=7, name=gpu_burn, Ch 00000008", ""),
    ],
)
def test_an_xid_that_comes_with_the_work_fails_it(machine: Machine, log: str, words: str) -> None:
    """Lines as krcReportXid_IMPL prints them (NVIDIA/open-gpu-kernel-modules, kernel_rc.c). NVIDIA's catalogue has
    Xid 45 ignored: a program was ended, as gpu_burn ends its own (gpu_burn-drv.cpp, listenClients)."""
    at_work(machine, described(), log=log)
    output = machine.accept()
    if words:
        assert (output.verdict, output.words) == (GuestVerdict.FAILED, f"after the work: {words}{log}")
    else:
        assert output.verdict is GuestVerdict.OK


def test_a_process_of_gpu_burn_that_died_fails_it(machine: Machine) -> None:
    """gpu_burn calls a GPU OK and ends with 0 when the process of another one lives on (wilicc/gpu-burn 0831a45,
    gpu_burn-drv.cpp, listenClients: clientFaulty)."""
    machine.plug()
    machine.tools["gpu_burn"] = "echo '100.0%  proc d: -1 (0 Gflop/s)  errors: 0  (DIED!)'; echo '\tGPU 0: OK'"
    output = machine.accept()
    assert (output.verdict, output.words) == (
        GuestVerdict.FAILED, "gpu_burn: the process of a GPU died while it worked"
    )  # fmt: skip
