"""The whole way of an image: built by diskimage-builder from Debian's packages, booted as a server of a cloud, brought
to the lab's Glance, promoted, and a server of it made as runners' are.

Its config drive is made by Nova's own code. tests/virtual/test_runner_boot.py runs jobs in the same image.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep

import pytest

from gpuyard.images.build import build_image
from gpuyard.images.check import check_image, keep_verdict
from gpuyard.images.checking import HOST_NAME
from gpuyard.images.element_files import own_elements
from gpuyard.images.glance import GlanceShelf
from gpuyard.images.manifest import manifest_path, read_manifest
from gpuyard.images.planner import plan_build
from gpuyard.images.publishing import StoredImage
from gpuyard.model.finding import Finding, Severity
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.servers import NovaServers, ServerWish
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import IMAGE
from tests.integration.conftest import RunningLab
from tests.support.image_command import image_command
from tests.support.sites import plain_site
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.config_drive import UUID
from tests.virtual_hypervisor.server_image import DAY, BuiltImage

pytestmark = [pytest.mark.virtual, pytest.mark.slow]


@pytest.fixture(scope="module")
def built() -> BuiltImage:
    return testing.server_image()


@pytest.fixture(scope="module")
def findings(built: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """Of a server of the image."""

    def novas_drive(user_data: str, uuid: str, drive: Path) -> None:
        testing.drive(drive.parent, HOST_NAME, user_data, {}).rename(drive)

    findings = check_image(
        built.disk,
        built.manifest.virtual_bytes,
        built.manifest.build,
        nonce="0123456789abcdef",
        uuid=UUID,
        console=tmp_path_factory.mktemp("check") / "console",
        make_drive=novas_drive,
    )
    keep_verdict(built.disk, findings, datetime.now(UTC))
    return findings


def test_a_build_says_what_it_is(built: BuiltImage, tmp_path: Path) -> None:
    made = built.manifest
    assert read_manifest(manifest_path(built.folder, made.name)) == made
    shown = json.loads(
        subprocess.run(["qemu-img", "info", "--output=json", built.disk], capture_output=True, check=True).stdout
    )
    assert (shown["format"], shown["virtual-size"]) == ("qcow2", made.virtual_bytes)
    assert made.disk.bytes < 600 << 20, "what nobody has asked for is not in it"
    bill = json.loads((built.folder / made.bill.file).read_bytes())
    names = {component["name"] for component in bill["components"]}
    assert {"cloud-init", "cloud-guest-utils", "linux-image-amd64", "grub-pc"} <= names
    assert made.packages == len(bill["components"])
    assert len(made.kernels) == 1
    again = build_image(plan_build(IMAGE, made.build, own_elements(), DAY), built.folder, tmp_path / "nowhere", print)
    assert again == made, "what is there is not built again"


def test_it_is_a_server_of_a_cloud(findings: list[Finding]) -> None:
    shown = "\n".join(line for finding in findings for line in finding.lines())
    assert [finding.code for finding in findings] == [
        "image-boots",
        "cloud-init",
        "root-grows",
        "pci-device",
        "units",
        "runner",
        "agent",
    ]
    assert {finding.severity for finding in findings} == {Severity.OK}, shown


@pytest.fixture
def shelf(operator: CloudApi) -> Iterator[GlanceShelf]:
    """As it was again afterwards."""
    shelf = GlanceShelf(operator)
    before = shelf.builds(IMAGE)
    yield shelf
    (was,) = [build for build in before if build.promoted]
    image_command("promote", was.build)
    for build in shelf.builds(IMAGE):
        if build.id not in {old.id for old in before}:
            shelf.delete(build)


@pytest.mark.lab
def test_the_lab_makes_servers_of_it(
    built: BuiltImage,
    findings: list[Finding],
    lab: RunningLab,
    applied: None,
    user: CloudApi,
    operator: CloudApi,
    exercise: Exercise,
    shelf: GlanceShelf,
) -> None:
    assert [build.promoted for build in shelf.builds(IMAGE)] == [True], "the lab's own, by the same definition"
    image_command("upload", str(built.disk), "--site", str(plain_site()))
    image_command("promote", built.manifest.name)
    (now,) = promoted(shelf)
    assert now.bytes == built.manifest.disk.bytes
    audited = image_command("audit", IMAGE, "-o", str(built.folder)).splitlines()
    (audit_line,) = [line for line in audited if line.startswith(f"{now.build}: ")]
    assert "of its" in audit_line, "compared with Debian's own archive"
    servers = NovaServers(user, "example", "none")
    id = servers.create(ServerWish("gpuyard-of-a-build", flavor="gpu_tiny", image=IMAGE, user_data="#cloud-config\n"))
    end = monotonic() + 60
    while (server := servers.get(id)) is None or server.status == "BUILD":
        assert monotonic() < end, server
        sleep(0.1)
    row = operator.get("compute", f"/servers/{id}")["server"]
    assert (row["status"], row["image"]["id"]) == ("ACTIVE", now.id), row.get("fault")
    assert f"{now.build}: stays: servers that ask for the image get it" in image_command(
        "prune", IMAGE, "--site", str(plain_site()), "--yes", "--keep", "9"
    )
    exercise.delete([id])


def promoted(shelf: GlanceShelf) -> list[StoredImage]:
    return [build for build in shelf.builds(IMAGE) if build.promoted]
