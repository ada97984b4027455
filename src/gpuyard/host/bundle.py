"""Builds the file that hypervisors run, a zipapp with all that they need, for any Python 3.9 or newer.

The same sources give the same bytes: times and modes are fixed, so that a copy can be told by its checksum.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Iterator

import gpuyard
from gpuyard.model.errors import GpuyardError

LIMIT_BYTES = 200_000
"""It goes to every host at every call, so it stays small."""
CONTENT = ("__init__.py", "model/**/*.py", "host/**/*.py", "host/pci.ids")
NOT_ON_HOSTS = frozenset({"booking.py", "booking_life.py", "events.py", "rights.py"})
"""Of `model`, what is about people. No module of `host` may import it."""
SHEBANG = b"#!/usr/bin/env python3\n"
MAIN = """\
import sys
if sys.version_info < (3, 9):
    sys.exit("gpuyard-host: Python 3.9 or newer is needed; %s is %s" % (sys.executable, sys.version.split()[0]))
from gpuyard.host.__main__ import main
sys.exit(main())
"""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip file can name."""


def build(package: Path = Path(gpuyard.__file__).parent) -> bytes:
    """The zipapp, which starts `gpuyard.host.__main__.main`. Raises GpuyardError where the sources are no files."""
    buffer = io.BytesIO()
    buffer.write(SHEBANG)
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", MAIN.encode())
        for path in _sources(package):
            _add(archive, f"gpuyard/{path.relative_to(package).as_posix()}", path.read_bytes())
    return buffer.getvalue()


def write(path: Path) -> int:
    """Write the zipapp to a file that can be executed; the number of its bytes. Raises GpuyardError."""
    content = build()
    try:
        path.write_bytes(content)
        path.chmod(0o755)
    except OSError as error:
        raise GpuyardError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from None
    return len(content)


def _sources(package: Path) -> Iterator[Path]:
    for pattern in CONTENT:
        paths = sorted(package.glob(pattern))
        if not paths:
            raise GpuyardError(f"{package} has no {pattern}: gpuyard must be installed as files to be sent to hosts")
        yield from (path for path in paths if path.parent.name != "model" or path.name not in NOT_ON_HOSTS)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
