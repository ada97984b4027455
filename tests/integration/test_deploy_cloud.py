"""The last steps of a deployment, on the lab's real Keystone, Nova and Placement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.openstack.api import CloudApi
from gpuyard.provisioning.access.limit_reader import let_nova_read_limits, nova_reads_limits
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab.clients import ADMIN_CLOUD
from tests.support.sites import flavor, site, write_site
from tests.support.sysfs import Sysfs

pytestmark = pytest.mark.lab

P4 = "10de:1bb3"
POOLS = {"deployed": {"models": [P4]}}
"""A name of its own: the default limit on a pool's class stays in Keystone, and would refuse another site's."""
DEPLOY = {
    "interface": "eno1",
    "external_interface": "eno2",
    "hosts": {"host": {"address": "192.0.2.7"}},
}
DOCUMENT = {
    "site": "deployed",
    "hosts": {"host": {"recording": "host.json"}},
    "pools": POOLS,
    "flavors": {"x_deployed": flavor(gpus={"deployed": 1})},
    "deploy": DEPLOY,
}


@pytest.fixture
def site_file(tmp_path: Path, operator: CloudApi, applied: None) -> Iterator[Path]:
    """A site beside the example; what it made is taken away again, and Nova may read limits as before."""
    machine = Sysfs().function("05:00.0", P4, group=1)
    yield write_site(tmp_path, json.dumps(DOCUMENT), {"host": machine})
    let_nova_read_limits(operator)
    (tmp_path / "empty").mkdir()
    empty = site(tmp_path / "empty", {"site": "deployed", "pools": POOLS}, {"host": machine}).compiled
    observed = read_objects(operator, empty)
    SiteApplier(operator, observed).apply(plan_site(empty, observed, prune=True), lambda step: None)


def forbid(operator: CloudApi) -> None:
    (user,) = operator.get("identity", "/users", name="nova", domain_id="default")["users"]
    (role,) = operator.get("identity", "/roles", name="reader")["roles"]
    operator.request("DELETE", "identity", f"/system/users/{user['id']}/roles/{role['id']}")


def test_nova_may_read_limits_and_the_site_is_applied_once(operator: CloudApi, site_file: Path, tmp_path: Path) -> None:
    words = ["--site", str(site_file), "--from", "limits", "--until", "apply", "--os-cloud", ADMIN_CLOUD]
    words += ["--state", str(tmp_path / "state")]
    forbid(operator)
    assert not nova_reads_limits(operator)
    planned = CliRunner().invoke(app, ["deploy", "plan", *words])
    assert planned.exit_code == 0, planned.output
    assert "+  limits: to do: Nova reads limits in Keystone as its own user" in planned.output
    assert "     create flavor x_deployed" in planned.output
    done = CliRunner().invoke(app, ["deploy", "run", "--yes", *words])
    assert done.exit_code == 0, done.output
    assert "[1/2] limits: done after" in done.output
    assert "[2/2] apply: done after" in done.output
    assert nova_reads_limits(operator)
    compiled = load_site(site_file).compiled
    assert plan_site(compiled, read_objects(operator, compiled)).steps == ()
    again = CliRunner().invoke(app, ["deploy", "run", "--yes", *words])
    assert again.output == "Nothing to do: all is as the site file says.\n"
