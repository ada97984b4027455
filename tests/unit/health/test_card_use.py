"""What GPUs do, on the pages of those whose they are: as agents tell it, and to nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.health.idle import UseSeen
from gpuyard.health.web.card_use import _placed, use_line
from gpuyard.model.booking import Person
from gpuyard.site.health_rules import SiteHealth
from gpuyard.web.settings import OthersShown, PortalSettings
from tests.support.health_portals import ADAS, HealthPortal, fine, health_portal, says
from tests.support.ledgers import ADA, BOB, EVE, NOON, ROOT

ASKS = SiteHealth.model_validate({"agent": {"projects": ["physics"], "period": 60}})
GPU = f"gpu-1/{ADAS}"
IDLE = "used 0 % over the last 60 min, has done nothing for 1 h, 12 % of its memory, 41 °C"


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path, rules=ASKS)
    fine(made)
    return made


def seen(portal: HealthPortal, who: Person, path: str) -> str:
    answer = portal.browser(who).client.get(path)
    assert answer.status_code == 200
    return answer.text


def test_who_has_a_gpu_that_does_nothing_sees_it(portal: HealthPortal) -> None:
    assert "over the last" not in seen(portal, ADA, "/mine")
    says(portal, 0, minutes=75)
    assert f'<span class="rests">{IDLE}</span>' in seen(portal, ADA, "/mine")
    assert f'<span class="rests">{IDLE}</span>' in seen(portal, ADA, f"/gpu?name={GPU}")
    project = seen(portal, ADA, "/project").partition('id="held-title"')[2].partition("</section>")[0]
    assert '<span class="rests">used 0 % over the last 60 min, has done nothing for 1 h</span>' in project
    assert '<td class="number">12 %</td><td class="number">41 °C</td>' in project


def test_one_that_works_is_not_marked(portal: HealthPortal) -> None:
    says(portal, 60, minutes=10)
    page = seen(portal, ADA, "/mine")
    assert '<span class="">used 60 % over the last 11 min, 12 % of its memory, 41 °C</span>' in page
    assert "rests" not in page


def test_what_was_said_long_ago_is_not_what_it_does(portal: HealthPortal) -> None:
    says(portal, 60, minutes=10)
    portal.clock.forward(hours=2)
    page = seen(portal, ADA, "/mine")
    assert "what it does is not known now" in page
    assert "°C" not in page


@pytest.mark.parametrize("others", list(OthersShown))
def test_only_members_of_the_project_and_admins_see_it(tmp_path: Path, others: OthersShown) -> None:
    portal = health_portal(tmp_path, PortalSettings(others=others), ASKS)
    fine(portal)
    says(portal, 0, minutes=75)
    page = f"/gpu?name={GPU}"
    for who in (ADA, EVE, ROOT):
        assert IDLE in seen(portal, who, page)
    for path in (page, "/mine", "/project", "/gpus"):
        assert "nothing for" not in seen(portal, BOB, path)
        assert "°C" not in seen(portal, BOB, path)
    assert "has done nothing for 1 h" in seen(portal, EVE, "/project")
    assert "nothing for" not in seen(portal, EVE, "/mine")  # the server is another member's


def test_a_card_without_a_name_is_a_gpu_only_where_one_can_be_meant() -> None:
    named, nameless = UseSeen("h/a", "s", NOON, 5, 60), UseSeen("", "s", NOON, 7, 60)
    assert _placed(["h/a", "h/b"], [named, nameless]) == {"h/a": named, "h/b": nameless}
    assert _placed(["h/a", "h/b", "h/c"], [named, nameless]) == {"h/a": named}


@pytest.mark.parametrize(
    ("percent", "minutes", "idle", "little"),
    [
        (4, 30, 0, True),
        (5, 30, 0, False),
        (4, 29, 0, False),
        (0, 10, 600, True),
        (0, 9, 540, False),
        (None, 0, 0, False),
    ],
)
def test_little_is_said_of_what_was_heard_for_long_enough(
    percent: int | None, minutes: int, idle: int, little: bool
) -> None:
    assert use_line(UseSeen("h/a", "s", NOON, percent, minutes), idle).little is little
