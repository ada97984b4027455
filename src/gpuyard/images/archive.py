"""Reads package versions from a distribution's archive of security updates. It is asked with curl, as builds are."""

from __future__ import annotations

import lzma

from gpuyard.images.ageing import mended_versions
from gpuyard.images.planner import DEBIAN_SECURITY
from gpuyard.images.programs import need_programs, run
from gpuyard.model.errors import GpuyardError
from gpuyard.site.image_rules import ImageBase

COMPONENTS = {"debian": ("main", "contrib", "non-free"), "ubuntu": ("main", "universe", "restricted")}
ARCHIVES = {
    ("debian", "amd64"): DEBIAN_SECURITY,
    ("debian", "arm64"): DEBIAN_SECURITY,
    ("ubuntu", "amd64"): "http://archive.ubuntu.com/ubuntu",
    ("ubuntu", "arm64"): "http://ports.ubuntu.com/ubuntu-ports",
}
MOST_PACKED, MOST, MEMORY = 32 << 20, 64 << 20, 128 << 20
"""Bytes of one index, as it comes and unpacked, and to unpack it with."""


def indexes_of(base: ImageBase) -> list[str]:
    """Return the addresses of a release's indexes in the archive."""
    stated = base.security_mirror if base.distribution == "debian" else base.mirror
    archive = (stated or ARCHIVES[base.distribution, base.architecture]).rstrip("/")
    release = f"{archive}/dists/{base.release}-security"
    return [
        f"{release}/{component}/binary-{base.architecture}/Packages.xz" for component in COMPONENTS[base.distribution]
    ]


def security_versions(base: ImageBase) -> dict[str, str]:
    """Return package -> version. Raises UsageError without curl, GpuyardError when the archive does not answer."""
    need_programs({"curl": "curl"})
    return mended_versions(_index(address) for address in indexes_of(base))


def _index(address: str) -> str:
    command = ["curl", "-fsSL", "--max-time", "300", "--max-filesize", str(MOST_PACKED), address]
    packed = run(command, f"security updates of {address}")
    try:
        unpacker = lzma.LZMADecompressor(memlimit=MEMORY)
        text = unpacker.decompress(packed, MOST)
    except lzma.LZMAError as error:
        raise GpuyardError(f"{address}: not an index of packages: {error}") from None
    if not unpacker.eof:
        raise GpuyardError(f"{address}: not an index of packages: it has no end within {MOST >> 20} MiB")
    return text.decode(errors="replace")
