"""A plan in a file is carried out as it was read, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.site.objects import FlavorObject
from gpuyard.site.steps import FlavorStep, SitePlan
from gpuyard.site.stored_plan import parse_plan, render_plan, require_same, store_plan

OLD = FlavorObject("small", vcpus=1, ram=1, disk=1, extra_specs={"hw:x": "1"}, projects=frozenset({"demo"}))
NEW = replace(OLD, ram=2)
STEP = FlavorStep("differs", OLD, NEW)
STORED = store_plan("test", "prod", True, SitePlan((STEP,)))
# As version 0.5.0 wrote it.
WRITTEN = """{"format": 1, "site": "test", "cloud": "prod", "prune": true, "steps": [
  {"verb": "replace", "kind": "flavor", "name": "small", "reason": "differs",
   "before": {"vcpus": 1, "ram": 1, "disk": 1, "ephemeral": 0, "public": true, "description": "",
              "property hw:x": "1", "access demo": "yes"},
   "after": {"vcpus": 1, "ram": 2, "disk": 1, "ephemeral": 0, "public": true, "description": "",
             "property hw:x": "1", "access demo": "yes"}}]}"""


def test_there_and_back() -> None:
    assert parse_plan(render_plan(STORED), "plan.json") == STORED
    require_same(STORED, STORED)


def test_the_file_is_as_it_was() -> None:
    assert parse_plan(WRITTEN, "plan.json") == STORED


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", '{"format": 1, "steps": [{}]}', '{"format": 1, "steps": 3}', "[" * 100_000,
        '{"format": 1, "site": "a", "cloud": "b", "prune": true, "steps": [{"before": 1, "after": {}}]}',
    ],
)  # fmt: skip
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(UsageError, match=r"plan.json: is no plan that 'gpuyard site plan -o' wrote"):
        parse_plan(text, "plan.json")


def test_a_plan_of_another_version() -> None:
    with pytest.raises(UsageError, match=r"plan.json: is a plan of another version"):
        parse_plan(render_plan(STORED).replace('"format": 1', '"format": 9'), "plan.json")


def test_for_another_site_or_cloud() -> None:
    with pytest.raises(UsageError, match="for site test on cloud prod, and this is site test on lab"):
        require_same(STORED, replace(STORED, cloud="lab"))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ((), "replace flavor small is no longer to be done, or not like this"),
        ((STEP, FlavorStep("new", None, replace(NEW, name="other"))), "create flavor other is new"),
        ((FlavorStep("differs", replace(OLD, ram=4), NEW),), "replace flavor small differs: was ram: 1 -> 4"),
        ((FlavorStep("differs", OLD, replace(NEW, ram=8)),), "replace flavor small differs: wanted ram: 2 -> 8"),
    ],
)
def test_the_world_has_moved(now: tuple[FlavorStep, ...], says: str) -> None:
    with pytest.raises(BlockedError) as refused:
        require_same(STORED, store_plan("test", "prod", True, SitePlan(now)))
    assert "has changed since the plan was made, so nothing was done; plan again" in str(refused.value)
    assert says in str(refused.value)
