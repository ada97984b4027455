"""Whatever a machine's files or a recording hold, there is an answer or an error with a sentence, never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.host import report
from gpuyard.host.checks import Machine, check
from gpuyard.host.checks.changed_since_recording import drift
from gpuyard.host.checks.prepared import verify
from gpuyard.host.checks.vfio import VfioProblem, VfioRefusedError
from gpuyard.host.holders import holders
from gpuyard.host.judge import judge
from gpuyard.host.needs import needed_by_host
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation import plan_text
from gpuyard.host.preparation.journal import current
from gpuyard.host.preparation.passthrough import read_list
from gpuyard.host.preparation.plan import plan_preparation
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.recording import dumps, record, replay, replay_tree
from gpuyard.host.scan import scan
from gpuyard.host.tree import LINK, FileTree, RecordedTree, Tree
from gpuyard.model.errors import GpuyardError
from gpuyard.model.host import Inventory
from gpuyard.model.text import printable
from tests.support.mangled import Mangler, machine
from tests.support.sysfs import T4, V100, Sysfs, write

SEED = 20261122
QUICK, MANY = 500, 10_000


def look(tree: Tree, names: PciIds) -> Inventory:
    """Everything that is done with a host without changing it; what each returns must be printable."""
    inventory = scan(tree, names)
    slots = judge(inventory)
    machine = Machine(tree, inventory, slots)
    findings = [*check(machine), *verify(machine, read_list(tree), {}, refuse)]
    plan = plan_preparation(machine, Wishes(), current(tree), holders(tree))
    lines = [*plan_text.lines(plan_text.as_dict(plan)), *report.lines(inventory, everything=True)]
    printable(
        "\n".join(
            [*lines, *report.verdict_lines(inventory), *(line for finding in findings for line in finding.lines())]
        )
    ).encode()
    report.to_json(inventory)
    drift(replay(dumps(record(tree, names, "by a test")), "x"), inventory)
    return inventory


def recorded(text: str) -> Tree:
    return replay_tree(text, "a recording")[0]


def refuse(group: int, addresses: Sequence[str]) -> dict[str, str]:
    raise VfioRefusedError(VfioProblem.FAILED, f"group {group} is not to be opened", "nothing")


def names() -> PciIds:
    return PciIds([])


def try_one(tree: Callable[[], Tree], what: str) -> None:
    """`what`: everything that is needed to see it again."""
    try:
        look(tree(), names())
    except GpuyardError as error:
        if len(str(error).split()) < 4:
            raise AssertionError(f"{error}: no sentence: {what}") from error
    except Exception as error:
        raise AssertionError(f"{error!r}: {what}") from error


def try_trees(times: int, seed: int) -> None:
    mangler = Mangler(machine().nodes, seed)
    for number in range(times):
        nodes = mangler.tree()
        try_one(partial(RecordedTree, nodes), f"tree {number} of seed {seed}: {json.dumps(nodes)}")


def try_recordings(times: int, seed: int) -> None:
    mangler, whole = Mangler({}, seed), machine().recording()
    for number in range(times):
        text = mangler.text(whole)
        try_one(partial(recorded, text), f"recording {number} of seed {seed}: {text}")


def test_the_machine_that_is_damaged_is_whole_before() -> None:
    inventory = look(RecordedTree(machine().nodes), names())
    assert [gpu.short_address for gpu in inventory.gpus] == ["27:00.0", "28:00.0"]
    assert {"0000:01:00.0", "0000:41:00.0"} <= inventory.needed_by_host.keys()


def test_a_damaged_machine_gives_no_traceback() -> None:
    try_trees(QUICK, SEED)


def test_a_damaged_recording_gives_no_traceback() -> None:
    try_recordings(QUICK, SEED)


@pytest.mark.slow
def test_nor_do_ten_thousand() -> None:
    try_trees(MANY - MANY // 4, SEED + 1)
    try_recordings(MANY // 4, SEED + 1)


def test_files_as_some_drivers_and_vms_have_them(tmp_path: Path) -> None:
    """Zeros behind the newline, folders for files, loops of links, names that are no text."""
    made = machine()
    made.put("sys/devices/virtual/block/dm-3/slaves/dm-3", {LINK: "../../dm-3"})
    made.put("sys/devices/virtual/net/bond0/lower_bond0", {LINK: "../bond0"})
    made.put("proc/self/mountinfo", "22 1 252:3 / / rw - ext4 /dev/dm-3 rw")
    made.put("sys/dev/block/252:3", {LINK: "../../devices/virtual/block/dm-3"})
    made.put("proc/sys/kernel/osrelease", "6.1\0/../..")
    made.put("sys/devices/pci0000:00/0000:28:00.2/usb1/1-1/1-2", {LINK: "../../usb1"})
    write(made, tmp_path)
    gpu = tmp_path / "sys/devices/pci0000:00/0000:28:00.0"
    (gpu / "vendor").write_bytes(b"0x10de\n\0")
    (gpu / "revision").unlink()
    (gpu / "revision").mkdir()
    net = os.fsencode(tmp_path / "sys/class/net")
    os.symlink(os.fsencode(tmp_path / "sys/devices/pci0000:00/0000:41:00.0/net/eno2"), net + b"/e\xff0")
    inventory = look(FileTree(str(tmp_path)), names())
    assert [gpu.ids for gpu in inventory.gpus] == ["10de:1db4", T4]
    assert "root disk" in inventory.needed_by_host["0000:01:00.0"]
    assert "eno1" in inventory.needed_by_host["0000:41:00.0"]


def test_a_loop_below_the_root_disk_is_named_once(tmp_path: Path) -> None:
    made = Sysfs().function("01:00.0", "144d:a808", "0108", 5)
    made.put("proc/self/mountinfo", "22 1 252:3 / / rw - ext4 /dev/dm-3 rw")
    made.put("sys/dev/block/252:3", {LINK: "../../class/block/dm-3"})
    for name, below in (("dm-3", "dm-4"), ("dm-4", "dm-3")):
        made.put(f"sys/class/block/{name}/slaves/{below}", {LINK: "x"})
    assert needed_by_host(RecordedTree(made.nodes)) == {}


def test_what_a_recording_says_cannot_steer_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    made = json.loads(Sysfs().function("27:00.0", V100, group=1, driver="x\x1b]0;owned\x07").recording())
    made["names"] = {V100: "V\x1b[2J100 \ud800"}
    file.write_text(json.dumps(made))
    for words in (["scan"], ["check"]):
        result = CliRunner().invoke(app, ["host", *words, "--from", str(file)])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "27:00.0" in result.output
        assert "\x1b" not in result.output
