"""Looks up names of vendors and products in ``pci.ids``.

The machine's own list comes first (``update-pciids`` keeps it fresh), then the small one that travels with gpuyard,
which has the makers of GPUs only. No lspci is needed, and no list at all: ids are shown where no name is known.
"""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from typing import Dict, Iterable, Mapping, Optional, Tuple

SYSTEM_LISTS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")


class PciIds:
    """Looks names up without reading a whole list into objects: a scan asks for a handful of ids."""

    def __init__(self, lists: Iterable[bytes], known_names: Optional[Mapping[str, str]] = None) -> None:
        """`known_names` (``10de`` or ``10de:1db4`` -> name) goes before the lists: the names a recording was
        made with."""
        self._lists = tuple(text if text.startswith(b"\n") else b"\n" + text for text in lists)
        self._names: Dict[str, Optional[str]] = dict(known_names or {})

    @classmethod
    def of_this_machine(cls, known_names: Optional[Mapping[str, str]] = None) -> PciIds:
        return cls(_system_lists(), known_names)

    def vendor(self, vendor_id: str) -> Optional[str]:
        if vendor_id not in self._names:
            self._names[vendor_id] = _find(self._lists, vendor_id)[0]
        return self._names[vendor_id]

    def product(self, vendor_id: str, product_id: str) -> Optional[str]:
        key = f"{vendor_id}:{product_id}"
        if key not in self._names:
            self._names[key] = _find(self._lists, vendor_id, product_id)[1]
        return self._names[key]


@lru_cache(maxsize=4096)  # a site of a thousand hosts asks for the same few ids, each host anew
def _find(
    lists: Tuple[bytes, ...], vendor_id: str, product_id: Optional[str] = None
) -> Tuple[Optional[str], Optional[str]]:
    """Names of vendor and product from the first list that has them."""
    vendor_name: Optional[str] = None
    for text in lists:
        start = text.find(b"\n" + vendor_id.encode() + b"  ")
        if start < 0:
            continue
        vendor_name = vendor_name or _rest_of_line(text, start + 7)
        if product_id is None:
            break
        end = _section_end(text, start + 1)
        line = text.find(b"\n\t" + product_id.encode() + b"  ", start, end)
        if line >= 0:
            return vendor_name, _rest_of_line(text, line + 8)
    return vendor_name, None


def _rest_of_line(text: bytes, start: int) -> str:
    end = text.find(b"\n", start)
    return text[start : end if end >= 0 else len(text)].decode("utf-8", "replace").strip()


def _section_end(text: bytes, start: int) -> int:
    """Where the vendor's section ends: the next line that begins with neither a tab nor a ``#``."""
    position = text.find(b"\n", start)
    while position >= 0:
        if text[position + 1 : position + 2] not in (b"\t", b"#"):
            return position
        position = text.find(b"\n", position + 1)
    return len(text)


@lru_cache(maxsize=1)
def _system_lists() -> Tuple[bytes, ...]:
    """The machine's list, if it has one, and ours."""
    lists = [pkgutil.get_data("gpuyard.host", "pci.ids") or b""]
    for path in SYSTEM_LISTS:
        try:
            with open(path, "rb") as file:
                lists.insert(0, file.read())
            break
        except OSError:
            continue
    return tuple(b"\n" + text for text in lists)
