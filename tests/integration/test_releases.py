"""Every supported release of Nova and Placement, as released, takes what a site of that release comes out as."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard.nova.release import RELEASES, Release
from gpuyard.site.options import render_ini
from gpuyard.site.provider_config import COMPUTE_NODE, render_provider_config
from gpuyard_lab.releases.catalogue import OWN, lab_release
from tests.support import release_probe, uv
from tests.support.sites import flavor, site
from tests.support.sysfs import T4, V100, Sysfs, epyc

pytestmark = pytest.mark.slow

CACHE_VARIABLE = "GPUYARD_TEST_CACHE"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the releases are installed; GPUYARD_TEST_CACHE keeps them from one run to the next."""
    cache_folder = os.environ.get(CACHE_VARIABLE)
    return Path(cache_folder) if cache_folder else tmp_path_factory.mktemp("releases")


def python_of(cache: Path, release: Release) -> Path:
    """The Python of a release, installed from PyPI in the versions that a lab of it has; the lab's own is this one."""
    if release.name == OWN:
        return Path(sys.executable)
    pinned = lab_release(release.name)
    venv = cache / f"nova-{pinned.services['nova']}"
    python = venv / "bin" / "python"
    if not (venv / "complete").exists():
        subprocess.run([uv.program(), "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)], check=True)
        # Older releases import pkg_resources, which setuptools has had until 80.
        packages = ["nova", "openstack-placement", "setuptools", "--constraint", str(pinned.lock)]
        subprocess.run([uv.program(), "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
        (venv / "complete").touch()
    return python


def probe(cache: Path, release: Release, folder: Path) -> dict[str, Any]:
    command = [str(python_of(cache, release)), str(Path(release_probe.__file__).resolve()), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def everything(folder: Path, release: Release, stage: str) -> Any:
    """A site that uses whatever the release has."""
    wide = Sysfs()
    for bus in range(8):
        wide.function(f"{0x10 + bus:02x}:00.0", T4, group=bus + 1)
    document = {
        "release": release.name,
        "pci_in_placement": stage,
        "exclusive": True,
        "hosts": {
            "gpu-server": {"recording": "gpu-server.json", "cpu_allocation_ratio": 2.0}
            | ({"reserve": "largest-flavors"} if release.limits_named else {}),
            "wide": {"recording": "wide.json", "cpu_shared_set": "0-7", "cpu_dedicated_set": "8-15"},
        },
        "pools": {
            "v100": {"models": [V100], "numa": "preferred"}
            | ({"managed": False, "live_migratable": True} if release.managed else {}),
            "t4": {"models": [T4], "alias": "T4", "one_time_use": release.one_time_use and stage != "off"},
        },
        "aggregates": {"big": {"hosts": ["wide"], "availability_zone": "gpu"}},
        "flavors": {
            "one": flavor(gpus={"v100": 1}),
            "eight": flavor(gpus={"t4": 8}, aggregates=["big"]),
            **({"pair": flavor(gpus={"v100": 2}, same_group=True)} if stage == "on" else {}),
        },
        "projects": {"demo": {"gpus": {"v100": 2}}},
    }
    return site(folder, document, {"gpu-server": epyc(), "wide": wide}).compiled


STAGES = ("off", "report", "on")
CASES = [
    pytest.param(release, stage, id=f"{release.name}-{stage}")
    for release in RELEASES.values()
    for stage in (STAGES if release.nova >= 31 else ("on",))  # of the oldest the one that asks for the most
]


@pytest.mark.parametrize(("release", "stage"), CASES)
def test_a_release_takes_what_is_rendered_for_it(cache: Path, tmp_path: Path, release: Release, stage: str) -> None:
    compiled = everything(tmp_path, release, stage)
    common = [*compiled.options_of("nova").options, *compiled.options_of("nova-scheduler").options]
    (tmp_path / "nova.conf").write_text(render_ini(common))
    (tmp_path / "placement.conf").write_text(
        render_ini(compiled.options_of("placement").options) + "\n[placement_database]\nconnection = sqlite://\n"
    )
    (tmp_path / "flavors.json").write_text(json.dumps({flavor.name: flavor.extra_specs for flavor in compiled.flavors}))
    for host in compiled.site.hosts:
        (tmp_path / host / "provider_config").mkdir(parents=True)
        (tmp_path / host / "nova-compute.conf").write_text(
            render_ini(compiled.options_of("nova-compute", host).options)
        )
        text = render_provider_config(compiled.provider_config_of(host))
        (tmp_path / host / "provider_config" / "gpuyard.yaml").write_text(text)
    probed = probe(cache, release, tmp_path)
    assert probed["unknown_placement"] == []
    for host in compiled.site.hosts:
        specs = compiled.options_of("nova-compute", host).values("pci", "device_spec")
        expected = {"unknown": [], "specs": [json.loads(value) for value in specs], "providers": [COMPUTE_NODE]}
        assert probed["hosts"][host] == expected
    classes = ["CUSTOM_GPU_V100", "CUSTOM_GPU_T4"] if stage == "on" else [None, None]
    assert probed["asked"]["one"] == [[1, [classes[0]]]]
    assert probed["asked"]["eight"] == [[8, [classes[1]]]]
    assert probed["required_list"] == release.limits_named
    for feature in ("managed", "limits_lookup", "wide_trees", "one_time_use", "pci_quotas", "several_vgpus"):
        assert probed[feature] is getattr(release, feature), feature
