"""Plays vGPUs: the part of Nova's libvirt driver that deals with mediated devices, on the devices of a recording.

Nova's own code decides what is reported of them, which one a server gets and when one is made. Only libvirt is played:
it lists what was recorded, and makes entries of a dictionary in place of devices.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from nova import exception
from nova.virt.libvirt.driver import LibvirtDriver

from gpuyard_lab.plan import LabDevice


def libvirt_name(address: str) -> str:
    """Return libvirt's name of a PCI device: ``0000:41:00.4`` -> ``pci_0000_41_00_4``."""
    return "pci_" + address.replace(":", "_").replace(".", "_")


class NodeDevice:
    """A device as libvirt describes it."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text

    def name(self) -> str:
        return self._name

    def XMLDesc(self, flags: int) -> str:  # noqa: N802  # libvirt's name
        return self._text


class PlayedLibvirt:
    """Stand-in for libvirt, with the calls that Nova makes about mediated devices of one host."""

    def __init__(self, devices: Sequence[LabDevice]) -> None:
        self._makers = {libvirt_name(device.address): device for device in devices if device.mdev_types}
        self._made: dict[str, tuple[str, str]] = {}
        """Id of a mediated device -> the name of its maker, and its type."""

    def list_mdev_capable_devices(self) -> list[str]:
        return list(self._makers)

    def list_mediated_devices(self) -> list[str]:
        return [_mdev_name(id, maker) for id, (maker, _) in self._made.items()]

    def list_guests(self, only_running: bool = True) -> list[Any]:
        """Return no guests: the driver keeps which device a server has."""
        return []

    def get_guest(self, instance: Any) -> Any:
        raise exception.InstanceNotFound(instance_id=instance.uuid)

    def device_lookup_by_name(self, name: str) -> NodeDevice:
        if name in self._makers:
            return NodeDevice(name, self._maker(name))
        (mdev_id,) = (id for id, (maker, _) in self._made.items() if _mdev_name(id, maker) == name)
        return NodeDevice(name, self._mdev(mdev_id))

    def device_create(self, conf: Any) -> NodeDevice:
        id, kind = conf.mdev_information.uuid, conf.mdev_information.type
        if not self._left(conf.parent, kind):
            raise RuntimeError(f"{conf.parent} can make no more {kind}: Nova should have seen it")
        self._made[id] = conf.parent, kind
        return NodeDevice(_mdev_name(id, conf.parent), self._mdev(id))

    def device_define(self, conf: Any) -> NodeDevice:
        """Return the device again; in libvirt this makes it come back after a reboot."""
        return self.device_lookup_by_name(_mdev_name(conf.mdev_information.uuid, conf.parent))

    def device_set_autostart(self, device: NodeDevice, autostart: bool = True) -> None:
        """Do nothing: there is no reboot."""

    def _left(self, maker: str, kind: str) -> int:
        """Return how many more of a type a function can make: all of a card have one type, and there are only so
        many."""
        device = self._makers[maker]
        card = [made for name, made in self._made.values() if self._card(name) == self._card(maker)]
        if any(made != kind for made in card):
            return 0
        (able,) = (mdev_kind for mdev_kind in device.mdev_types if mdev_kind.name == kind)
        made_count = sum(name == maker for name, _ in self._made.values())
        return max(0, min(able.units - made_count, (able.most or able.units) - len(card)))

    def _card(self, maker: str) -> str:
        device = self._makers[maker]
        return device.parent_addr or device.address

    def _maker(self, name: str) -> str:
        device = self._makers[name]
        root = ElementTree.Element("device")
        ElementTree.SubElement(root, "name").text = name
        pci = ElementTree.SubElement(root, "capability", type="pci")
        domain, bus, rest = device.address.split(":")
        slot, function = rest.split(".")
        numbers = {"domain": domain, "bus": bus, "slot": slot, "function": function}
        for key, value in numbers.items():
            ElementTree.SubElement(pci, key).text = str(int(value, 16))
        ElementTree.SubElement(pci, "product", id=f"0x{device.product_id}")
        ElementTree.SubElement(pci, "vendor", id=f"0x{device.vendor_id}")
        types = ElementTree.SubElement(pci, "capability", type="mdev_types")
        for kind in device.mdev_types:
            made = ElementTree.SubElement(types, "type", id=kind.name)
            ElementTree.SubElement(made, "name").text = kind.title
            ElementTree.SubElement(made, "deviceAPI").text = "vfio-pci"
            ElementTree.SubElement(made, "availableInstances").text = str(self._left(name, kind.name))
        return ElementTree.tostring(root, "unicode")

    def _mdev(self, id: str) -> str:
        maker, kind = self._made[id]
        root = ElementTree.Element("device")
        ElementTree.SubElement(root, "name").text = _mdev_name(id, maker)
        ElementTree.SubElement(root, "parent").text = maker
        mdev = ElementTree.SubElement(root, "capability", type="mdev")
        ElementTree.SubElement(mdev, "type", id=kind)
        ElementTree.SubElement(mdev, "uuid").text = id
        ElementTree.SubElement(mdev, "iommuGroup", number="0")
        return ElementTree.tostring(root, "unicode")


def _mdev_name(id: str, maker: str) -> str:
    return f"mdev_{str(uuid.UUID(id)).replace('-', '_')}_{maker.removeprefix('pci_')}"


class MdevDriver(LibvirtDriver):  # type: ignore[misc]
    """Nova's libvirt driver, reduced to mediated devices. Must be created while the options of its host are in
    force."""

    def __init__(self, devices: Sequence[LabDevice]) -> None:
        # Only what LibvirtDriver.__init__ makes for mediated devices: the rest of it wants a libvirt.
        self._host = PlayedLibvirt(devices)
        self.pgpu_type_mapping: dict[str, str] = defaultdict(str)
        self.mdev_class_mapping: dict[str, str] = defaultdict(lambda: "VGPU")
        self.mdev_classes: set[str] = set()
        self.mdev_type_max_mapping: dict[str, Any] = defaultdict(str)
        self.pgpu_type_default: str | None = None
        self.virtual_mdevs: set[str] = set()
        self.supported_vgpu_types = self._get_supported_vgpu_types()
        self.instance_claimed_mdevs: dict[str, list[str]] = {}
        self.provider_tree: Any = None

    def report(self, provider_tree: Any, nodename: str, allocations: Any) -> None:
        """Add its devices to a host's tree of providers."""
        self._update_provider_tree_for_vgpu(provider_tree, nodename, allocations=allocations)
        self.provider_tree = provider_tree

    def give(self, server: str, allocations: Any) -> None:
        """Give a server what Placement has allocated to it."""
        if made := self._allocate_mdevs(allocations):
            self.instance_claimed_mdevs[server] = made

    def take_back(self, server: str) -> None:
        self.instance_claimed_mdevs.pop(server, None)

    def makers(self) -> list[str]:
        """Return libvirt's names of the devices that it reports."""
        return [name for name, inventory in self._get_gpu_inventories().items() if inventory["total"]]
