"""Decides whether servers with GPUs can be migrated while they run.

Nova can since 31 (2025.1), for devices that device_spec and alias both call ``live_migratable``. It believes what it is
told. Whether the card's driver on the host can move its state is up to the author of the site file, and is held here
against the driver that was recorded: vfio-pci itself cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpuyard.model.gpu import Gpu, GpuKind
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias import Alias
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.nova.device_spec import truth

PLAIN = "vfio-pci"
"""The driver that gives a whole device away, and knows nothing of what is in it."""


def why_not_live(
    specs: Mapping[str, str],
    gpus: Collection[Gpu],
    aliases: Mapping[str, Alias],
    unmanaged: Collection[str],
    inventory: Inventory | None,
) -> str:
    """Return why Nova, or the card, will not do it; empty: both will. `specs`: extra specs of the server's flavor;
    `gpus`: those it has; `unmanaged`: pools with ``managed: false``; `inventory`: the recording of its host."""
    for name in asked_devices(specs):
        alias = aliases.get(name)
        if alias is None or not truth(alias.raw.get("live_migratable", "no")):
            return f"alias {name}, which its flavor asks for, is not live_migratable"
    for gpu in gpus:
        if gpu.kind is GpuKind.VGPU:
            return "it has a vGPU, and whether its driver can move that is not looked at"
        for function in _functions(gpu, inventory):
            if function.vgpu_type is not None:  # NVIDIA's driver gives it away itself, and can
                continue
            if gpu.pool not in unmanaged:
                return (
                    f"pool {gpu.pool} is not 'managed: false': libvirt binds its GPUs to {PLAIN}, which moves nothing"
                )
            driver = (function.driver or "no driver").replace("_", "-")
            if driver in ("no driver", PLAIN):
                return (
                    f"GPU {function.address} was recorded with {driver}, and only a variant driver can move its state"
                )
    return ""


def _functions(gpu: Gpu, inventory: Inventory | None) -> Iterable[PciFunction]:
    """What Nova gives to a server: the function, or any of those that it is one of."""
    functions = inventory.functions if inventory else ()
    if gpu.kind is GpuKind.VF:
        return [function for function in functions if function.physical_function == gpu.device]
    return [function for function in functions if function.address == gpu.device]
