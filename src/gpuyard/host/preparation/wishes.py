"""The operator's wishes for one host, beyond giving away every GPU that can be given away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Optional, Tuple

from gpuyard.model.errors import UsageError
from gpuyard.model.pci import ADDRESS, address_key


@dataclass(frozen=True)
class Wishes:
    """The last apply's are the next plan's, so what is left out on the command line stays as it was."""

    only: Optional[Tuple[str, ...]] = None
    """Addresses of the GPUs to give away, as a site file has it; None: all that can be."""
    keep: Tuple[str, ...] = ()
    """Addresses of GPUs that stay with the host."""
    give: Tuple[str, ...] = ()
    """Addresses named to be given away. What is no GPU and shares a group with one goes only if it is named."""
    identity: bool = False
    """``iommu=pt``: devices of the host reach memory without translation, which is a little faster for them."""
    unsafe_interrupts: bool = False
    """Let VFIO go on without interrupt remapping: a guest could then send any interrupt to the host."""
    replace_legacy: bool = False
    """Take ``vfio-pci.ids=``, ``pci-stub.ids=`` and options that do nothing out of the boot configuration."""
    live: bool = True
    """Change drivers while the machine runs; otherwise at the next boot only."""

    def wants(self, address: str) -> bool:
        """Whether a GPU shall go to VMs, as far as that is up to itself."""
        return address not in self.keep and (self.only is None or address in self.only)

    @staticmethod
    def from_dict(data: Dict[str, Any]) -> Wishes:
        only, keep, give = (data.pop(name) for name in ("only", "keep", "give"))
        return Wishes(None if only is None else tuple(only), tuple(keep), tuple(give), **data)

    def changed(self, keep: Iterable[str] = (), give: Iterable[str] = (), **others: Any) -> Wishes:
        """With the operator's new wishes; those that are None stay as they were. Raises UsageError."""
        keeps, gives = [full_address(text) for text in keep], [full_address(text) for text in give]
        twice = sorted({*keeps} & {*gives})
        if twice:
            raise UsageError(f"{twice[0]} cannot be kept and given away: leave one of the two out")
        changes: Dict[str, Any] = {name: value for name, value in others.items() if value is not None}
        only = changes.pop("only", self.only)
        if only is not None:
            only = _sorted({*only, *gives} - {*keeps})
        new_keep, new_give = {*self.keep, *keeps} - {*gives}, {*self.give, *gives} - {*keeps}
        return replace(self, keep=_sorted(new_keep), give=_sorted(new_give), only=only, **changes)


def full_address(text: str) -> str:
    """``27:00.0`` -> ``0000:27:00.0``. Raises UsageError when it is no PCI address."""
    address = text.lower() if text.count(":") == 2 else f"0000:{text.lower()}"
    if not ADDRESS.match(address):
        raise UsageError(f"{text!r} is no PCI address; write it as in 'gpuyard host scan', 27:00.0 or 0000:27:00.0")
    return address


def _sorted(addresses: Iterable[str]) -> Tuple[str, ...]:
    return tuple(sorted(addresses, key=address_key))
