"""``gpuyard gpu health``, ``report``, ``quarantine`` and ``repair``, and the same as ``openstack gpu ...``, against a
real portal; only Keystone is not there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.health.acceptance import TryState
from gpuyard.health.baseline import Baseline
from gpuyard.health.cli.health_rows import HEALTH, REPAIRS, REPEATS, TRIES
from gpuyard.health.records import HealthState
from gpuyard.health.store.tries import TryStore
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.site.health_rules import SiteHealth
from tests.support import openstack_commands
from tests.support.health_portals import ADAS, HealthPortal, fill, health_portal
from tests.support.inventories import NASTY
from tests.support.ledgers import ADA, BOB, NOON, ROOT
from tests.support.openstack_commands import take
from tests.support.people import token_of
from tests.support.served import serving, write_clouds
from tests.unit.health.test_repair_loans import RULES

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
MINE, OTHER = f"gpu-1/{ADAS}", "gpu-3/0000:18:00.0"
WHY = ("--comment", "it smells of smoke")


@pytest.fixture
def portal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HealthPortal]:
    """A portal that is served, of a site that accepts GPUs by servers."""
    with served_portal(tmp_path, monkeypatch, acceptance=True) as made:
        yield made


@pytest.fixture
def without_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HealthPortal]:
    """The same of a site that has no project for that."""
    with served_portal(tmp_path, monkeypatch, acceptance=False) as made:
        yield made


@contextmanager
def served_portal(folder: Path, monkeypatch: pytest.MonkeyPatch, *, acceptance: bool) -> Iterator[HealthPortal]:
    rules = SiteHealth.model_validate({"acceptance": {"required": ["repair"]}})
    made = health_portal(folder, rules=rules, acceptance=acceptance)
    fill(made)
    for name in ("GPUYARD_URL", "OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    with serving(made.app) as url:
        path = write_clouds(folder, url, (ADA, BOB, ROOT), lambda person: token_of(person)["X-Auth-Token"])
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        yield made


def invoke(who: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["gpu", *words, "--os-cloud", who])


def data(who: str, *words: str) -> Any:
    result = invoke(who, *words, "-f", "json")
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def said(who: str, *words: str) -> str:
    result = invoke(who, *words)
    if result.exception:
        raise result.exception
    return result.stdout


def refused(who: str, *words: str) -> str:
    error = invoke(who, *words).exception
    assert isinstance(error, GpuyardError), error
    return str(error)


def state(portal: HealthPortal, gpu: str = OTHER) -> HealthState:
    return portal.service.gpu(gpu).state


def test_every_gpu_or_those_that_are_asked_for(portal: HealthPortal) -> None:
    rows = data("ada", "health")
    assert [f"{row['Host']}/{row['Address']}" for row in rows] == [gpu.name for gpu in portal.service.store.gpus()]
    assert set(rows[0]) == set(HEALTH)
    assert {row["Pool"] for row in data("ada", "health", "--pool", "t4")} == {"t4"}
    assert {row["Host"] for row in data("ada", "health", "--host", "gpu-3")} == {"gpu-3"}
    bad = {row["State"].split(",")[0] for row in data("ada", "health", "--state", "quarantined")}
    assert bad == {"quarantined"}
    assert data("ada", "health", "--card", "no such card") == []


def test_one_gpu_with_its_record(portal: HealthPortal) -> None:
    record = data("root", "health", "gpu-1/0000:27:00.0")
    assert (record["host"], record["address"], record["scrubbed"]) == ("gpu-1", "0000:27:00.0", True)
    assert record["events"][-1]["state"] in {state.value for state in HealthState}
    assert [row["time"] for row in record["events"]] == sorted((row["time"] for row in record["events"]), reverse=True)
    table = said("root", "health", "gpu-1/0000:27:00.0")
    assert "its config space reads 0xff" in table
    assert "\x1b" not in said("root", "health", MINE)
    for format_ in ("table", "value", "csv", "yaml"):
        assert "1323022081234" in said("root", "health", "gpu-1/0000:27:00.0", "-f", format_)


def test_what_is_no_gpu_is_said(portal: HealthPortal) -> None:
    assert "'gpu-1' is no GPU; write host/address" in refused("ada", "health", "gpu-1")
    assert "there is no GPU 'gpu-9/0000:00:00.0'" in refused("ada", "health", "gpu-9/0000:00:00.0")
    assert isinstance(invoke("ada", "health", "gpu-1").exception, UsageError)


def test_who_has_a_gpu_reports_a_fault(portal: HealthPortal) -> None:
    assert said("ada", "report", MINE, "it is lost").startswith(f"GPU {MINE}: reported. It is ")
    (observation,) = portal.service.store.open_observations()
    assert (observation.code, observation.evidence, observation.by) == ("reported", "it is lost", "ada")
    assert "has no server on GPU" in refused("bob", "report", MINE, "it is lost")
    assert "words" in refused("ada", "report", MINE, " ")


def test_a_gpu_from_its_quarantine_to_its_return(portal: HealthPortal) -> None:
    before = state(portal)
    assert "nly admins can" in refused("ada", "quarantine", OTHER, *WHY)
    assert state(portal) is before
    shown = data("root", "quarantine", OTHER, *WHY)
    assert (shown["state"], shown["cause"], shown["by"]) == ("quarantined", "it smells of smoke", "root")
    assert said("root", "repair", "start", OTHER) == f"GPU {OTHER} is in repair; root looks after it.\n"
    assert said("root", "repair", "note", OTHER, "--comment", "reseated") == f"GPU {OTHER} is in repair.\n"
    row = next(repair for repair in data("root", "repair", "list") if repair["GPU"] == OTHER)
    assert set(row) == set(REPAIRS)
    assert (row["Keeper"], row["Tried"]) == ("root", "reseated")
    assert said("root", "repair", "abandon", OTHER, *WHY) == f"GPU {OTHER} is quarantined.\n"
    said("root", "repair", "start", OTHER, "--comment", "again")
    assert said("root", "repair", "done", OTHER, "--comment", "new riser") == f"GPU {OTHER} is to be accepted.\n"
    assert said("root", "repair", "release", OTHER, "--comment", "ran a night") == f"GPU {OTHER} is fine.\n"
    assert state(portal) is HealthState.FINE


@pytest.mark.parametrize("step", ["start", "note", "clear-baseline", "done", "abandon", "release"])
def test_repairs_are_for_admins_and_say_what_cannot_be(portal: HealthPortal, step: str) -> None:
    before = next(gpu for gpu in portal.service.store.gpus() if gpu.state is HealthState.FINE)
    assert "nly admins can" in refused("ada", "repair", step, before.name, *WHY)
    if step != "note":
        assert isinstance(invoke("root", "repair", step, before.name, *WHY).exception, BlockedError)
    if step != "start":
        assert invoke("root", "repair", step, before.name).exit_code == 2, "a comment is needed"
    assert portal.service.gpu(before.name) == before or step == "note"


def test_what_goes_bad_again_and_again(portal: HealthPortal) -> None:
    (row, *_) = data("root", "repair", "list", "--by", "card")
    assert set(row) == set(REPEATS)
    assert (row["Name"], row["Failures"]) == ("1323022081234", 2)
    assert {repeat["Name"] for repeat in data("root", "repair", "list", "--by", "host")} >= {"gpu-1"}
    assert "nly admins can" in refused("ada", "repair", "list")


def test_hostile_words_steer_no_terminal(portal: HealthPortal) -> None:
    portal.service.quarantine(OTHER, f"{NASTY} \x1b[2J", ROOT)
    for words in (("health",), ("health", OTHER), ("repair", "list")):
        assert "\x1b" not in said("root", *words)


# The same in `openstack`


def test_the_plugin_does_the_same(portal: HealthPortal) -> None:
    columns, rows = take("ada", "gpu health list", "--host", "gpu-3")
    assert (tuple(columns), len(rows)) == (HEALTH, 1)
    shown = openstack_commands.one("root", "gpu quarantine", OTHER, *WHY)
    assert (shown["state"], shown["by"]) == ("quarantined", "root")
    assert openstack_commands.one("root", "gpu repair start", OTHER)["state"] == "in repair"
    assert openstack_commands.one("root", "gpu repair note", OTHER, "--comment", "reseated")["state"] == "in repair"
    columns, rows = take("root", "gpu repair list")
    repair = dict(zip(columns, next(row for row in rows if OTHER in row), strict=True))
    assert (repair["Keeper"], repair["Tried"]) == ("root", "reseated")
    events = openstack_commands.one("root", "gpu health show", OTHER)["events"].splitlines()
    assert "reseated" in events[0]
    assert "it smells of smoke" in events[2]
    assert openstack_commands.one("root", "gpu repair abandon", OTHER, *WHY)["state"] == "quarantined"
    assert openstack_commands.one("root", "gpu repair start", OTHER)["keeper"] == "root"
    assert openstack_commands.one("root", "gpu repair done", OTHER, *WHY)["state"] == "to be accepted"
    assert openstack_commands.one("root", "gpu repair release", OTHER, *WHY)["state"] == "fine"
    assert openstack_commands.one("ada", "gpu report", MINE, "it is lost")["address"] == ADAS
    with pytest.raises(BlockedError, match="nly admins can"):
        openstack_commands.one("ada", "gpu quarantine", OTHER, *WHY)


def test_accepting_needs_a_project(without_project: HealthPortal) -> None:
    assert "write 'project' and 'image' under 'health: acceptance:'" in refused("root", "accept")
    with pytest.raises(BlockedError, match="health: acceptance"):
        take("root", "gpu accept")


def test_accepting_needs_an_admin(portal: HealthPortal) -> None:
    assert portal.services.acceptance is not None
    refused("ada", "accept", OTHER)
    assert portal.services.acceptance.batch("") == []


@pytest.mark.parametrize("outcome", [TryState.PASSED, TryState.FAILED])
def test_gpus_are_accepted_and_waited_for(
    portal: HealthPortal, monkeypatch: pytest.MonkeyPatch, outcome: TryState
) -> None:
    mended = "gpu-2/0000:18:00.0"
    said("root", "repair", "start", mended, *WHY)
    said("root", "repair", "done", mended, *WHY)
    assert state(portal, mended) is HealthState.TO_ACCEPT
    tries = TryStore(portal.ledger.database)

    def all_of_it(seconds: float) -> None:
        """What the loop would come to meanwhile."""
        for attempt in tries.open():
            assert tries.put(replace(attempt, state=outcome, cause="as it should be"))

    monkeypatch.setattr(time, "sleep", all_of_it)
    result = invoke("root", "accept", mended, "--wait", "-f", "json")
    assert result.exit_code == (0 if outcome is TryState.PASSED else 1), result.output
    (row,) = json.loads(result.stdout)
    assert (row["State"], row["GPU"], row["Cause"]) == (outcome.value, mended, "as it should be")
    assert (result.stderr, set(row)) == ("", set(TRIES))
    both = invoke("root", "accept", mended, MINE, "-f", "json")
    assert [attempt["GPU"] for attempt in json.loads(both.stdout)] == [mended]
    assert f"not tried: GPU {MINE} " in both.stderr


def test_the_plugin_lends_gpus_and_has_them_accepted(portal: HealthPortal) -> None:
    for step in ("quarantine", "repair start", "repair done"):
        openstack_commands.one("root", f"gpu {step}", OTHER, *WHY)
    columns, rows = take("root", "gpu accept", OTHER, "--no-canary")
    assert (tuple(columns), [row[:2] for row in rows]) == (TRIES, [["waiting", OTHER]])
    portal.service.rules = portal.service.rules.model_copy(update={"repair": RULES.repair})
    out = next(gpu.name for gpu in portal.service.store.gpus() if gpu.state is HealthState.QUARANTINED)
    lent = openstack_commands.one("root", "gpu repair lend", out, "--for", "3h", "--comment", "memtest")
    assert lent["state"] == "quarantined"
    assert f"GPU {out} is lent to project biology until 2026-11-23T15:00:00Z" in lent["next"]
    assert openstack_commands.one("root", "gpu repair return", out)["state"] == "quarantined"
    assert portal.ledger.loans.current() == []
    with pytest.raises(BlockedError, match="nly admins can"):
        take("ada", "gpu repair lend", out)


def test_a_baseline_is_shown_and_cleared(portal: HealthPortal) -> None:
    gpu = portal.service.gpu(OTHER)
    portal.service.store.put(replace(gpu, baseline=Baseline(NOON, "root", "", {"link-width": 8})))
    assert data("root", "health", OTHER)["baseline"].startswith("8 PCIe lanes (taken ")
    assert said("root", "repair", "clear-baseline", OTHER, *WHY).startswith(f"GPU {OTHER} is ")
    assert data("root", "health", OTHER)["baseline"] == ""
