"""The hypervisor of the lab: Nova's own in-memory driver, with the resources of a recorded host."""

from __future__ import annotations

import base64
import binascii
import json
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import nova.conf
from nova import context, objects
from nova.compute import power_state
from nova.virt import event, fake
from nova.virt.fake import FakeInstance

from gpuyard_lab.files import private_folder, write_private
from gpuyard_lab.machine import CONSOLE, OFF, PLACE, USER_DATA
from gpuyard_lab.plan import LabDevice, LabHost

CONF = nova.conf.CONF
NODE_NAMESPACE = uuid.UUID("6d5dbb6c-9a0c-4d4f-8a4c-1c3c1d0f6b1e")
RATIOS = {"VCPU": "cpu", "MEMORY_MB": "ram", "DISK_GB": "disk"}
GONE = (power_state.NOSTATE, None)
MOST_CONSOLE = 100 * 1024
"""Bytes of a console that Nova's libvirt driver keeps: its end."""


class RecordedHostDriver(fake.FakeDriver):  # type: ignore[misc]
    """Driver whose servers are entries in a dictionary; CPUs, memory, disk and PCI functions are those of one recorded
    host.

    A server with user data has a folder below ``guests``, in which somebody may play it. Must be created while the
    options of its host are in force: it keeps a copy of those that it needs later.
    """

    def __init__(self, virtapi: Any, host: LabHost, guests: Path) -> None:
        self.vcpus, self.memory_mb, self.local_gb = host.cpus, host.memory_mib, host.disk_gib
        super().__init__(virtapi)
        self.recorded, self._guests = host, guests
        self.mdevs = _mdev_driver(host)
        self._began = time.monotonic()
        self._ratios = {name: getattr(CONF, f"{kind}_allocation_ratio") for name, kind in RATIOS.items()}
        self._first_ratios = {name: getattr(CONF, f"initial_{kind}_allocation_ratio") for name, kind in RATIOS.items()}
        self._reserved = {
            "VCPU": CONF.reserved_host_cpus,
            "MEMORY_MB": CONF.reserved_host_memory_mb,
            "DISK_GB": self._get_reserved_host_disk_gb_from_config(),
        }

    def init_host(self, host: str) -> None:
        super().init_host(host)
        self._set_nodes([self.recorded.hypervisor])
        self._take_up_servers(host)

    def _take_up_servers(self, host: str) -> None:
        """Know again the servers that Nova has on this host: a real one's survive a restart of nova-compute too."""
        expected = ["flavor", "info_cache"]
        for server in objects.InstanceList.get_by_host(context.get_admin_context(), host, expected_attrs=expected):
            if server.power_state in GONE:  # never came to life
                continue
            self.instances[server.uuid] = FakeInstance(server.name, server.power_state, server.uuid)
            flavor = server.flavor
            self.resources.claim(vcpus=flavor.vcpus, mem=flavor.memory_mb, disk=flavor.root_gb)
            for interface in server.get_network_info():
                self._interfaces[interface["id"]] = interface

    def spawn(self, context: Any, instance: Any, *args: Any, **more: Any) -> None:
        super().spawn(context, instance, *args, **more)
        if self.mdevs is not None:
            self.mdevs.give(instance.uuid, args[3] if len(args) > 3 else more.get("allocations"))
        if instance.user_data:
            folder = private_folder(self._guests / instance.uuid)
            gpus = [device.address for device in instance.get_pci_devices()]
            write_private(folder / PLACE, json.dumps({"host": instance.host, "gpus": gpus}))
            write_private(folder / USER_DATA, decoded(instance.user_data))

    def destroy(self, context: Any, instance: Any, *args: Any, **more: Any) -> None:
        super().destroy(context, instance, *args, **more)
        if self.mdevs is not None:
            self.mdevs.take_back(instance.uuid)
        shutil.rmtree(self._guests / instance.uuid, ignore_errors=True)

    def get_console_output(self, context: Any, instance: Any) -> bytes:
        try:
            with open(self._guests / instance.uuid / CONSOLE, "rb") as console:
                console.seek(max(0, console.seek(0, 2) - MOST_CONSOLE))
                return console.read()
        except FileNotFoundError:
            return b""

    def notice_what_is_off(self) -> None:
        """Tell Nova of servers that have switched themselves off, as libvirt would."""
        for entry in self._guests.glob(f"*/{OFF}"):
            server = self.instances.get(entry.parent.name)
            if server is not None and server.state == power_state.RUNNING:
                server.state = power_state.SHUTDOWN
                self.emit_event(event.LifecycleEvent(server.uuid, event.EVENT_LIFECYCLE_STOPPED))

    def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
        return {node_uuid(name): name for name in self.get_available_nodes()}

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        resources: dict[str, Any] = super().get_available_resource(nodename)
        # The driver below makes a new id in each process, and Nova refuses a host whose node has changed its id.
        resources["uuid"] = node_uuid(nodename)
        resources["pci_passthrough_devices"] = json.dumps([as_libvirt(device) for device in self.recorded.pci])
        return resources

    def update_provider_tree(self, provider_tree: Any, nodename: str, allocations: Any = None) -> None:
        """Report the inventory of the host itself; as in Nova's driver, with this host's ratios and reservations."""
        current_inventory = provider_tree.data(nodename).inventory
        totals = {"VCPU": self.vcpus, "MEMORY_MB": self.memory_mb, "DISK_GB": self.local_gb}
        inventory = {
            name: {
                "total": total,
                "min_unit": 1,
                "max_unit": total,
                "step_size": 1,
                "allocation_ratio": self._ratio(name, current_inventory),
                "reserved": self._reserved[name],
            }
            for name, total in totals.items()
        }
        if self.mdevs is not None:
            self.mdevs.report(provider_tree, nodename, allocations)
        provider_tree.update_inventory(nodename, inventory)

    def get_host_uptime(self) -> str:
        """Return a line as ``uptime`` prints it, with the uptime of the process, for want of a machine."""
        minutes = int(time.monotonic() - self._began) // 60
        up = f"{minutes // 1440} days, {minutes // 60 % 24}:{minutes % 60:02}"
        return f" {time.strftime('%H:%M:%S')} up {up},  0 users,  load average: 0.00, 0.00, 0.00"

    def _ratio(self, name: str, inventory: dict[str, Any]) -> float:
        """Configured, or else what Placement has (an operator may have set it there), or else Nova's first value."""
        if self._ratios[name]:
            return float(self._ratios[name])
        return float(inventory[name]["allocation_ratio"] if name in inventory else self._first_ratios[name])


def _mdev_driver(host: LabHost) -> Any:
    """Return the driver of a host's vGPUs; None on a host that makes none, which so does without Nova's libvirt
    driver."""
    if not CONF.devices.enabled_mdev_types:
        return None
    from gpuyard_lab.services.mdevs import MdevDriver

    return MdevDriver(host.pci)


def decoded(user_data: str) -> bytes:
    """Return user data as the config drive has it. Nova has checked that it is base64."""
    try:
        return base64.b64decode(user_data)
    except binascii.Error:
        return b""


def node_uuid(name: str) -> str:
    """Return the id of a host's compute node and root provider: the same at every start and in every lab."""
    return str(uuid.uuid5(NODE_NAMESPACE, name))


def as_libvirt(device: LabDevice) -> dict[str, Any]:
    """Return a PCI function as Nova's libvirt driver reports it."""
    return {
        "dev_id": "pci_" + device.address.replace(":", "_").replace(".", "_"),
        "address": device.address,
        "vendor_id": device.vendor_id,
        "product_id": device.product_id,
        "numa_node": device.numa_node,
        "label": f"label_{device.vendor_id}_{device.product_id}",
        "dev_type": device.dev_type,
        "parent_addr": device.parent_addr,
        "status": "available",
    }
