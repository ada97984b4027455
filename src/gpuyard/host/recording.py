"""Recordings: the needed part of one machine's sysfs and procfs in one small file.

A recording is what a scan reads, not what it concludes, so it can be judged again by a later gpuyard, and be attached
to a bug report. It is JSON:

``gpuyard_recording``  format version, 1
``made``               how it was made: a sentence that the one who made it wrote, and what was recorded when
``facts``              values of HostFacts that replace what the tree says (the real machine's, for a recording of a VM)
``names``              names of the vendors and products in it, as the recorded machine knew them
``tree``               nested folders; a string is a file, ``{"->": target}`` is a symbolic link
"""

from __future__ import annotations

import json
import posixpath
from pathlib import PurePath
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from gpuyard.host import fabric
from gpuyard.host.checks.acs import RECORDED as RECORDED_ACS
from gpuyard.host.checks.acs import acs_of
from gpuyard.host.checks.attached import frame_buffers, usb_devices
from gpuyard.host.checks.software import DPKG_STATUS, LIBRARY_FOLDERS, LIBVIRT, QEMU_PROGRAMS, qemu_package
from gpuyard.host.holders import NODE_CLASSES, NVIDIA_GPUS, USUAL_HOLDERS, DeviceHolder, class_link, look, nvidia_minors
from gpuyard.host.judge import companions_of, judge
from gpuyard.host.modules import VFIO_PCI, alias_lines, canonical, matching, modalias, modprobe_lines, module_folder
from gpuyard.host.needs import (
    BLOCK,
    BTRFS,
    NET,
    PCI_ADDRESS,
    ZFS_VOLUME,
    default_route_interfaces,
    devices_below,
    disks_in_use,
    is_zfs,
    lower_interfaces,
    mount_lines,
    mount_source,
    physical_disks,
    physical_ports,
    ports_below,
)
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation.bind import NO_OVERRIDE
from gpuyard.host.preparation.binders import DRIVERCTL, NVIDIA_MODESET, OVERRIDE, VFIO_MODULES, boot_scripts, udev_rules
from gpuyard.host.preparation.distribution import (
    COMMAND_LINE,
    GRUB_DEFAULTS,
    GRUB_FOLDER,
    GRUBENV,
    INITRAMFS_TOOLS,
    OSTREE_BOOTED,
    PROGRAM_FOLDERS,
    PROGRAMS,
    entry_files,
)
from gpuyard.host.preparation.files import MARK, OUR_FILES
from gpuyard.host.preparation.journal import JOURNAL_FILE
from gpuyard.host.scan import DEVICES, MDEV_TYPES, VENDOR_VGPU, scan
from gpuyard.host.tree import LINK, RecordedTree, Tree
from gpuyard.model.errors import UsageError
from gpuyard.model.host import HostFacts, Inventory

FORMAT = 1
OS_RELEASE = "etc/os-release"
PLAIN_FILES = (
    *OUR_FILES,
    JOURNAL_FILE,
    COMMAND_LINE,
    OSTREE_BOOTED,
    OS_RELEASE,
    NVIDIA_MODESET,
    "proc/cmdline",
    "proc/swaps",
    "proc/net/route",
    "proc/sys/kernel/hostname",
    "proc/sys/kernel/osrelease",
    "proc/sys/vm/overcommit_memory",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_cpu",
)
FUNCTION_FILES = (
    "vendor",
    "device",
    "class",
    "revision",
    "subsystem_vendor",
    "subsystem_device",
    "numa_node",
    "boot_vga",
    "sriov_totalvfs",
    "sriov_numvfs",
    "reset_method",
    "resource",
)
TABLES, ACPI_TABLES = "sys/firmware/acpi/tables", {"DMAR", "IVRS", "FACP"}
"""FACP is everywhere, and so shows that the tables were to be seen."""
HUGE_PAGES = "sys/kernel/mm/hugepages"
PACKAGE_LINES = ("Package:", "Status:", "Version:")
CPU_FLAGS = {"svm", "vmx", "hypervisor"}
PORT_FILES = ("flags", "operstate", "carrier")
FUNCTION_LINKS = ("driver", "iommu_group", "physfn")


class Recorder:
    """Copies single files, links and folder entries of a tree into nested dictionaries."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.nodes: Dict[str, Any] = {}

    def put(self, path: str, node: object) -> None:
        """Record what is at a path, unless a file or a link stands where a folder of it should be."""
        folder = self.nodes
        *parents, name = path.split("/")
        for parent in parents:
            folder = folder.setdefault(parent, {})
            if not isinstance(folder, dict) or LINK in folder:
                return
        folder[name] = node

    def file(self, path: str, lines: Optional[List[str]] = None) -> None:
        """Record a file, or only the given lines of it."""
        text = self.tree.read(path)
        if text is not None:
            self.put(path, "\n".join(lines) if lines is not None else text)

    def lines(self, path: str, predicate: Callable[[str], object]) -> None:
        """Record a file with its other lines empty: each keeps its number."""
        text = self.tree.read(path)
        if text is not None:
            self.put(path, "\n".join(line if predicate(line) else "" for line in text.splitlines()))

    def link(self, path: str) -> Optional[str]:
        target = self.tree.link(path)
        if target is not None:
            self.put(path, {LINK: target})
        return target


def record(tree: Tree, names: PciIds, made: str, facts: Optional[Mapping[str, object]] = None) -> Dict[str, Any]:
    """Record the tree. `made` says how, for whoever reads the file; `facts` as for scan()."""
    recorder = Recorder(tree)
    for path in PLAIN_FILES:
        recorder.file(path)
    _record_machine(recorder)
    _record_software(recorder)
    _record_boot(recorder)
    for address in tree.names(DEVICES):
        _record_function(recorder, address)
    for group in tree.names("sys/kernel/iommu_groups"):
        for name in ("type", "name"):
            recorder.file(f"sys/kernel/iommu_groups/{group}/{name}")
    for unit in tree.names("sys/class/iommu"):
        recorder.link(f"sys/class/iommu/{unit}")
    for name in ACPI_TABLES.intersection(tree.names(TABLES)):
        recorder.put(f"{TABLES}/{name}", "")
    _record_disks(recorder)
    _record_network(recorder)
    inventory = scan(tree, names, facts)
    _record_modules(recorder, inventory)
    _record_cards(recorder, inventory)
    _record_holders(recorder, inventory)
    _record_fabric(recorder)
    names_by_id = {f.vendor_id: f.vendor_name for f in inventory.functions}
    names_by_id.update({f.ids: f.product_name for f in inventory.functions})
    return {
        "gpuyard_recording": FORMAT,
        "made": made,
        "facts": dict(facts or {}),
        "names": {key: name for key, name in sorted(names_by_id.items()) if name},
        "tree": recorder.nodes,
    }


def _record_machine(recorder: Recorder) -> None:
    """Of the big files in procfs, only the lines that are read: the rest is nobody's business in a bug report."""
    processor = (recorder.tree.read("proc/cpuinfo") or "").splitlines()
    models = [line for line in processor if line.startswith("model name")]
    widths = [line for line in processor if line.startswith("address sizes")]
    flags = {word for line in processor if line.startswith("flags") for word in line.split()} & CPU_FLAGS
    recorder.file("proc/cpuinfo", [*models[:1], *widths[:1], f"flags\t\t: {' '.join(sorted(flags))}"])
    memory = (recorder.tree.read("proc/meminfo") or "").splitlines()
    recorder.file("proc/meminfo", [li for li in memory if li.startswith(("MemTotal", "SwapTotal", "HugePages_Total"))])
    mounts = mount_lines(recorder.tree)
    zfs = [line for line in mounts if is_zfs(line)][:1]  # a host may have thousands, and one says that there is ZFS
    on_disks = [line for line in mounts if mount_source(line) or not line.split()[2].startswith("0:")]
    recorder.file("proc/self/mountinfo", [*on_disks, *zfs])
    routes = (recorder.tree.read("proc/net/ipv6_route") or "").splitlines()
    recorder.file("proc/net/ipv6_route", [li for li in routes if li.startswith(f"{'0' * 32} 00 ")])
    remapped = [word for word in (recorder.tree.read("proc/interrupts") or "").split() if word.startswith("IR-")]
    recorder.file("proc/interrupts", remapped[:1])
    for size in recorder.tree.names(HUGE_PAGES):
        for name in ("nr_hugepages", "free_hugepages"):
            recorder.file(f"{HUGE_PAGES}/{size}/{name}")


def _record_software(recorder: Recorder) -> None:
    for folder in LIBRARY_FOLDERS:
        recorder.link(f"{folder}/{LIBVIRT}")
    for folder, program in QEMU_PROGRAMS:
        if program in recorder.tree.names(folder):
            recorder.put(f"{folder}/{program}", "")
    package = [line for line in qemu_package(recorder.tree).splitlines() if line.startswith(PACKAGE_LINES)]
    if package:
        recorder.put(DPKG_STATUS, "\n".join(package))


def _record_boot(recorder: Recorder) -> None:
    """How the host gets its kernel options, initramfs and drivers at boot: what a plan is made from."""
    tree = recorder.tree
    for folder in PROGRAM_FOLDERS:
        for name in PROGRAMS.intersection(tree.names(folder)):
            recorder.put(f"{folder}/{name}", "")
    for name in tree.names(INITRAMFS_TOOLS):
        if tree.read(f"{INITRAMFS_TOOLS}/{name}") is not None:
            recorder.put(f"{INITRAMFS_TOOLS}/{name}", "")
    for path in (GRUB_DEFAULTS, *(f"{GRUB_FOLDER}/{name}" for name in tree.names(GRUB_FOLDER))):
        if path not in OUR_FILES:
            recorder.lines(path, lambda line: "GRUB_CMDLINE_LINUX" in line or "GRUB_ENABLE_BLSCFG" in line)
    for path in entry_files(tree):
        recorder.lines(path, lambda line: line.startswith("options"))
    recorder.link(GRUBENV)
    recorder.lines(tree.resolve(GRUBENV), lambda line: line.startswith(("kernelopts=", "tuned_params=")))
    for name in tree.names(DRIVERCTL):
        recorder.file(f"{DRIVERCTL}/{name}")
    for path in udev_rules(tree):
        if OVERRIDE in (tree.read(path) or ""):
            recorder.lines(path, lambda line: OVERRIDE in line)
    for path in boot_scripts(tree):
        if OVERRIDE in (tree.read(path) or "") or VFIO_PCI in canonical(tree.read(path) or ""):
            recorder.lines(path, _speaks_of_drivers)


def _speaks_of_drivers(line: str) -> bool:
    return OVERRIDE in line or MARK in line or VFIO_PCI in canonical(line) or bool(PCI_ADDRESS.search(line))


def _record_modules(recorder: Recorder, inventory: Inventory) -> None:
    """What the module lists and modprobe's configuration say of vfio and of what may go to VMs."""
    tree, folder = recorder.tree, module_folder(recorder.tree)
    recorder.file("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
    recorder.file(f"{folder}/modules.softdep")
    for name in tree.names(f"sys/module/{VFIO_PCI}")[:1]:
        recorder.put(f"sys/module/{VFIO_PCI}/{name}", "")
    for name in ("modules.builtin", "modules.dep"):
        lines = (tree.read(f"{folder}/{name}") or "").splitlines()
        recorder.file(f"{folder}/{name}", [line.split(":")[0] for line in lines if "vfio" in line.split(":")[0]])
    groups = {gpu.iommu_group for gpu in inventory.gpus} - {None}
    companions = companions_of(inventory.gpus, inventory.functions, inventory)
    members = {
        modalias(f)
        for f in inventory.functions
        if (f.is_gpu or f.iommu_group in groups or f.address in companions) and not f.stays_with_host
    }
    aliases = [
        f"alias {pattern} {module}" for pattern, module in alias_lines(tree, members) if matching(pattern, members)
    ]
    recorder.file(f"{folder}/modules.alias", aliases)
    configured: Dict[str, List[str]] = {}
    for file, words in modprobe_lines(tree):
        of_vfio = canonical(" ".join(words[1:2])) in (*VFIO_MODULES, "pci_stub")
        if words[0] in ("blacklist", "softdep") or (words[0] in ("options", "install") and of_vfio):
            configured.setdefault(file, []).append(" ".join(words))
    for file, lines in configured.items():
        if file not in OUR_FILES:
            recorder.put(file, "\n".join(lines))


def _record_cards(recorder: Recorder, inventory: Inventory) -> None:
    """What checks look at besides the scan, of the groups that have a GPU."""
    tree = recorder.tree
    for slot in judge(inventory):
        recorder.file(f"sys/kernel/iommu_groups/{slot.group}/reserved_regions")
        for function in inventory.groups().get(slot.group, []) if slot.group is not None else []:
            acs = acs_of(tree, function.address) if function.is_bridge else None
            if acs:
                recorder.put(f"{tree.resolve(f'{DEVICES}/{function.address}')}/{RECORDED_ACS}", str(acs))
        for function in slot.companions:
            for path, what in usb_devices(tree, function):
                recorder.put(f"{path}/product", what)
    lines = [line for address, name in frame_buffers(tree) for line in (f" : {address}", f"  : {name}")]
    recorder.file("proc/iomem", lines)
    for console in tree.names("sys/class/vtconsole"):
        for name in ("bind", "name"):
            recorder.file(f"sys/class/vtconsole/{console}/{name}")
    for buffer in tree.names("sys/class/graphics"):
        recorder.link(f"sys/class/graphics/{buffer}")


def _record_fabric(recorder: Recorder) -> None:
    """Whether Fabric Manager is to run, and in which model."""
    lines = (recorder.tree.read(fabric.CONFIGURATION) or "").splitlines()
    stated = [line for line in lines if line.partition("=")[0].strip() == fabric.KEY]
    if stated:
        recorder.file(fabric.CONFIGURATION, stated)
    recorder.link(fabric.WANTED)


def _record_holders(recorder: Recorder, inventory: Inventory) -> None:
    """Which processes hold a GPU, and whether all could be looked at. Other processes are nobody's business."""
    processes = look(recorder.tree)
    for pid, command in processes.unseen.items():
        if pid == min(processes.unseen) or command in USUAL_HOLDERS:
            recorder.put(f"proc/{pid}/comm", command)
            recorder.put(f"proc/{pid}/cmdline", command)
    if not processes.hidden:
        recorder.file("proc/1/comm")
        recorder.link("proc/1/exe")
    for slot in judge(inventory):
        for function in (*slot.gpus, *slot.companions):
            for holder in processes.holders.get(function.address, ()):
                _record_holder(recorder, function.address, holder)


def _record_holder(recorder: Recorder, address: str, holder: DeviceHolder) -> None:
    """The process, and what leads from the device node to the function."""
    recorder.put(f"proc/{holder.pid}/comm", holder.command)
    recorder.put(f"proc/{holder.pid}/fd/{posixpath.basename(holder.device)}", {LINK: holder.device})
    for minor, addresses in nvidia_minors(recorder.tree).items():
        if address in addresses:
            recorder.put(f"{NVIDIA_GPUS}/{address}/information", f"Device Minor: {minor}")
    if posixpath.dirname(holder.device) in NODE_CLASSES:
        recorder.link(class_link(holder.device))


def _record_function(recorder: Recorder, address: str) -> None:
    recorder.link(f"{DEVICES}/{address}")
    path = recorder.tree.resolve(f"{DEVICES}/{address}")
    for name in FUNCTION_FILES:
        recorder.file(f"{path}/{name}")
    for name in FUNCTION_LINKS:
        recorder.link(f"{path}/{name}")
    recorder.file(f"{path}/{VENDOR_VGPU}")
    _record_mdev_types(recorder, f"{path}/{MDEV_TYPES}")
    if recorder.tree.read(f"{path}/{OVERRIDE}") not in (None, "", NO_OVERRIDE):
        recorder.file(f"{path}/{OVERRIDE}")


def _record_mdev_types(recorder: Recorder, folder: str) -> None:
    """What its driver can make of a function, and how many there are."""
    for kind in recorder.tree.names(folder):
        for name in ("name", "description", "available_instances"):
            recorder.file(f"{folder}/{kind}/{name}")
        for device in recorder.tree.names(f"{folder}/{kind}/devices"):
            recorder.put(f"{folder}/{kind}/devices/{device}", "")


def _record_disks(recorder: Recorder) -> None:
    tree = recorder.tree
    waiting = [device for _, device in disks_in_use(tree)]
    waiting += [f"{BLOCK}/{name}" for disk, parts in physical_disks(tree).items() for name in (disk, *parts)]
    for line in mount_lines(tree):
        recorder.link(mount_source(line))  # /dev/mapper/NAME -> ../dm-0
    visited = set()
    while waiting:
        device = waiting.pop()
        if device in visited or recorder.link(device) is None:
            continue
        visited.add(device)
        path = tree.resolve(device)
        recorder.file(f"{path}/size")
        for folder in ("slaves", "holders"):
            for name in tree.names(f"{path}/{folder}"):
                recorder.link(f"{path}/{folder}/{name}")
        waiting += devices_below(tree, device)
    for name in [name for name in tree.names(BLOCK) if ZFS_VOLUME.match(name)][:1]:
        recorder.link(f"{BLOCK}/{name}")
    for system in tree.names(BTRFS):
        for name in tree.names(f"{BTRFS}/{system}/devices"):
            recorder.link(f"{BTRFS}/{system}/devices/{name}")


def _record_network(recorder: Recorder) -> None:
    tree = recorder.tree
    waiting = default_route_interfaces(tree)
    ports = {port for name in waiting for port in ports_below(tree, name)}
    visited = set()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        recorder.link(f"sys/class/net/{name}")
        path = tree.resolve(f"sys/class/net/{name}")
        if name in ports:
            recorder.link(f"{path}/device")
        for lower in lower_interfaces(tree, name):
            recorder.link(f"{path}/lower_{lower}")
            waiting.append(lower)
    for name in physical_ports(tree):
        recorder.link(f"{NET}/{name}")
        path = tree.resolve(f"{NET}/{name}")
        for entry in ("device", "master"):
            recorder.link(f"{path}/{entry}")
        for entry in PORT_FILES:
            recorder.file(f"{path}/{entry}")


def says_how_it_boots(tree: Tree) -> bool:
    """Whether a recorded tree has what a plan is made from, which earlier versions did not record."""
    return tree.read(OS_RELEASE) is not None or any(
        PROGRAMS.intersection(tree.names(folder)) for folder in PROGRAM_FOLDERS
    )


def dumps(recording: Mapping[str, Any]) -> str:
    """As text that is small and still can be read and compared: one line per innermost folder."""
    return _render(recording, 0) + "\n"


def _render(node: Any, depth: int) -> str:
    if not isinstance(node, dict) or not any(isinstance(value, dict) and LINK not in value for value in node.values()):
        return json.dumps(node)
    indent = " " * (depth + 1)
    lines = [f"{indent}{json.dumps(key)}: {_render(value, depth + 1)}" for key, value in node.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


def replay_file(path: PurePath) -> Inventory:
    """Scan the recording in a file. Raises UsageError when it cannot be read or is not a recording."""
    return replay(read_file(path), str(path))


def read_file(path: PurePath) -> str:
    """The text of a recording. Raises UsageError when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; make it on the host with 'gpuyard host record -o FILE'"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a recording: not text") from None


def replay(text: str, source: str) -> Inventory:
    """Scan a recording. `source` is its file name, for messages. Raises UsageError when it is not a recording."""
    return replay_tree(text, source)[1]


def missing_gpus(text: str) -> str:
    """Return a warning when a recording has no GPU; empty when it has one."""
    if replay_tree(text, "recording")[1].gpus:
        return ""
    return (
        "warning: there is no GPU in this recording; if this machine has one, it is not on the PCI bus: is it seated "
        "and powered, and does 'lspci' show it?"
    )


def replay_tree(text: str, source: str) -> Tuple[Tree, Inventory]:
    """The same, with the tree that was recorded."""
    try:
        recording = json.loads(text)
        if "\\ud" in text:  # halves of characters, which no program can print
            recording = json.loads(json.dumps(recording, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not a recording: {error}; make one with 'gpuyard host record'") from None
    version = recording.get("gpuyard_recording") if isinstance(recording, dict) else None
    if version is None:
        raise UsageError(f"{source}: not a recording: no 'gpuyard_recording'; make one with 'gpuyard host record'")
    if version != FORMAT:
        raise UsageError(f"{source}: recording of format {version}, this gpuyard reads format {FORMAT}; update gpuyard")
    facts, names, nodes = (recording.get(key, {}) for key in ("facts", "names", "tree"))
    for key, value in (("facts", facts), ("names", names), ("tree", nodes)):
        if not isinstance(value, dict):
            raise UsageError(f"{source}: {key!r} must be an object; the recording was edited or cut off")
    try:
        names_by_id = {str(key): str(name) for key, name in names.items()}
        tree = RecordedTree(nodes)
        return tree, scan(tree, PciIds.of_this_machine(names_by_id), check_facts(facts), str(recording.get("made")))
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None


def check_facts(facts: Mapping[str, object]) -> Dict[str, object]:
    """Facts with the right types; numbers may come as text (from a command line). Raises ValueError with the reason."""
    defaults = HostFacts(hostname="")
    checked: Dict[str, object] = {}
    for key, value in facts.items():
        default = getattr(defaults, key, None)
        if default is None:
            known_facts = ", ".join(sorted(vars(defaults)))
            raise ValueError(f"unknown host fact {key!r}; known are {known_facts}")
        if isinstance(default, int):
            try:
                checked[key] = int(str(value))
            except ValueError:
                raise ValueError(f"host fact {key} must be a whole number, not {value!r}") from None
        else:
            checked[key] = str(value)
    return checked
