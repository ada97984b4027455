"""Site files for tests, on hosts that are built in memory."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpuyard.nova.release import NEWEST
from gpuyard.site.load import LoadedSite, load_site
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.sysfs import Sysfs, epyc


@cache
def plain_site(release: str = NEWEST) -> Path:
    """The lab's example site without bookings, and without what needs them: limits on GPUs are what its plan says, and
    no controller is needed."""
    lines = EXAMPLE_SITE.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith(("booking:", "health:", "accounting:")))
    text = text.replace(f'release: "{NEWEST}"', f'release: "{release}"')
    text = re.sub(r", (price|budget): ([\d.]+|\{[^{}]*\})", "", text)
    path = Path(tempfile.mkdtemp(prefix="gpuyard-plain-site-")) / "site.yaml"
    path.write_text(text.replace("recordings/", f"{EXAMPLE_SITE.parent}/recordings/"), encoding="utf-8")
    return path


def write_site(folder: Path, text: str, hosts: Mapping[str, Sysfs] | None = None) -> Path:
    """Write site.yaml and one recording per host, named after it; the EPYC when no hosts are given."""
    for name, machine in (hosts or {"gpu-server": epyc()}).items():
        (folder / f"{name}.json").write_text(machine.recording(hostname=name))
    path = folder / "site.yaml"
    path.write_text(text)
    return path


def site(
    folder: Path, document: Mapping[str, Any] | None = None, hosts: Mapping[str, Sysfs] | None = None
) -> LoadedSite:
    """Load a site of the given hosts (the EPYC when there are none); JSON is YAML too."""
    hosts = hosts or {"gpu-server": epyc()}
    base = {
        "site": "test",
        "hosts": {name: {"recording": f"{name}.json"} for name in hosts},
        "pools": {"v100": {"models": ["10de:1db4"]}},
    }
    return load_site(write_site(folder, json.dumps({**base, **(document or {})}), hosts))


def flavor(**more: Any) -> dict[str, Any]:
    return {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", **more}
