"""An image with NVIDIA's driver, built to its end from Debian's own packages, and booted where there is no GPU.

Debian's dkms compiles the module in the build, and the real kernel loads it: as far as it goes without a GPU. Nothing
here says anything of a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuyard.images.check import check_image
from gpuyard.model.finding import Severity
from tests.support.on_request import only_by
from tests.virtual_hypervisor import server_image, testing
from tests.virtual_hypervisor.config_drive import UUID
from tests.virtual_hypervisor.server_image import DRIVER_BRANCH, BuiltImage

pytestmark = [pytest.mark.virtual, pytest.mark.slow, only_by("driver", "ten minutes")]


@pytest.fixture(scope="module")
def built() -> BuiltImage:
    return testing.server_image(server_image.driver_image)


def test_all_of_the_driver_is_of_the_branch_that_was_asked_for(built: BuiltImage) -> None:
    bill = json.loads((built.folder / built.manifest.bill.file).read_bytes())
    versions = {component["name"]: component["version"] for component in bill["components"]}
    driver = ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "firmware-nvidia-gsp")
    assert {versions[name].partition(".")[0] for name in driver} == {DRIVER_BRANCH}
    (kernel,) = built.manifest.kernels
    assert {f"linux-image-{kernel}", f"linux-headers-{kernel}"} <= versions.keys()
    assert built.manifest.module == "proprietary", "a V100 has no other"


def test_its_module_loads_in_its_kernel(built: BuiltImage, tmp_path: Path) -> None:
    findings = check_image(
        built.disk,
        built.manifest.virtual_bytes,
        built.manifest.build,
        module=built.manifest.module,
        nonce="0123456789abcdef",
        uuid=UUID,
        console=tmp_path / "console",
    )
    shown = "\n".join(line for finding in findings for line in finding.lines())
    assert {finding.severity for finding in findings} == {Severity.OK}, shown
    (driver,) = [finding.reason for finding in findings if finding.code == "driver"]
    assert driver.startswith(f"NVIDIA's proprietary kernel module {DRIVER_BRANCH}."), shown
    assert driver.endswith("loads and finds no GPU, as there is none here"), shown
