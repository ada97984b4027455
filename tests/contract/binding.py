"""How a kernel binds drivers to PCI functions, and answers what it does not like.

Each function is one rule. They run on the model of a kernel (tests/unit/host/test_kernel_model.py) and on a real one
(in the virtual hypervisor, tests/virtual/test_prepare.py), so the model is what the kernel is."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.host.local_host import AttributeRefused, HostAccess
from gpuyard.host.preparation.bind import BUS, NO_OVERRIDE, device, driver_of

ABSENT = "0000:fe:1f.7"


@dataclass(frozen=True)
class Bench:
    """A host with vfio-pci loaded, and a function that its native driver has."""

    host: HostAccess
    address: str
    native: str
    bridge: str
    """Address of a PCI bridge."""

    def write(self, path: str, value: str) -> int:
        """0, or the errno of the refusal."""
        try:
            self.host.write_attribute(path, value)
        except AttributeRefused as refused:
            return refused.number
        return 0

    def override(self, driver: str) -> int:
        return self.write(f"{device(self.address)}/driver_override", driver)

    def unbind(self) -> int:
        return self.write(f"{device(self.address)}/driver/unbind", self.address)

    def probe(self, address: str = "") -> int:
        return self.write(f"{BUS}/drivers_probe", address or self.address)

    @property
    def driver(self) -> str | None:
        return driver_of(self.host.tree, self.address)

    def reset(self) -> None:
        """Back to its native driver."""
        self.override("")
        if self.driver not in (None, self.native):
            self.unbind()
        self.probe()
        assert self.driver == self.native


def an_override_is_read_back_and_cleared_by_an_empty_line(bench: Bench) -> None:
    path = f"{device(bench.address)}/driver_override"
    assert bench.host.tree.read(path) == NO_OVERRIDE
    assert bench.override("vfio-pci") == 0
    assert bench.host.tree.read(path) == "vfio-pci"
    assert bench.override("") == 0
    assert bench.host.tree.read(path) == NO_OVERRIDE


def an_override_decides_who_gets_the_function(bench: Bench) -> None:
    bench.override("vfio-pci")
    assert bench.driver == bench.native, "nothing happens until somebody looks for a driver"
    assert bench.unbind() == 0
    assert bench.driver is None
    assert bench.probe() == 0
    assert bench.driver == "vfio-pci"


def without_an_override_the_native_driver_gets_it(bench: Bench) -> None:
    bench.unbind()
    assert bench.probe() == 0
    assert bench.driver == bench.native


def probing_never_takes_a_function_from_its_driver(bench: Bench) -> None:
    bench.override("vfio-pci")
    assert bench.probe() == 0
    assert bench.driver == bench.native


def probing_succeeds_also_when_no_driver_fits(bench: Bench) -> None:
    bench.override("no-such-driver")
    bench.unbind()
    assert bench.probe() == 0
    assert bench.driver is None


def probing_a_bridge_succeeds_and_changes_nothing(bench: Bench) -> None:
    before = driver_of(bench.host.tree, bench.bridge)
    assert bench.probe(bench.bridge) == 0
    assert driver_of(bench.host.tree, bench.bridge) == before


def what_is_not_there_cannot_be_probed_or_bound(bench: Bench) -> None:
    assert bench.probe(ABSENT) == errno.ENODEV
    assert bench.write(f"{BUS}/drivers/vfio-pci/bind", ABSENT) == errno.ENODEV
    assert bench.write(f"{device(ABSENT)}/driver_override", "vfio-pci") == errno.ENOENT


def a_driver_does_not_bind_what_it_does_not_match(bench: Bench) -> None:
    bench.unbind()
    assert bench.write(f"{BUS}/drivers/vfio-pci/bind", bench.address) == errno.ENODEV
    assert bench.driver is None


def a_driver_does_not_bind_what_another_one_has(bench: Bench) -> None:
    bench.override("vfio-pci")
    assert bench.write(f"{BUS}/drivers/vfio-pci/bind", bench.address) == errno.EBUSY
    assert bench.driver == bench.native


def a_driver_does_not_unbind_what_it_does_not_have(bench: Bench) -> None:
    assert bench.write(f"{BUS}/drivers/vfio-pci/unbind", bench.address) == errno.ENODEV
    assert bench.driver == bench.native


def a_function_without_a_driver_cannot_be_unbound(bench: Bench) -> None:
    bench.unbind()
    assert bench.unbind() == errno.ENOENT


RULES: tuple[Callable[[Bench], None], ...] = (
    an_override_is_read_back_and_cleared_by_an_empty_line,
    an_override_decides_who_gets_the_function,
    without_an_override_the_native_driver_gets_it,
    probing_never_takes_a_function_from_its_driver,
    probing_succeeds_also_when_no_driver_fits,
    probing_a_bridge_succeeds_and_changes_nothing,
    what_is_not_there_cannot_be_probed_or_bound,
    a_driver_does_not_bind_what_it_does_not_match,
    a_driver_does_not_bind_what_another_one_has,
    a_driver_does_not_unbind_what_it_does_not_have,
    a_function_without_a_driver_cannot_be_unbound,
)
