"""Makes src/gpuyard/host/pci.ids: the makers of GPUs out of a full pci.ids, so that names need no package on a host.

usage: python tools/shrink_pci_ids.py /usr/share/misc/pci.ids > src/gpuyard/host/pci.ids
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

WHOLE = ("10de", "1002", "1a03")  # NVIDIA, AMD, ASPEED (the console of most servers)
NAME_ONLY = ("1022", "102b", "10ec", "1234", "144d", "14e4", "15b3", "1af4", "1b36", "8086")
HEADER = """\
# The makers of GPUs (and of what sits beside them) out of the PCI ID list, without subsystems.
# The PCI ID Project, https://pci-ids.ucw.cz/, copyright Martin Mares and Albert Pool; distributed here under the
# 3-clause BSD License, one of the two that it comes with. {version}
"""


def shrink(lines: list[str]) -> Iterator[str]:
    """The lines to keep, in order."""
    vendor = ""
    for line in lines:
        if line.startswith(("\t\t", "#")) or not line.strip():
            continue
        if not line.startswith("\t"):
            vendor = line[:4]
            if vendor == "ffff" or line.startswith("C "):
                return
            if vendor in WHOLE + NAME_ONLY:
                yield line
        elif vendor in WHOLE:
            yield line


if __name__ == "__main__":
    source = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    version = next(line.strip("# \t") for line in source if "Version:" in line)
    print(HEADER.format(version=version), end="")
    print("\n".join(shrink(source)))
