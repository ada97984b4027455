"""A plan in a file is carried out as it was read, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.stored_plan import StoredPlan, parse_plan, render_plan, require_same

STEP = Step(Verb.UPDATE, "flavor", "small", "differs", {"ram": 1, "public": True}, {"ram": 2, "public": True})
STORED = StoredPlan("test", "prod", True, (STEP,))


def test_there_and_back() -> None:
    assert parse_plan(render_plan(STORED), "plan.json") == STORED
    require_same(STORED, "test", "prod", Plan((STEP,)))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": 1, "steps": [{}]}', '{"format": 1, "steps": 3}'])
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(UsageError, match=r"plan.json: is no plan that 'gpuyard site plan -o' wrote"):
        parse_plan(text, "plan.json")


def test_a_plan_of_another_version() -> None:
    with pytest.raises(UsageError, match=r"plan.json: is a plan of another version"):
        parse_plan(render_plan(STORED).replace('"format": 1', '"format": 9'), "plan.json")


def test_for_another_site_or_cloud() -> None:
    with pytest.raises(UsageError, match="for site test on cloud prod, and this is site test on lab"):
        require_same(STORED, "test", "lab", Plan((STEP,)))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ((), "update flavor small is no longer to be done, or not like this"),
        ((STEP, replace(STEP, name="other")), "update flavor other is new"),
        ((replace(STEP, before={"ram": 4, "public": True}),), "update flavor small differs: was ram: 1 -> 4"),
        ((replace(STEP, after={"ram": 8, "public": True}),), "update flavor small differs: wanted ram: 2 -> 8"),
    ],
)
def test_the_world_has_moved(now: tuple[Step, ...], says: str) -> None:
    with pytest.raises(BlockedError) as refused:
        require_same(STORED, "test", "prod", Plan(now))
    assert "has changed since the plan was made, so nothing was done; plan again" in str(refused.value)
    assert says in str(refused.value)
