"""Finds what stands in the way of changing drivers: mechanisms of others that set them at boot, and displays in use.

A driver that is set by two mechanisms has the one that came last, and which one that is may change from boot to boot.
"""

from __future__ import annotations

import posixpath
from typing import Collection, Iterable, List

from gpuyard.host.modules import VFIO_PCI, canonical, modprobe_lines
from gpuyard.host.needs import PCI_ADDRESS, pci_address_of
from gpuyard.host.preparation.files import MARK
from gpuyard.host.tree import Tree
from gpuyard.model.pci import PciFunction

DRIVERCTL = "etc/driverctl.d"
UDEV_FOLDERS = (
    "etc/udev/rules.d",
    "run/udev/rules.d",
    "usr/local/lib/udev/rules.d",
    "usr/lib/udev/rules.d",
    "lib/udev/rules.d",
)
INITRAMFS_SCRIPTS = "etc/initramfs-tools/scripts"
UNITS = "etc/systemd/system"
RC_LOCAL = "etc/rc.local"
VFIO_MODULES = ("vfio", VFIO_PCI, "vfio_pci_core", "vfio_iommu_type1")
OVERRIDE = "driver_override"
NOTHING = ("/bin/false", "/bin/true", "/usr/bin/false", "/usr/bin/true", "/sbin/nologin", "/usr/sbin/nologin")

NVIDIA_MODESET = "sys/module/nvidia_drm/parameters/modeset"
CONSOLES = "sys/class/vtconsole"
FRAME_BUFFERS = "sys/class/graphics"
DISPLAY_DRIVERS = ("amdgpu", "i915", "xe", "radeon", "nouveau")
"""Drivers whose unbind while a text console is on the card crashes many kernels. Simple ones, as bochs-drm, let go."""


def other_binders(tree: Tree, addresses: Collection[str]) -> List[str]:
    """Notes about mechanisms of others that set the drivers of these functions at boot, each with what to do.

    `addresses`: full addresses of the functions that go to VMs and of the GPUs that are kept. A file that names
    addresses, and none of these, is about something else and left out.
    """
    return [
        *_driverctl(tree, addresses),
        *_udev_rules(tree, addresses),
        *_modprobe_lines(tree),
        *_scripts(tree, addresses),
    ]


def _driverctl(tree: Tree, addresses: Collection[str]) -> Iterable[str]:
    """One file for each function, named by its address, in some versions with ``pci-`` before it."""
    for name in tree.names(DRIVERCTL):
        address = name[len("pci-") :] if name.startswith("pci-") else name
        if address in addresses:
            driver = (tree.read(f"{DRIVERCTL}/{name}") or "").strip() or "another driver"
            yield f"driverctl gives {address} to {driver} at each boot: delete /{DRIVERCTL}/{name}"


def _udev_rules(tree: Tree, addresses: Collection[str]) -> Iterable[str]:
    """Of files with one name in several folders, udev reads the first folder's only."""
    for file in udev_rules(tree):
        for number, line in enumerate((tree.read(file) or "").splitlines(), 1):
            # driverctl's own rule does nothing without a file in its folder, and those are looked at above
            if OVERRIDE in _code(line) and "driverctl" not in line and _concerns(line, addresses):
                yield f"/{file}:{number}: a udev rule sets {OVERRIDE}: take it out if it means one of these GPUs"


def udev_rules(tree: Tree) -> List[str]:
    """The files that udev reads, in the order of their names."""
    files = {name: f"{folder}/{name}" for folder in reversed(UDEV_FOLDERS) for name in tree.names(folder)}
    return [file for name, file in sorted(files.items()) if name.endswith(".rules")]


def _modprobe_lines(tree: Tree) -> Iterable[str]:
    for file, words in modprobe_lines(tree):
        if len(words) < 2 or canonical(words[1]) not in VFIO_MODULES:
            continue
        if words[0] == "install":
            command = " ".join(words[2:])
            what = "forbids to load it" if words[2:3] and words[2] in NOTHING else f"runs {command} instead of it"
            yield f"/{file}: 'install {words[1]}' {what}: take the line out"
        elif words[0] == "blacklist":
            yield (
                f"/{file}: 'blacklist {words[1]}' does not keep gpuyard from loading it by name: take the line out, "
                "or ask who wanted the host to be without VFIO"
            )


def _scripts(tree: Tree, addresses: Collection[str]) -> Iterable[str]:
    """Those that speak of vfio-pci, but for our own."""
    for file in boot_scripts(tree):
        text = tree.read(file) or ""
        code = "\n".join(map(_code, text.splitlines()))
        if MARK not in text and (OVERRIDE in code or VFIO_PCI in canonical(code)) and _concerns(code, addresses):
            remedy = "; then make the initramfs again" if file.startswith(INITRAMFS_SCRIPTS) else ""
            yield f"/{file} seems to give devices to vfio-pci at boot: take that out of it{remedy}"


def boot_scripts(tree: Tree) -> List[str]:
    """Scripts of the initramfs, rc.local and services."""
    scripts = [
        f"{INITRAMFS_SCRIPTS}/{stage}/{name}"
        for stage in tree.names(INITRAMFS_SCRIPTS)
        for name in tree.names(f"{INITRAMFS_SCRIPTS}/{stage}")
    ]
    return [*scripts, RC_LOCAL, *(f"{UNITS}/{name}" for name in tree.names(UNITS) if name.endswith(".service"))]


def _code(line: str) -> str:
    """A line; empty when it is a comment."""
    return "" if line.lstrip().startswith(("#", ";")) else line


def _concerns(text: str, addresses: Collection[str]) -> bool:
    """Whether a text may be about one of the addresses: it names one, or none at all."""
    named = set(PCI_ADDRESS.findall(text))
    return not named or bool(named.intersection(addresses))


def busy_display(tree: Tree, function: PciFunction) -> str:
    """Why the driver of a function must not be taken away while the machine runs; empty when nothing speaks against it.

    Processes are looked at elsewhere; here it is the kernel itself that uses the display.
    """
    if function.driver == "nvidia" and tree.read(NVIDIA_MODESET) in ("Y", "1"):
        return "nvidia_drm (modeset=1) holds it for the kernel, and the unbind would never return"
    name = console_on(tree, function) if function.driver in DISPLAY_DRIVERS else ""
    return (
        f"the text console may be on it (/dev/{name}), and {function.driver} may crash when it lets go" if name else ""
    )


def console_on(tree: Tree, function: PciFunction) -> str:
    """Name of the function's frame buffer if the text console may be on it, ``fb0``; else empty."""
    if _has_console(tree):
        for name in tree.names(FRAME_BUFFERS):
            if name.startswith("fb") and pci_address_of(tree, f"{FRAME_BUFFERS}/{name}") == function.address:
                return name
    return ""


def _has_console(tree: Tree) -> bool:
    """Whether a text console is on a frame buffer. On which one of several, the kernel does not tell."""
    folders = [posixpath.join(CONSOLES, name) for name in tree.names(CONSOLES)]
    return any(
        tree.read(f"{folder}/bind") == "1" and "frame buffer" in (tree.read(f"{folder}/name") or "")
        for folder in folders
    )
