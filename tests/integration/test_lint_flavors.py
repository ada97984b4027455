"""The linter on flavors of the real Nova: read by gpuyard itself, and printed by the openstack client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.site.compile import CompiledSite
from gpuyard.site.options import file_name, render_ini
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

BAD = {
    "lint-class": {"resources:CUSTOM_GPU_K40C": "1"},
    "lint-unknown": {"pci_passthrough:alias": "k80:1"},
    "lint-old": {"hide_hypervisor_id": "true", "pci_passthrough:alias": "v100:1"},
    "lint-wide": {"pci_passthrough:alias": "v100:6"},
}
EXPECTED = {
    ("lint-class", "flavor-takes-pci-class"),
    ("lint-unknown", "flavor-alias-unknown"),
    ("lint-old", "flavor-hide-hypervisor"),
    ("lint-wide", "wide-flavor"),
}


@pytest.fixture
def rendered(tmp_path: Path, example: CompiledSite) -> Path:
    """The example site's options, as files."""
    for options in example.options:
        path = tmp_path / "out" / file_name(options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_ini(options.options))
    return tmp_path / "out"


@pytest.fixture
def bad(operator: CloudApi, applied: None) -> Iterator[None]:
    """Flavors that Nova takes and that go wrong."""
    try:
        for name, specs in BAD.items():
            body = {"id": name, "name": name, "vcpus": 1, "ram": 512, "disk": 1}
            operator.request("POST", "compute", "/flavors", {"flavor": body})
            operator.request("POST", "compute", f"/flavors/{name}/os-extra_specs", {"extra_specs": specs})
        yield
    finally:
        for name in BAD:
            operator.request("DELETE", "compute", f"/flavors/{name}")


def rules(*arguments: object) -> set[tuple[str, str]]:
    """Flavor and rule of each finding."""
    result = CliRunner().invoke(app, ["site", "lint", *map(str, arguments), "-f", "json"])
    rows = json.loads(result.stdout)
    return {(row["object"].split(" flavor ")[-1], row["code"]) for row in rows}


def test_the_example_as_it_is_applied_has_no_findings(lab: RunningLab, rendered: Path, applied: None) -> None:
    recordings = [f"--recording={path}" for path in sorted((EXAMPLE_SITE.parent / "recordings").glob("*.json"))]
    assert rules(rendered, "--os-cloud", ADMIN_CLOUD, *recordings) == set()


def test_flavors_of_the_cloud_and_of_the_client_get_the_same_findings(
    lab: RunningLab, rendered: Path, bad: None, tmp_path: Path
) -> None:
    assert rules(rendered, "--os-cloud", ADMIN_CLOUD) == EXPECTED
    client = Path(sys.executable).with_name("openstack")
    command = [str(client), "--os-cloud", ADMIN_CLOUD, "flavor", "list", "--all", "--long", "-f", "json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    (tmp_path / "flavors.json").write_text(printed.stdout)
    assert rules(rendered, "--flavors", tmp_path / "flavors.json") == EXPECTED


def test_nova_refuses_the_flavor_whose_alias_nobody_defines(operator: CloudApi, bad: None) -> None:
    image = operator.get("image", "/images")["images"][0]["id"]
    body = {"name": "x", "flavorRef": "lint-unknown", "imageRef": image, "networks": "none"}
    with pytest.raises(CloudError, match="k80") as refused:
        operator.request("POST", "compute", "/servers", {"server": body})
    assert refused.value.status == 400
