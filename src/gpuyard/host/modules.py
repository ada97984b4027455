"""Reads the kernel's module lists and modprobe's configuration: which drivers would take a device, and which may
not."""

from __future__ import annotations

import fnmatch
import re
from typing import Collection, Container, Dict, Iterable, List, Optional, Set, Tuple

from gpuyard.host.tree import Tree
from gpuyard.model.pci import PciFunction

MODPROBE_FOLDERS = (
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
)
WILDCARD = re.compile(r"[*?\[]")
VFIO_PCI = "vfio_pci"
PSEUDO_MODULE = "gpuyard_passthrough"
"""No module: modprobe runs a script of ours for it, which gives functions to VFIO. See preparation/files.py."""
# Drivers that a distribution or NVIDIA's installer may bring later, besides those that the kernel's own list names.
USUAL_DRIVERS = {
    ("10de", "03"): ("nouveau", "nvidia", "nvidiafb"),
    ("1002", "03"): ("amdgpu", "radeon"),
    ("1002", "12"): ("amdgpu",),
    ("8086", "03"): ("i915", "xe"),
}


def module_folder(tree: Tree) -> str:
    """``lib/modules/RELEASE`` of the running kernel."""
    return f"lib/modules/{tree.read('proc/sys/kernel/osrelease') or ''}"


def canonical(name: str) -> str:
    """Module names mix dashes and underscores; the kernel does not care."""
    return name.replace("-", "_")


def modalias(function: PciFunction) -> str:
    """What the kernel asks modprobe for when it meets the function."""
    sub_vendor, sub_device = function.subsystem_vendor_id or "0", function.subsystem_id or "0"
    code = function.class_code.upper().zfill(6)
    return (
        f"pci:v{function.vendor_id.upper():0>8}d{function.product_id.upper():0>8}"
        f"sv{sub_vendor.upper():0>8}sd{sub_device.upper():0>8}bc{code[:2]}sc{code[2:4]}i{code[4:]}"
    )


def alias_lines(tree: Tree, names: Collection[str]) -> Iterable[Tuple[str, str]]:
    """(pattern, module) of the PCI aliases, ordinary and for vfio, of any vendor and of those in the modaliases."""
    vendors = {name[: len("pci:v000010DE")] for name in names}
    starts = tuple(f"alias {kind}{vendor}" for kind in ("", "vfio_") for vendor in (*sorted(vendors), "pci:v*"))
    for line in (tree.read(f"{module_folder(tree)}/modules.alias") or "").splitlines():
        words = line.split() if line.startswith(starts) else []  # some hundreds of nine thousand
        if len(words) == 3:
            yield words[1], canonical(words[2])


def matching(pattern: str, names: Collection[str]) -> List[str]:
    """The modaliases that a pattern of modules.alias means; those for vfio begin with ``vfio_``."""
    pattern = pattern[len("vfio_") :] if pattern.startswith("vfio_") else pattern
    start = WILDCARD.split(pattern, maxsplit=1)[0]
    if not any(name.startswith(start) for name in names):
        return []  # or each would be compiled to a regular expression
    return fnmatch.filter(names, pattern)


def takers(tree: Tree, functions: Iterable[PciFunction]) -> Dict[str, List[str]]:
    """Address -> modules that modprobe would load for the function, and those that say they drive it for vfio."""
    addresses: Dict[str, List[str]] = {}
    for function in functions:
        addresses.setdefault(modalias(function), []).append(function.address)
    modules_by_address: Dict[str, List[str]] = {}
    for pattern, module in alias_lines(tree, addresses):
        for name in matching(pattern, addresses):
            for address in addresses[name]:
                if module not in modules_by_address.setdefault(address, []):
                    modules_by_address[address].append(module)
    return modules_by_address


def natives(tree: Tree, functions: Iterable[PciFunction]) -> List[str]:
    """Modules that could take one of the functions before VFIO does, sorted."""
    functions = list(functions)
    candidates = {module for modules in takers(tree, functions).values() for module in modules}
    for function in functions:
        candidates.update(USUAL_DRIVERS.get((function.vendor_id, function.class_code[:2]), ()))
    return sorted(module for module in candidates if "vfio" not in module and module != "pci_stub")


def is_builtin(tree: Tree, module: str) -> Optional[bool]:
    """Whether a module is part of the kernel image; None when the kernel's list is not there."""
    text = tree.read(f"{module_folder(tree)}/modules.builtin")
    return None if text is None else canonical(module) in _modules_in(text)


def is_available(tree: Tree, module: str) -> Optional[bool]:
    """Whether the kernel can have it at all: loaded, built in or on disk. None when that cannot be told."""
    if tree.names(f"sys/module/{canonical(module)}"):
        return True
    text = tree.read(f"{module_folder(tree)}/modules.dep")
    if text is None:
        return is_builtin(tree, module) or None
    return canonical(module) in _modules_in(text) or bool(is_builtin(tree, module))


def _modules_in(text: str) -> Set[str]:
    paths = (line.split(":")[0] for line in text.splitlines())
    return {canonical(re.sub(r"\.ko(\.(xz|gz|zst))?$", "", path.rpartition("/")[2])) for path in paths}


def modprobe_lines(tree: Tree, but: Container[str] = ()) -> Iterable[Tuple[str, List[str]]]:
    """(file, words) of every line of modprobe's configuration, but for the files `but`, in the order of reading.

    Files are read by name, whatever their folder; of those with one name, the first folder's counts.
    """
    files: Dict[str, str] = {}
    for folder in MODPROBE_FOLDERS:
        for name in tree.names(folder):
            files.setdefault(name, f"{folder}/{name}")
    for name, file in sorted(files.items()):
        if name.endswith(".conf") and file not in but:
            yield from ((file, words) for words in _words(tree.read(file) or ""))


def _words(text: str) -> Iterable[List[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if words:
            yield words


def softdeps(tree: Tree, but: Container[str] = ()) -> Dict[str, Tuple[str, Tuple[str, ...]]]:
    """Module -> file and words of the softdep that is in effect: of several, modprobe heeds the first one only."""
    last = f"{module_folder(tree)}/modules.softdep"  # what the modules themselves ask for
    lines = [*modprobe_lines(tree, but), *((last, words) for words in _words(tree.read(last) or ""))]
    softdeps_by_module: Dict[str, Tuple[str, Tuple[str, ...]]] = {}
    for file, words in lines:
        if words[0] == "softdep" and len(words) > 2:
            softdeps_by_module.setdefault(canonical(words[1]), (file, tuple(words[2:])))
    return softdeps_by_module


def kept_out(tree: Tree, command_line: str) -> Dict[str, str]:
    """Module -> where it is kept from taking a device before VFIO does: a blacklist, or a softdep."""
    reasons: Dict[str, str] = {}
    for word in command_line.split():
        key, _, value = word.partition("=")
        if key in ("modprobe.blacklist", "module_blacklist"):
            reasons.update({canonical(name): f"{key} on the kernel command line" for name in value.split(",")})
    for file, words in modprobe_lines(tree):
        if words[0] == "blacklist" and len(words) > 1:
            reasons.setdefault(canonical(words[1]), f"blacklist in /{file}")
    for module, (file, dependencies) in softdeps(tree).items():
        if {VFIO_PCI, PSEUDO_MODULE} & {canonical(word) for word in dependencies}:
            reasons.setdefault(module, f"softdep in /{file}")
    return reasons


def ids_by_option(tree: Tree, command_line: str, but: Container[str] = ()) -> Dict[str, str]:
    """``vendor:product`` -> where ``ids=`` of vfio-pci or pci-stub names it: every device with that id is taken.

    Of an option that is given to a module twice, the last one counts, and the kernel command line comes last.
    """
    options: Dict[str, Dict[str, str]] = {}
    for file, words in modprobe_lines(tree, but):
        if words[0] == "options" and len(words) > 1 and canonical(words[1]) in (VFIO_PCI, "pci_stub"):
            for word in words[2:]:
                if word.startswith("ids="):
                    options[canonical(words[1])] = {ids.lower()[:9]: f"/{file}" for ids in word[4:].split(",") if ids}
    for word in command_line.split():
        match = re.match(r"^(vfio-pci|vfio_pci|pci-stub|pci_stub)\.ids=(.+)$", word)
        if match:
            ids = match.group(2).lower().split(",")
            options[canonical(match.group(1))] = {device_id[:9]: "the kernel command line" for device_id in ids}
    return {ids: where for module in options.values() for ids, where in module.items()}
