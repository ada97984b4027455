"""What the rendered options are worth: the same requests with Nova's and Placement's defaults, in a lab like it.

python -m bench.scheduling
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import monotonic

from tests.support.ports import free_port_base
from tests.support.sysfs import V100, Sysfs

from bench.table import Measured, finish, show, sized
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.site.load import LoadedSite, load_site
from gpuyard_lab import control, portal
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import LabPlan, plan_of_site
from gpuyard_lab.settings import LabSettings, remembered

GPUS = sized(8, 4)
PATIENCE_S = sized(60.0, 5.0)
"""How long to wait for one answer of Placement with its defaults; it may think for minutes."""
ROUNDS = sized(5, 1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = write_site(Path(folder))
        rendered = plan_of_site(site)
        for title, plan in (
            ("as rendered", rendered),
            ("with Nova's and Placement's defaults", replace(rendered, scheduler="", placement="")),
        ):
            show(f"One host with {GPUS} GPUs, {title}", run(Path(folder) / title.split()[0], site, plan))


def write_site(folder: Path) -> Path:
    host = Sysfs()
    for number in range(GPUS):
        host.function(f"{0x10 + number:02x}:00.0", V100, group=number + 1)
    (folder / "wide.json").write_text(host.recording(hostname="wide"))
    sizes = (1, GPUS)
    document = {
        "site": "wide",
        "hosts": {"wide": {"recording": "wide.json"}},
        "pools": {"v100": {"models": [V100]}},
        "flavors": {f"v100x{n}": {"vcpus": n, "ram": f"{n} GiB", "disk": "1 GiB", "gpus": {"v100": n}} for n in sizes},
        "projects": {"demo": {"gpus": {"v100": 100}}},
        "limits": {"servers": 100},
    }
    path = folder / "site.yaml"
    path.write_text(json.dumps(document))
    return path


def run(state: Path, site: Path, plan: LabPlan) -> list[Measured]:
    settings = LabSettings(state, port_base=free_port_base(), site=site)
    try:
        control.up(settings, plan)
        lab = remembered(settings.state)
        assert lab is not None
        loaded = load_site(site)
        portal.apply_site(lab, loaded)
        operator, user = connect(ADMIN_CLOUD, lab.clouds_file), connect(DEMO_CLOUD, lab.clouds_file)
        return [*together(operator, user, loaded), *candidates(operator, (1, GPUS // 2, GPUS * 3 // 4, GPUS))]
    finally:
        control.down(settings)


def together(operator: CloudApi, user: CloudApi, loaded: LoadedSite) -> list[Measured]:
    """As many requests at once as there are GPUs: all could have one."""
    outcomes: Counter[str] = Counter()
    for _ in range(ROUNDS):
        exercise = Exercise(operator, user, loaded.compiled)
        outcomes.update(boot.status for boot in exercise.boot_together(["v100x1"] * GPUS))
        exercise.clear()
    share = 100 * outcomes["ACTIVE"] / outcomes.total()
    return [Measured(f"{GPUS} requests at once, ACTIVE", "%", [share])]


def candidates(operator: CloudApi, sizes: tuple[int, ...]) -> list[Measured]:
    """Placement's answer to what Nova asks for a flavor with so many GPUs. Stops at the first that takes too long."""
    rows = []
    for size in sizes:
        query = {f"resources_{number}": "CUSTOM_GPU_V100:1" for number in range(size)}
        seconds = answer(operator, {"resources": "VCPU:1", "group_policy": "none", "limit": 1000, **query})
        rows.append(Measured(f"Placement's candidates for {size} GPUs", "s", [seconds]))
        if seconds >= PATIENCE_S:
            break
    return rows


def answer(operator: CloudApi, query: dict[str, object]) -> float:
    """Seconds; PATIENCE_S when there was none by then."""

    def ask() -> None:
        try:
            operator.get("placement", "/allocation_candidates", **query)
        except CloudError:
            done.append(PATIENCE_S)

    done: list[float] = []
    began = monotonic()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return PATIENCE_S if thread.is_alive() or done else monotonic() - began


if __name__ == "__main__":
    main()
    sys.exit(finish())
