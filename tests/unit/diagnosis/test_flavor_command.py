"""``gpuyard flavor`` and ``openstack gpu flavor list`` against a portal, and without one."""

from __future__ import annotations

import json
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app, run
from gpuyard.client.client import Client
from gpuyard.client.portal import open_session
from gpuyard.diagnosis.cli.flavor_rows import FLAVORS, flavor_fields
from gpuyard.site.load import LoadedSite
from tests.support.ledgers import ADA, BOB, open_ledger
from tests.support.rooms import Knows, room_of
from tests.support.served import RealClock, served, write_clouds
from tests.support.sites import site
from tests.support.sysfs import epyc

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")

FLAVOR = {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "ephemeral": "1 GiB", "gpus": {"v100": 1}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedSite:
    return site(tmp_path_factory.mktemp("site"), {"flavors": {"one": FLAVOR}}, {"gpu-1": epyc()})


def test_all_of_them_say_the_same(loaded: LoadedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Knows(room_of(loaded), {ADA.project_id: {"class:CUSTOM_GPU_V100_COUNT": 2}})
    ledger = open_ledger(tmp_path, clock=RealClock())
    with served(ledger, [ADA, BOB], capacity=cloud) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, [ADA, BOB])))
        answer = Client(open_session("ada", url)).flavors()
        ask = ["flavor", "list", "--os-cloud", "ada", "--url", url, "-f", "json"]
        listed = json.loads(CliRunner().invoke(app, ask).stdout)
        shown = CliRunner().invoke(app, ["flavor", "show", "one", *ask[2:]])
        columns, rows = of_openstack(Client(open_session("ada", url)))
        monkeypatch.setattr("sys.argv", ["gpuyard", "flavor", "show", "two", *ask[2:]])
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 2
    assert [(row["Flavor"], row["Now"], row["Disk"], row["Answer"]) for row in listed] == [("one", 2, 21, "2 now")]
    assert tuple(columns) == FLAVORS
    assert [[value or "" for value in row.values()] for row in listed] == [
        [value or "" for value in row] for row in rows
    ]
    fields = json.loads(shown.stdout)
    assert fields == {**flavor_fields(answer["flavors"][0], ZoneInfo("UTC"))}
    assert "2 GPUs: quota: with these, the limit of project physics on GPUs of pool v100 is reached" in fields["others"]
    ledger.close()


def of_openstack(client: Client) -> tuple[Any, Any]:
    openstack: Any = SimpleNamespace(client_manager=SimpleNamespace(gpu=client))
    (entry,) = [
        entry_point for entry_point in entry_points(group="openstack.gpu.v1") if entry_point.name == "gpu_flavor_list"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # osc_lib warns of itself
        command = entry.load()(openstack, None)
    table: tuple[Any, Any] = command.take_action(command.get_parser("gpu flavor list").parse_args([]))
    return table
