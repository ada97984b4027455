"""Collects the elements that diskimage-builder is given: gpuyard's own, and those beside the site file.

They are read as text, so that a build's name can have their digest, and written anew for each build: files of a
Python package have no reliable permissions, and scripts must be executable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from gpuyard.model.errors import UsageError

ElementFiles = Mapping[str, tuple[int, bytes]]
"""Path below the folder of elements -> permissions, content."""

PHASE = re.compile(r"[a-z-]{1,40}\.d")
DOCKER_MTU = "gpuyard-containers/static/usr/local/lib/gpuyard/docker_mtu.py"
MOST_BYTES = 16 << 20
AGENT = "gpuyard-agent/static/usr/local/lib/gpuyard-agent/gpuyard_agent.py"
AGENT_UNIT = "gpuyard-agent/static/etc/systemd/system/gpuyard-agent.service"


def own_elements() -> dict[str, tuple[int, bytes]]:
    """Return the elements that come with gpuyard."""
    elements = _files(files("gpuyard.images") / "elements", "")
    agent = files("gpuyard.guest.agent")
    elements[AGENT] = (0o644, (agent / "gpuyard_agent.py").read_bytes())
    elements[AGENT_UNIT] = (0o644, (agent / "gpuyard-agent.service").read_bytes())
    elements[DOCKER_MTU] = (0o644, (files("gpuyard.images") / "guest/docker_mtu.py").read_bytes())
    return elements


def elements_beside(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return an operator's elements; {} without the folder. Raises UsageError when one cannot be read."""
    if not folder.is_dir():
        return {}
    try:
        elements = _files(folder, "")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    size = sum(len(content) for _, content in elements.values())
    if size > MOST_BYTES:
        raise UsageError(
            f"{folder}: {size >> 20} MiB of elements, and {MOST_BYTES >> 20} MiB are read; let one fetch what is large"
        )
    return elements


def of_elements(elements: ElementFiles, names: Iterable[str]) -> ElementFiles:
    """Return the files of these elements, and of those that they need and that are among `elements`."""
    selected: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in selected:
            selected.add(name)
            _, needs = elements.get(f"{name}/element-deps", (0, b""))
            waiting += needs.decode(errors="replace").split()
    return {path: file for path, file in elements.items() if path.partition("/")[0] in selected}


def write_elements(elements: ElementFiles, folder: Path) -> None:
    """Write the elements below a folder, which is made."""
    for path, (mode, content) in elements.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)


def _files(folder: Traversable, below: str) -> dict[str, tuple[int, bytes]]:
    elements: dict[str, tuple[int, bytes]] = {}
    for entry in folder.iterdir():
        path = f"{below}{entry.name}"
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            elements |= _files(entry, f"{path}/")
        elif entry.is_file():
            elements[path] = (_mode(path), entry.read_bytes())
    return elements


def _mode(path: str) -> int:
    """What stands in a phase's folder is run, but for what diskimage-builder reads into its shell."""
    parts = path.split("/")
    run = len(parts) == 3 and (PHASE.fullmatch(parts[1]) is not None or parts[1] == "bin")
    return 0o755 if run and not path.endswith(".bash") else 0o644
