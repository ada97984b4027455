"""A site of a thousand hosts: reading it, compiling it, planning it.

python -m bench.site
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.sysfs import V100, Sysfs

from bench.table import Measured, finish, milliseconds, show, sized
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.objects import LimitObject, SeenAggregate, SeenFlavor, SeenLimit, SeenObjects
from gpuyard.site.plan import plan_site

HOSTS, GPUS, FLAVORS, PROJECTS = sized((1000, 8, 200, 100), (20, 8, 20, 10))
LIMIT_MS = 2000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = write_site(Path(folder))
        compiled = load_site(site).compiled
        new, same = empty_cloud(), as_wanted(compiled)
        rows = [
            Measured("read and compile", "ms", milliseconds(lambda: load_site(site), 3)),
            Measured("plan, a new cloud", "ms", milliseconds(lambda: plan_site(compiled, new), 5)),
            Measured("plan, nothing to do", "ms", milliseconds(lambda: plan_site(compiled, same), 5)),
            Measured("all of it", "ms", milliseconds(lambda: plan_site(load_site(site).compiled, new), 3), LIMIT_MS),
        ]
    show(f"A site of {HOSTS} hosts with {GPUS} GPUs each, {FLAVORS} flavors, {PROJECTS} projects", rows)


def write_site(folder: Path) -> Path:
    """Hosts with a group of three, five lone GPUs and 40 other functions, each with a recording of its own."""
    host = Sysfs()
    for number in range(GPUS):
        host.function(f"{0x10 + number:02x}:00.0", V100, group=min(number + 1, 6))
    for number in range(40):
        host.function(f"{0x80 + number:02x}:00.0", "8086:1563", "0200", 100 + number)
    for number in range(HOSTS):
        (folder / f"gpu-{number}.json").write_text(host.recording(hostname=f"gpu-{number}"))
    document = {
        "site": "large",
        "hosts": {f"gpu-{n}": {"recording": f"gpu-{n}.json", "reserve": "largest-flavors"} for n in range(HOSTS)},
        "pools": {"v100": {"models": [V100]}},
        "flavors": {f"flavor-{n}": flavor(n) for n in range(FLAVORS)},
        "projects": {f"project-{n}": {"gpus": {"v100": n % 9}} for n in range(PROJECTS)},
    }
    path = folder / "site.yaml"
    path.write_text(json.dumps(document, indent=1))
    return path


def flavor(number: int) -> dict[str, Any]:
    gpus = {"gpus": {"v100": number % 4}} if number % 4 else {}
    return {"vcpus": 1 + number % 8, "ram": f"{1 + number % 32} GiB", "disk": "10 GiB", **gpus}


def empty_cloud() -> SeenObjects:
    servers = SeenLimit("servers", LimitObject("servers", 100))
    projects = {f"project-{number}": str(number) for number in range(PROJECTS)}
    return SeenObjects((), (servers,), projects, hosts=frozenset(f"gpu-{number}" for number in range(HOSTS)))


def as_wanted(compiled: CompiledSite) -> SeenObjects:
    """The cloud after an apply."""
    before = empty_cloud()
    names = {name for config in compiled.provider_configs for name in (*config.inventories, *config.traits)}
    return SeenObjects(
        flavors=tuple(SeenFlavor(flavor.name, flavor) for flavor in compiled.flavors),
        limits=(*before.limits, *(SeenLimit(str(number), limit) for number, limit in enumerate(compiled.limits))),
        projects=before.projects,
        aggregates=tuple(SeenAggregate(aggregate.name, aggregate) for aggregate in compiled.aggregates),
        hosts=before.hosts,
        reported=dict.fromkeys(names, before.hosts),
    )


if __name__ == "__main__":
    main()
    sys.exit(finish())
