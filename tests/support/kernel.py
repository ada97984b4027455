"""A model of a host, for tests that change one: the kernel's driver binding, files, and the distribution's commands.

It keeps to what Linux 6.1 was seen to do; tests/contract/binding.py holds it against a real kernel. What it has beyond
a kernel: a boot (drivers are found anew, the boot loader's options count), a count of changes after which it "loses
power", and commands that make boot files as Debian's do, whose bytes differ with each run.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpuyard.host.local_host import AttributeHangs, AttributeRefused, CommandFailed
from gpuyard.host.preparation.files import GRUB_FILE, HOOK_FILE, MODPROBE_FILE
from gpuyard.host.preparation.passthrough import read_list
from gpuyard.host.tree import LINK, RecordedTree

BUS = "sys/bus/pci"
ATTRIBUTE = re.compile(rf"{BUS}/(?:devices/(?P<address>[^/]+)|drivers/(?P<driver>[^/]+))/(?P<name>.+)")
INITRD = "boot/initrd.img-6.1.0"
GRUB_CFG = "boot/grub/grub.cfg"


class LostPower(BaseException):
    """The machine stopped: no ``except Exception`` may see it."""


@dataclass(frozen=True)
class Driver:
    """A driver, and the module that brings it."""

    name: str
    module: str
    ids: frozenset[str] = frozenset()
    """``vendor:product`` that it takes; vfio-pci takes none but by override."""
    builtin: bool = False


@dataclass
class ModelHost:
    """`tree` is live: what is read from it is what is so now."""

    nodes: dict[str, Any]
    drivers: dict[str, Driver] = field(default_factory=dict)
    """By name: every driver that the kernel could have."""
    loaded: set[str] = field(default_factory=set)
    """Modules."""
    held: set[str] = field(default_factory=set)
    """Addresses whose unbind hangs."""
    failing: set[str] = field(default_factory=set)
    """Commands that fail."""
    changes_left: int | None = None
    """How many changes until it loses power; None: never."""
    commands: list[tuple[str, ...]] = field(default_factory=list)
    """Those that ran."""
    modes: dict[str, int] = field(default_factory=dict)
    written: list[tuple[str, str]] = field(default_factory=list)
    """Path and value of every attribute that was written."""
    groups: dict[str, int] = field(default_factory=dict)
    """Address -> IOMMU group that the kernel makes when it is started with intel_iommu=on. Empty: groups stay."""

    @property
    def tree(self) -> RecordedTree:
        return RecordedTree(self.nodes)  # anew, because it remembers where links lead

    # Files

    def write_file(self, path: str, text: str, mode: int) -> None:
        self._change()
        self.put(path, text.rstrip("\n"))
        self.modes[path] = mode

    def copy_file(self, source: str, target: str) -> None:
        self._change()
        text = self.tree.read(source)
        assert text is not None, source
        self.put(target, text)
        self.modes[target] = self.modes.get(source, 0o644)

    def remove_file(self, path: str) -> None:
        self._change()
        folder, name = self._folder(posixpath.dirname(path)), posixpath.basename(path)
        if folder is not None:
            folder.pop(name, None)
        self.modes.pop(path, None)

    def remove_folder(self, path: str) -> None:
        self._change()
        parent = self._folder(posixpath.dirname(path))
        if parent is not None and parent.get(posixpath.basename(path)) == {}:
            del parent[posixpath.basename(path)]

    @contextmanager
    def lock(self, name: str = "lock") -> Iterator[None]:
        yield

    def digest(self, path: str) -> str | None:
        text = self.tree.read(path)
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def put(self, path: str, node: object) -> None:
        folder = self.nodes
        *parents, name = path.split("/")
        for parent in parents:
            folder = folder.setdefault(parent, {})
        folder[name] = node

    def _folder(self, path: str) -> dict[str, Any] | None:
        node: Any = self.nodes
        for part in filter(None, path.split("/")):
            node = node.get(part) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else None

    def _change(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise LostPower

    # The kernel

    def write_attribute(self, path: str, value: str) -> None:
        self._change()
        self.written.append((path, value))
        if path == f"{BUS}/drivers_probe":
            number = self._probe(value)
        else:
            match = ATTRIBUTE.fullmatch(path)
            assert match, path
            number = self._attribute(match["address"], match["driver"], match["name"], value)
        if number:
            raise AttributeRefused(path, value, number)

    def _attribute(self, address: str | None, driver: str | None, name: str, value: str) -> int:
        if address is not None:
            if address not in self.addresses():
                return errno.ENOENT
            if name == "driver_override":
                self.put(f"{self._path(address)}/driver_override", value or "(null)")
                return 0
            assert name == "driver/unbind", name
            driver = self.driver_of(address)
            return self._unbind(value, driver) if driver else errno.ENOENT
        assert driver is not None
        if driver not in self._active():
            return errno.ENOENT
        return self._unbind(value, driver) if name == "unbind" else self._bind(value, driver)

    def _unbind(self, address: str, driver: str) -> int:
        if self.driver_of(address) != driver:
            return errno.ENODEV
        self._set_driver(address, None)
        if address in self.held:  # the link is gone, and the write does not return
            raise AttributeHangs(f"{BUS}/drivers/{driver}/unbind", address, 30)
        return 0

    def _bind(self, address: str, driver: str) -> int:
        if address not in self.addresses() or not self._matches(address, self.drivers[driver]):
            return errno.ENODEV
        if self.driver_of(address):
            return errno.EBUSY
        self._set_driver(address, driver)
        return 0

    def _probe(self, address: str) -> int:
        if address not in self.addresses():
            return errno.ENODEV
        if self.driver_of(address) is None and not self._is_bridge(address):
            for name in self._active():
                if self._matches(address, self.drivers[name]) and self._accepts(address, name):
                    self._set_driver(address, name)
                    break
        return 0

    def _matches(self, address: str, driver: Driver) -> bool:
        override = self.tree.read(f"{self._path(address)}/driver_override") or "(null)"
        return driver.name == override if override != "(null)" else self.ids(address) in driver.ids

    def _accepts(self, address: str, driver: str) -> bool:
        return driver != "vfio-pci" or self.tree.link(f"{self._path(address)}/iommu_group") is not None

    def _active(self) -> list[str]:
        return [name for name, driver in self.drivers.items() if driver.builtin or driver.module in self.loaded]

    def load(self, module: str) -> None:
        """What happens when a module is loaded: its drivers take what they match and nobody has."""
        self.loaded.add(module)
        self.put(f"sys/module/{module}/refcnt", "0")
        for name, driver in self.drivers.items():
            if driver.module == module:
                self.put(f"{BUS}/drivers/{name}/module", {LINK: f"../../../../module/{module}"})
        for address in self.addresses():
            self._probe(address)

    # Commands

    def run(self, command: Sequence[str]) -> None:
        self._change()
        self.commands.append(tuple(command))
        if command[0] in self.failing:
            raise CommandFailed(f"{' '.join(command)} ended with 1")
        if command[0] == "modprobe":
            self._modprobe(command[-1].replace("-", "_"), remove=command[1] == "-r")
        elif command[0] == "update-grub":
            self.put(GRUB_CFG, f"# run {len(self.commands)}\nlinux /vmlinuz {' '.join(self._configured())}")
        elif command[0] == "update-initramfs":
            inside = [self.tree.read(path) or "" for path in (MODPROBE_FILE, HOOK_FILE)]
            self.put(INITRD, f"# run {len(self.commands)}\n" + "".join(inside))
        else:
            raise CommandFailed(f"{command[0]}: there is no such command on this host")

    def _modprobe(self, module: str, remove: bool) -> None:
        if module not in {driver.module for driver in self.drivers.values()}:
            raise CommandFailed(f"modprobe: FATAL: Module {module} not found.")
        if remove:
            self._unload(module)
        else:
            self.load(module)

    def _unload(self, module: str) -> None:
        names = {driver.name for driver in self.drivers.values() if driver.module == module}
        if any(self.driver_of(address) in names for address in self.addresses()):
            raise CommandFailed(f"modprobe: FATAL: Module {module} is in use.")
        self.loaded.discard(module)
        del self.nodes["sys"]["module"][module]
        for name in names:
            del self.nodes["sys"]["bus"]["pci"]["drivers"][name]

    def _configured(self) -> list[str]:
        """The options that GRUB's configuration comes to. What the drop-in really does is tested with a shell."""
        words: list[str] = []
        for path in ("etc/default/grub", GRUB_FILE):
            for line in re.findall(r'^GRUB_CMDLINE_LINUX_DEFAULT="(.*)"$', self.tree.read(path) or "", re.MULTILINE):
                if not line.startswith("$("):
                    words += [word for word in line.split() if not word.startswith("$")]
        taken_out = re.search(r"case \$word in (.*?)\) ;;", self.tree.read(GRUB_FILE) or "")
        without = re.findall(r"'([^']+)'", taken_out.group(1)) if taken_out else []
        return [word for word in words if word not in without]

    # A boot

    def boot(self) -> None:
        """Start anew: options from the boot loader, drivers as the module configuration lets them."""
        menu = self.tree.read(GRUB_CFG) or ""
        match = re.search(r"^linux /vmlinuz ?(.*)$", menu, re.MULTILINE)
        self.put("proc/cmdline", match.group(1) if match else self.tree.read("proc/cmdline"))
        for address in self.addresses():
            self._set_driver(address, None)
            self.put(f"{self._path(address)}/driver_override", "(null)")
        if self.groups:
            self._group("intel_iommu=on" in (self.tree.read("proc/cmdline") or "").split())
        self.loaded.clear()
        self.nodes["sys"]["module"] = {}
        self.nodes["sys"]["bus"]["pci"]["drivers"] = {}
        for driver in [driver for driver in self.drivers.values() if driver.builtin]:
            self.load(driver.module)
        if "install gpuyard_passthrough" in (self.tree.read(MODPROBE_FILE) or ""):
            self._claim()
        for module in {driver.module for driver in self.drivers.values() if not driver.builtin} - {"vfio_pci"}:
            self.load(module)

    def _group(self, on: bool) -> None:
        for address, number in self.groups.items():
            folder = self._folder(self._path(address))
            assert folder is not None
            folder.pop("iommu_group", None)
            if on:
                folder["iommu_group"] = {LINK: f"../../../kernel/iommu_groups/{number}"}

    def _claim(self) -> None:
        """What the script does, which is tested with a real kernel."""
        for entry in read_list(self.tree):
            if entry.address in self.addresses() and self.ids(entry.address) == entry.ids:
                self.put(f"{self._path(entry.address)}/driver_override", entry.driver)
                if self.driver_of(entry.address) != entry.driver:
                    self._set_driver(entry.address, None)
        self.load("vfio_pci")

    # Reading

    def addresses(self) -> list[str]:
        return self.tree.names(f"{BUS}/devices")

    def ids(self, address: str) -> str:
        vendor, product = (self.tree.read(f"{self._path(address)}/{name}") or "" for name in ("vendor", "device"))
        return f"{vendor[2:]}:{product[2:]}"

    def driver_of(self, address: str) -> str | None:
        link = self.tree.link(f"{self._path(address)}/driver")
        return posixpath.basename(link) if link else None

    def _is_bridge(self, address: str) -> bool:
        return (self.tree.read(f"{self._path(address)}/class") or "").startswith("0x0604")

    def _path(self, address: str) -> str:
        return self.tree.resolve(f"{BUS}/devices/{address}")

    def _set_driver(self, address: str, driver: str | None) -> None:
        folder = self._folder(self._path(address))
        assert folder is not None
        if driver is None:
            folder.pop("driver", None)
        else:
            folder["driver"] = {LINK: f"../../../bus/pci/drivers/{driver}"}
