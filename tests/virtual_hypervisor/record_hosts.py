"""Makes the recordings of the real hosts in topology.py: ``python -m tests.virtual_hypervisor.record_hosts [NAME...]``.

Each host is booted, the product's own ``host record`` runs inside it, and what it wrote is replayed and compared with
what is known of the real host, before it replaces the recording in the source tree. Nothing in a recording depends on
the time or on this machine, so one that is made again differs only where kernel, QEMU, host or recorder changed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

import gpuyard
import gpuyard_lab
from gpuyard.host import recording
from gpuyard.model.host import Inventory
from tests.virtual_hypervisor import build, machine
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.topology import HOSTS, VirtualHost

SOURCE = Path(gpuyard.__file__).parent.parent
RECORDINGS = Path(gpuyard_lab.__file__).parent / "recordings"


def record(build: Build, host: VirtualHost, folder: Path, timeout: float = 240) -> str:
    """Boot the host and return the recording that the product makes in it. `folder` gets the machine's logs.

    Raises machine.Failed, also when the product failed.
    """
    command = [sys.executable, "-m", "gpuyard.host", "record", "--output", f"{machine.JOB_FOLDER}/recording.json"]
    command += ["--note", note(build, host)]
    for key, value in host.facts.items():
        command += ["--fact", f"{key}={value}"]
    job = f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(SOURCE))} exec {shlex.join(command)}\n"
    result = machine.run(build, host, job, folder, timeout)
    if result.status:
        raise machine.Failed(f"{host.name}: host record ended with {result.status}:\n{result.output}")
    return (folder / "recording.json").read_text(encoding="utf-8")


def note(build: Build, host: VirtualHost) -> str:
    """How the recording was made and what in it is how real, for whoever reads it."""
    iommu = host.board.iommu.value.partition(",")[0]
    models = [model for model in host.board.models.values() if model.ids.startswith("10de")]
    parents = ", ".join(f"{model.parent} for {model.ids}" for model in models)
    with_bars = ", ".join(model.ids for model in models if model.bars) or "none"
    return (
        f"Recorded by 'gpuyard host record' inside gpuyard's virtual hypervisor. Hardware: {host.about}; an Ethernet "
        "uplink, an NVMe root disk, the display of a BMC as boot console. Every value was written by a real kernel, "
        f"Linux {build.release}, about devices that QEMU {build.qemu_version} (TCG, {iommu}) emulates: IOMMU groups, "
        "drivers, NUMA nodes, disk in use and default route are what that kernel found and did. QEMU was told to look "
        "like the real host in addresses, ids, classes and revisions of the GPUs, in host name, kernel options, CPU "
        "name and disk size; empty ports and test devices are there to get the numbers right. Underneath is "
        f"{parents}: reset methods and SR-IOV are theirs, BAR sizes too (real ones: {with_bars}). Set by hand, because "
        f"the virtual machine is smaller: {', '.join(host.facts)}."
    )


def differences(host: VirtualHost, inventory: Inventory) -> list[str]:
    """Where the recording is not what was asked of QEMU, or not what is known of the real host."""
    functions = {function.address: function for function in inventory.functions}
    problems = [f"{address} not seen" for address in {*host.board.plugged, *host.groups} if address not in functions]
    for address, model in host.board.plugged.items():
        function = functions.get(address)
        if function and (function.ids, function.class_code, function.revision) != model.identity:
            problems.append(
                f"{address}: {function.ids} {function.class_code} {function.revision}, not {model.identity}"
            )
    for address, group in host.groups.items():
        if address in functions and functions[address].iommu_group != group:
            problems.append(f"{address}: IOMMU group {functions[address].iommu_group}, not {group}")
    uses = " ".join(inventory.needed_by_host.values())
    problems += [f"{what} not seen" for what in ("root disk", "uplink") if what not in uses]
    if sum(function.boot_vga for function in inventory.functions) != 1:
        problems.append("there must be one boot console")
    return problems


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record real hosts in the virtual hypervisor.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {' '.join(HOSTS)}")
    names = parser.parse_args(arguments).names or list(HOSTS)
    unknown = sorted(set(names) - set(HOSTS))
    if unknown:
        parser.error(f"unknown host {unknown[0]}; known are {', '.join(HOSTS)}")
    try:
        ready = build.prepare(install=True)
        for name in names:
            _record_one(ready, HOSTS[name]())
    except (build.Missing, machine.Failed) as error:
        print(f"vhost: {error}", file=sys.stderr)
        return 1
    return 0


def _record_one(ready: Build, host: VirtualHost) -> None:
    with tempfile.TemporaryDirectory(prefix="vhost-") as folder:
        text = record(ready, host, Path(folder))
    inventory = recording.replay(text, host.name)
    wrong = differences(host, inventory)
    if wrong:
        raise machine.Failed(f"{host.name}: not what it should be: {'; '.join(wrong)}")
    RECORDINGS.mkdir(exist_ok=True)
    path = RECORDINGS / f"{host.name}.json"
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {len(inventory.gpus)} GPUs, {len(inventory.functions)} functions, {len(text) // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())
