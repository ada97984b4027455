"""Changes the drivers of a group's functions while the machine runs, and reads back what became of it.

In two passes: first every function is taken from its driver, then every one is given. A group of which one function
is still with a driver of the host is "not viable", and what is given first could be used too early.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional

from gpuyard.host.local_host import AttributeHangs, HostAccess
from gpuyard.host.preparation.journal import Before
from gpuyard.host.tree import Tree
from gpuyard.model.errors import GpuyardError

BUS = "sys/bus/pci"
NO_OVERRIDE = "(null)"


def device(address: str) -> str:
    return f"{BUS}/devices/{address}"


def driver_of(tree: Tree, address: str) -> Optional[str]:
    """The driver that has a function now."""
    target = tree.link(f"{device(address)}/driver")
    return target.rpartition("/")[2] if target else None


def before(tree: Tree, address: str, ids: str, group: Optional[int]) -> Before:
    """How a function is now, for the journal."""
    driver = driver_of(tree, address)
    module = tree.link(f"{BUS}/drivers/{driver}/module") if driver else None
    override = tree.read(f"{device(address)}/driver_override") or NO_OVERRIDE
    return Before(
        ids, group, driver, module.rpartition("/")[2] if module else None, "" if override == NO_OVERRIDE else override
    )


def bind(host: HostAccess, targets: Mapping[str, str]) -> None:
    """Give functions of one group to VFIO drivers. Raises GpuyardError; what was taken is given back then."""
    for driver in sorted(set(targets.values())):
        host.run(["modprobe", driver])
    earlier = {address: before(host.tree, address, "", None) for address in targets}
    taken: List[str] = []
    try:
        for address, driver in targets.items():
            host.write_attribute(f"{device(address)}/driver_override", driver)
            taken.append(address)
            _unbind(host, address, unless=driver)
        for address, driver in targets.items():
            _probe(host, address, driver)
    except AttributeHangs as error:
        # The kernel still holds this one: whatever is written to it next would hang as well.
        left = _put_back(host, {address: earlier[address] for address in taken[:-1]})
        reason = f"{taken[-1]} has no driver until that returns, and the host may not shut down by itself"
        raise GpuyardError(f"{error}; {reason}{left}") from None
    except (GpuyardError, KeyboardInterrupt) as error:
        left = _put_back(host, {address: earlier[address] for address in taken})
        raise GpuyardError(f"{str(error) or 'interrupted'}{left}") from None


def release(host: HostAccess, originals: Mapping[str, Before]) -> List[str]:
    """Give functions of one group back to the drivers that they had. Answers which did not get theirs.

    Raises GpuyardError when one cannot be taken from VFIO.
    """
    for address, original in originals.items():
        _take_back(host, address, original)
    return [problem for address, original in originals.items() for problem in _restore(host, address, original)]


def _take_back(host: HostAccess, address: str, original: Before) -> None:
    """With its name as override the very driver gets it, also where ids= would give it to vfio-pci again."""
    host.write_attribute(f"{device(address)}/driver_override", original.driver or original.override)
    _unbind(host, address, unless=original.driver)


def _unbind(host: HostAccess, address: str, unless: Optional[str]) -> None:
    driver = driver_of(host.tree, address)
    if driver is None or driver == unless:
        return
    host.write_attribute(f"{device(address)}/driver/unbind", address)


def _probe(host: HostAccess, address: str, driver: str) -> None:
    """Have the kernel look for a driver. That the write succeeds says nothing, so the result is read back."""
    host.write_attribute(f"{BUS}/drivers_probe", address)
    now = driver_of(host.tree, address)
    if now != driver:
        raise GpuyardError(f"{address} is with {now or 'no driver'} and did not get {driver}: 'dmesg' has the reason")


def _restore(host: HostAccess, address: str, original: Before) -> List[str]:
    """The driver of before, then the override of before. Answers what did not work."""
    problems: List[str] = []
    if original.driver is not None and driver_of(host.tree, address) != original.driver:
        try:
            if original.module and not host.tree.names(f"sys/module/{original.module}"):
                host.run(["modprobe", original.module])
            if driver_of(host.tree, address) != original.driver:
                _probe(host, address, original.driver)
        except GpuyardError as error:
            problems.append(f"{address} has not got its driver {original.driver} back: {error}")
    host.write_attribute(f"{device(address)}/driver_override", original.override)
    return problems


def _put_back(host: HostAccess, earlier: Dict[str, Before]) -> str:
    """After a failure in the middle: the group as it was, as far as that works. Answers what to add to the error."""
    left: List[str] = []
    for address, original in earlier.items():
        try:
            _take_back(host, address, original)
            left += _restore(host, address, original)
        except GpuyardError as error:  # noqa: PERF203  # one that does not work must not stop the others
            left.append(f"{address}: {error}")
    return f" (and then: {'; '.join(left)})" if left else "; the group is as it was"
