"""What test_scrub.py does inside the virtual hypervisor: ``python -m tests.virtual.scrub_jobs``.

It is host and VMs at once, and leaves what it saw in $JOB as JSON; what it should be is said in the test.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from gpuyard.host.checks import vfio
from gpuyard.host.local_host import LocalHost
from gpuyard.host.preparation.passthrough import LIST_FILE, Passthrough, render_list
from gpuyard.host.scrub import group_of
from gpuyard.host.scrub_unit import once
from gpuyard.host.tree import FileTree
from gpuyard.host.vfio_function import VfioFunction
from tests.virtual.scrub_host import CARD, DYING, GIVEN, LONE, PAIR
from tests.virtual_hypervisor.guest import BAR_0, Guest

MEMORY = 0x10000
"""Where its memory begins in BAR 0."""
MARK = 0x5EC2E700
CACHE_LINE_SIZE, ARMED = 0x0C, 0xEE
HOST = LocalHost()
Answers = dict[str, object]


def give(*addresses: str) -> None:
    """Write the host's list."""
    functions = [Passthrough(address, GIVEN[address].ids, "vfio-pci") for address in addresses]
    HOST.write_file(LIST_FILE, render_list(functions), 0o644)


def vm_of(address: str) -> Guest:
    """A VM that has the function, and its BAR 0 mapped."""
    vm = Guest(*group_of(FileTree(), address)[1])
    for index in range(len(group_of(FileTree(), address)[1])):
        vm.set_config(index, 0x10, BAR_0 + index * 0x100000)
        vm.set_config(index, 0x04, 0x6)
    return vm


def remember(vm: Guest, index: int = 0) -> None:
    vm.ask(f"writel {BAR_0 + index * 0x100000 + MEMORY:#x} {MARK:#x}")


def remembered(vm: Guest, index: int = 0) -> str:
    return hex(vm.number(f"readl {BAR_0 + index * 0x100000 + MEMORY:#x}"))


def seen(address: str) -> list[str]:
    """What the next one finds in the memory of a group's GPUs, who opens it as the kernel hands it over."""
    group, members = group_of(FileTree(), address)
    words = []
    with vfio.opened(group, [member for member in members if member != CARD[1]]) as held:
        for member, device in held.functions.items():
            VfioFunction(member, device).answer_to_memory()
            words.append(hex(struct.unpack("<I", vfio.read_region(device, 0, MEMORY, 4))[0]))
    return words


def scrubbed(address: str, seconds: float = 60) -> dict[str, object]:
    return once(HOST, address, seconds).as_dict()


def two_tenants() -> Answers:
    """A mark that one VM leaves, and what the next one finds without and with a scrub between them."""
    answers: Answers = {"methods": HOST.tree.read(f"sys/bus/pci/devices/{LONE}/reset_method")}
    with vm_of(LONE) as vm:
        remember(vm)
        answers["first VM"] = remembered(vm)
        answers["while it runs"] = scrubbed(LONE)
        answers["mark while it runs"] = remembered(vm)
    answers["without a scrub"] = seen(LONE)
    answers["scrub"] = scrubbed(LONE)
    answers["with a scrub"] = seen(LONE)
    with vm_of(LONE) as vm:
        answers["second VM"] = remembered(vm)
    return answers


def whole_groups() -> Answers:
    answers: Answers = {}
    for name, (address, _) in (("pair", PAIR), ("card", CARD)):
        with vm_of(address) as vm:
            remember(vm)
            if name == "pair":
                remember(vm, 1)
        answers[name] = {"before": seen(address), "scrub": scrubbed(address), "after": seen(address)}
    return answers


def refusals() -> Answers:
    answers: Answers = {}
    give(*(address for address in GIVEN if address != CARD[1]))
    answers["not listed"] = scrubbed(CARD[0])
    give(*GIVEN)
    HOST.write_attribute(f"sys/bus/pci/devices/{CARD[1]}/driver/unbind", CARD[1])
    answers["no driver"] = scrubbed(CARD[0])
    HOST.write_attribute("sys/bus/pci/drivers/vfio-pci/bind", CARD[1])
    answers["not there"] = scrubbed("0000:99:00.0")
    answers["bridge"] = scrubbed("0000:00:00.0")
    return answers


def dying() -> Answers:
    """A device that its bus's reset kills."""
    answers: Answers = {"alive": scrubbed(DYING)}
    with open(
        f"/sys/bus/pci/devices/{DYING}/config", "r+b", buffering=0
    ) as config:  # not through VFIO, which puts it back
        os.pwrite(config.fileno(), bytes([ARMED]), CACHE_LINE_SIZE)
        answers["armed"] = os.pread(config.fileno(), 1, CACHE_LINE_SIZE).hex()
    answers["died"] = scrubbed(DYING, 15)
    answers["left behind"] = scrubbed(DYING, 15)
    return answers


def command_line() -> Answers:
    done = subprocess.run(
        [sys.executable, "-m", "gpuyard.host", "scrub", "--once", LONE.removeprefix("0000:"), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {"exit": done.returncode, "said": json.loads(done.stdout), "error": done.stderr}


def look() -> object:
    """As the watch would send it."""
    command = [sys.executable, "-m", "gpuyard.host", "watch", "--once", "--json", "--host", "gpu-h100"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["look"]


def watched() -> Answers:
    """What the watch sees of a host that is well, and of a GPU that somebody has."""
    answers: Answers = {"well": look()}
    group, members = group_of(FileTree(), LONE)
    with vfio.opened(group, members):
        answers["in use"] = look()
    return answers


def watched_broken() -> Answers:
    """After `dying`: one that does not answer, one gone, one with no driver. The look waits until the kernel has
    given up the reset."""
    HOST.write_attribute(f"sys/bus/pci/devices/{PAIR[0]}/remove", "1")
    HOST.write_attribute(f"sys/bus/pci/devices/{LONE}/driver/unbind", LONE)
    return {"broken": look()}


PARTS = (watched, two_tenants, whole_groups, refusals, command_line, dying, watched_broken)

if __name__ == "__main__":
    give(*GIVEN)
    answers: Answers = {}
    for part in PARTS:
        begin = time.monotonic()
        answers[part.__name__] = part()
        print(part.__name__, f"{time.monotonic() - begin:.1f} s", flush=True)
        Path(os.environ["JOB"], "answers.json").write_text(json.dumps(answers, indent=1))
