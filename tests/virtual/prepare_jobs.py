"""What test_prepare.py does inside the virtual hypervisor: ``python -m tests.virtual.prepare_jobs NAME``.

The product runs as an operator runs it, as a process. Answers go to $JOB as JSON; what they should be is said in the
test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuyard.host.local_host import LocalHost
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation.bind import BUS
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.preparation.preparation import Preparation
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.tree import FileTree
from tests.contract.binding import RULES, Bench

DEVICES = Path("/sys/bus/pci/devices")
WATCHED = (
    "etc/default",
    "etc/gpuyard",
    "etc/modprobe.d",
    "etc/systemd/system",
    "usr/local/lib/gpuyard",
    "var/lib/gpuyard",
)
"""Where something of ours could stay behind."""
ABOVE = ("etc", "usr/local/lib", "var/lib")
Answers = dict[str, object]


def gpuyard(*words: str) -> dict[str, object]:
    """A verb's result, with the seconds that it took."""
    command = [sys.executable, "-m", "gpuyard.host", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [done.returncode] == [line["exit"] for line in lines[-1:]], done.stderr
    return {**lines[-1], "texts": [line["text"] for line in lines[:-1]]}


def drivers() -> dict[str, list[str]]:
    """Address -> driver and override of every function that is no bridge."""
    drivers_by_address = {}
    for device in sorted(DEVICES.iterdir()):
        if not (device / "class").read_text().startswith("0x0604"):
            link = device / "driver"
            override = (device / "driver_override").read_text().strip()
            drivers_by_address[device.name] = [link.resolve().name if link.exists() else "", override]
    return drivers_by_address


def files() -> dict[str, str]:
    """Path -> mode and content of every file in the folders where we could leave one."""
    entries = {f"names in {folder}": " ".join(sorted(os.listdir(f"/{folder}"))) for folder in ABOVE}
    for folder in WATCHED:
        for path in sorted(Path("/", folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                entries[str(path)] = f"{path.stat().st_mode:o} {hash(path.read_bytes())}"
            elif path.is_dir():
                entries[str(path)] = f"{path.stat().st_mode:o}"
    return entries


def problems(result: dict[str, object]) -> list[object]:
    findings = result["findings"]
    assert isinstance(findings, list)
    return [finding for finding in findings if finding["severity"] != "ok"]


def cycle() -> Answers:
    """check, plan, apply, verify, boot script, undo."""
    before_drivers, before_files = drivers(), files()
    answers: Answers = {"before": before_drivers, "check": gpuyard("check"), "plan": gpuyard("plan", *WORDS)}
    answers["untouched by plan"] = (drivers(), files()) == (before_drivers, before_files)
    answers["apply"] = gpuyard("apply", "--yes", *WORDS)
    answers["applied"] = drivers()
    answers["plan again"] = gpuyard("plan")
    answers["verify"] = problems(gpuyard("verify"))
    answers["at boot"] = at_boot()
    answers["undo"] = gpuyard("undo", "--yes")
    answers["undone"] = drivers() == before_drivers
    answers["left behind"] = sorted(set(files().items()) ^ set(before_files.items()))
    answers["undo again"] = gpuyard("undo", "--yes")
    return answers


def at_boot() -> dict[str, object]:
    """What the script does at a boot: all given functions without a driver, and a native driver is loaded first."""
    listed = [line.split()[0] for line in (FileTree().read(LIST_FILE) or "").splitlines() if line[0] != "#"]
    unbind(listed)
    for address in listed:
        (DEVICES / address / "driver_override").write_text("\n")
    subprocess.run(["modprobe", "-r", "vfio_pci"], check=True)
    subprocess.run(["modprobe", "-r", "snd_hda_intel"], check=False)
    subprocess.run(["modprobe", "snd_hda_intel"], check=True)  # as udev does when it meets the audio function
    claimed = drivers()
    unbind(listed)
    native = {address: driver for address, driver in NATIVE.items() if address in listed}
    for address, driver in native.items():  # a driver inside the kernel would have taken it before
        (DEVICES / address / "driver_override").write_text(driver)
        Path("/sys/bus/pci/drivers_probe").write_text(address)
    taken = drivers()
    bound = subprocess.run(["/usr/local/lib/gpuyard/passthrough", "bind"], capture_output=True, text=True, check=False)
    return {"claimed": claimed, "taken": taken, "bind": [bound.returncode, bound.stderr], "bound": drivers()}


def unbind(addresses: list[str]) -> None:
    for path in (DEVICES / address / "driver" / "unbind" for address in addresses):
        if path.exists():
            path.write_text(path.parts[-3])


def contract() -> Answers:
    """The rules that the model of a kernel keeps, on this kernel. Rule -> what is wrong, empty when nothing is."""
    host = LocalHost()
    host.run(["modprobe", "vfio-pci"])
    (audio, *_) = [address for address, driver in NATIVE.items() if driver == "snd_hda_intel"]
    bridge = next(d.name for d in sorted(DEVICES.iterdir()) if (d / "class").read_text().startswith("0x0604"))
    answers: Answers = {}
    for rule in RULES:
        bench = Bench(host, audio, "snd_hda_intel", bridge)
        try:
            rule(bench)
            answers[rule.__name__] = ""
        except AssertionError:
            answers[rule.__name__] = traceback.format_exc()
        bench.reset()
    return answers


def crashes() -> Answers:
    """Apply is killed before its first change, its second, and so on; after each, undo brings everything back."""
    apply(LocalHost())  # so that what a child has to work out is there already: processes are slow here
    undo(LocalHost())
    before = drivers(), files()
    survived: list[int] = []
    for changes in range(200):
        killed = in_child(lambda: apply(KilledHost(changes)))  # noqa: B023
        undo(LocalHost())
        if (drivers(), files()) != before:
            left = sorted(set(files().items()) ^ set(before[1].items()))
            return {"not recovered": changes, "drivers": drivers(), "files": left}
        survived.append(changes)
        if not killed:
            break
    finished = in_child(lambda: apply(KilledHost(len(survived) // 2)))
    apply(LocalHost())
    answers: Answers = {"survived": len(survived), "killed": finished, "applied after a crash": drivers()}
    for changes in range(0, 200, 5):
        killed = in_child(lambda: undo(KilledHost(changes)))  # noqa: B023
        undo(LocalHost())
        if (drivers(), files()) != before:
            return {**answers, "undo not recovered": changes}
        if not killed:
            return answers
        apply(LocalHost())
    return {**answers, "undo never ended": True}


def live() -> Answers:
    """Seconds that changing the drivers of all GPUs takes, and what the script of the boot takes for the same."""
    unbind([address for address, binding in drivers().items() if binding[0] == "vfio-pci"])
    host = LocalHost()
    host.write_attribute(
        f"{BUS}/devices/{min(d.name for d in DEVICES.iterdir())}/driver_override", ""
    )  # starts the child
    preparation = Preparation(host, PciIds([], {}))
    plan = preparation.plan(Wishes())
    began = time.monotonic()
    marks: list[float] = []
    preparation.apply(plan, Wishes(), datetime.now(UTC), lambda number, step: marks.append(time.monotonic()))
    ended = time.monotonic()
    groups = [number for number, step in enumerate(plan.steps) if step.kind == "group"]
    moved = [address for address, binding in drivers().items() if binding[0] == "vfio-pci"]
    unbind(moved)
    script = time.monotonic()
    subprocess.run(["/usr/local/lib/gpuyard/passthrough", "bind"], check=True)
    by_script = time.monotonic() - script
    return {"gpus": len(moved), "apply": ended - began, "bind": ended - marks[groups[0]], "script": by_script}


class KilledHost(LocalHost):
    """Kills itself with SIGKILL instead of making one more change than it may."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.left = changes

    def __getattribute__(self, name: str) -> Any:
        if name in ("write_file", "copy_file", "remove_file", "remove_folder", "write_attribute", "run"):
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getattribute__(name)


def in_child(work: Callable[[], None]) -> bool:
    """Whether the child was killed."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0


def apply(host: LocalHost) -> None:
    preparation = Preparation(host, PciIds([], {}))
    plan = preparation.plan(Wishes())
    preparation.apply(plan, Wishes(), datetime.now(UTC), lambda number, step: None)


def undo(host: LocalHost) -> None:
    preparation = Preparation(host, PciIds([], {}))
    preparation.undo(preparation.plan_undo(), lambda number, step: None)


NATIVE: dict[str, str] = {}
WORDS: list[str] = []

if __name__ == "__main__":
    WORDS += sys.argv[2:]
    NATIVE.update({a: d[0] for a, d in drivers().items() if d[0] in ("snd_hda_intel", "bochs-drm")})
    (Path(os.environ["JOB"]) / "answers.json").write_text(json.dumps(globals()[sys.argv[1]]()))
