"""The page of a project: its numbers against a reckoning of their own, and who sees whose share."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from gpuyard.dashboard.project_presenter import _members
from gpuyard.model.booking import Person, Rules
from gpuyard.usage.accounts import UseKind, use_of
from gpuyard.usage.records import Interval, Slice, Sum, Tenure, TrackState
from tests.support.accounting import accounting_portal, accounting_site
from tests.support.health_portals import HealthPortal, fine, health_portal, site_gpus, status_of
from tests.support.ledgers import ADA, BOB, DAY, EVE, HOUR, NOON, ROOT, ask
from tests.support.pages_world import furnish, live, lives

MONTH = NOON.replace(day=1, hour=0)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> HealthPortal:
    """For those who only look."""
    return made(tmp_path_factory.mktemp("portal"))


def made(folder: Path) -> HealthPortal:
    portal = health_portal(folder)
    fine(portal)
    furnish(portal)
    live(portal)
    return portal


def known(project: str, start: datetime, end: datetime, pool: str = "") -> Counter[UseKind]:
    seconds_by_kind: Counter[UseKind] = Counter()
    for interval in lives():
        if interval.tenure.project == project and pool in ("", interval.pool):
            seconds_by_kind[use_of(interval.state, interval.tenure.kind)] += interval.seconds(start, end)
    return seconds_by_kind


def page(portal: HealthPortal, who: Person, query: str = "") -> str:
    answer = portal.browser(who).client.get(f"/project{query}")
    assert answer.status_code == 200
    return answer.text


def hours(seconds: int) -> str:
    return f"{seconds / 3600:.1f}"


def numbers(text: str) -> list[str]:
    return re.findall(r"<b>(\d.*?)</b>", text.partition('class="counts"')[2].partition("</ul>")[0])


def rows(text: str, id: str) -> dict[str, list[str]]:
    table = text.partition(f'<h2 id="{id}"')[2].partition("</section>")[0]
    matches = re.findall(r'<th scope="row"><bdi>(.*?)</bdi></th>(.*?)</tr>', table, re.DOTALL)
    return {name: re.findall(r'<td class="number">(.*?)</td>', cells) for name, cells in matches}


@pytest.mark.parametrize(("who", "project"), [(ADA, "physics"), (BOB, "biology")])
def test_the_numbers_of_a_month(portal: HealthPortal, who: Person, project: str) -> None:
    text, uses = page(portal, who), known(project, MONTH, NOON)
    used = uses[UseKind.BOOKED] + uses[UseKind.RUNNER] + uses[UseKind.UNBOOKED]
    booked = uses[UseKind.BOOKED] + uses[UseKind.BOOKED_UNUSED]
    assert numbers(text) == [
        hours(seconds) for seconds in (used, booked, uses[UseKind.BOOKED_UNUSED], uses[UseKind.UNBOOKED])
    ]
    pools = rows(text, "by-pool")
    assert set(pools) == {"t4", "v100"}
    for pool, cells in pools.items():
        mine = known(project, MONTH, NOON, pool)
        kinds = (UseKind.BOOKED, UseKind.RUNNER, UseKind.UNBOOKED, UseKind.STARTING, UseKind.BOOKED_UNUSED)
        assert cells[1:] == [hours(mine[kind]) for kind in kinds]


def test_another_month(portal: HealthPortal) -> None:
    before = (MONTH - DAY).replace(day=1)
    uses = known("physics", before, MONTH)
    used = uses[UseKind.BOOKED] + uses[UseKind.RUNNER] + uses[UseKind.UNBOOKED]
    text = page(portal, ADA, f"?month={before:%Y-%m}")
    assert numbers(text)[0] == hours(used)
    assert re.findall(r'href="project\?month=(20\d\d-\d\d)"', text) == [f"{MONTH:%Y-%m}", f"{before:%Y-%m}"]
    empty = page(portal, ADA, "?month=2026-01")
    assert "This project had no GPUs in this month." in empty
    assert portal.browser(ADA).client.get("/project?month=2026-13").status_code == 422


def test_members_shares_are_for_managers_and_admins(tmp_path: Path) -> None:
    portal = made(tmp_path)
    mine = rows(page(portal, ADA), "by-member")
    assert set(mine) == {"ada"}
    eve = page(portal, EVE)  # a reader there, who has used nothing
    assert set(rows(eve, "by-member")) == {"others"}
    assert "GPU-hours: you, and the others together" in eve
    assert set(rows(page(portal, ROOT, "?id=p-physics"), "by-member")) == {"ada"}
    portal.people.users_by_id[EVE.user_id].roles["p-physics"] = frozenset({"manager"})
    managing = page(portal, EVE)
    assert set(rows(managing, "by-member")) == {"ada"}
    assert rows(managing, "by-member")["ada"] == mine["ada"] == rows(eve, "by-member")["others"]


def test_two_members_of_one_name_have_shares_of_their_own() -> None:
    def used(user_id: str, user: str, seconds: int) -> Sum:
        return Sum(None, Slice("", "t4", "", "p", "physics", user_id, user, "", "claimed", ""), seconds)

    sums = [used("u-1", "ada", 3600), used("u-2", "ada", 7200), used("u-3", "others", 1800), used("u-4", "eve", 900)]
    lines = _members(sums, lambda user_id: user_id != "u-4")
    assert [(line.key[0], line.used) for line in lines] == [
        ("ada (u-2)", 7200), ("ada (u-1)", 3600), ("others", 1800), ("others", 900),
    ]  # fmt: skip


def test_other_projects_are_not_theirs_to_see(portal: HealthPortal) -> None:
    assert portal.browser(BOB).client.get("/project?id=p-physics").status_code == 403
    assert portal.browser(BOB).client.get("/project?id=physics").status_code == 403
    assert portal.browser(ROOT).client.get("/project?id=nonsense").status_code == 422
    also = page(portal, ADA, "?id=p-biology")  # she reads there
    assert "students" in also
    assert set(rows(also, "by-member")) == {"others"}


def test_whoever_may_see_all_projects_chooses_any(portal: HealthPortal) -> None:
    text = page(portal, ROOT)
    chosen = re.search(r'<datalist id="projects">(.*?)</datalist>', text)
    assert chosen is not None
    assert re.findall(r'<option value="(.*?)">', chosen[1]) == ["admin", "biology", "physics"]
    assert rows(page(portal, ROOT, "?id=physics"), "by-member") == rows(
        page(portal, ROOT, "?id=p-physics"), "by-member"
    )
    assert 'name="month" value="2026-10"' in page(portal, ROOT, "?month=2026-10&id=biology")
    for who in (ADA, BOB, EVE):
        assert "datalist" not in page(portal, who)


def test_servers_of_another_project_of_that_name_are_not_on_it(tmp_path: Path) -> None:
    portal = made(tmp_path)
    assert "GPUs in use now" in page(portal, ADA)
    others = [
        replace(status, claim=status.claim and replace(status.claim, project_id="p-elsewhere"))
        for status in map(status_of, site_gpus())
    ]
    portal.inventory.publish(NOON, others)
    assert "GPUs in use now" not in page(portal, ADA)


def test_limits_and_bookings(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fine(portal)
    furnish(portal)
    rules = {"t4": Rules(gpu_hours_per_month=200), "v100": Rules()}
    portal.ledger.book = replace(portal.ledger.book, rules=lambda pool, project: rules[pool])
    text = page(portal, ADA)
    assert "<td>200</td>" in text
    assert "training, last run" in text
    assert "students" not in text
    assert "This project had no GPUs in this month." in text


def test_what_is_left_of_its_budget(tmp_path: Path) -> None:
    mine = Tenure(user_id=ADA.user_id, user="ada", project_id="p-physics", project="physics")
    used = Interval("gpu-1", "0000:01:00.0", "t4", TrackState.CLAIMED, NOON - 4 * HOUR, NOON - HOUR, mine)
    site = accounting_site(projects={"physics": {"budget": {"gpu_hours": 10, "every": "month"}}})
    portal = accounting_portal(tmp_path, site, NOON - DAY, NOON, [used]).portal
    portal.ledger.create(ask(1, 2), ADA)
    text = portal.browser(ADA).client.get("/project").text
    assert "<b>5.0</b> GPU-hours left to book until 2026-11-30 23:00 UTC, of a budget of 10.0" in text
    assert "<b>30 %</b> of the budget used; 2.0 GPU-hours are booked ahead" in text
    assert "budget" not in portal.browser(ADA).client.get("/project?month=2026-10").text
    assert "budget" not in portal.browser(BOB).client.get("/project").text


def test_what_its_use_has_cost_by_the_price_of_the_hour(tmp_path: Path) -> None:
    mine = Tenure(user_id=ADA.user_id, user="ada", project_id="p-physics", project="physics")
    used = Interval("gpu-1", "0000:01:00.0", "t4", TrackState.CLAIMED, NOON - 4 * HOUR, NOON - HOUR, mine)
    tariffs = {"night": {"hours": ["00:00-11:00"]}}
    prices = {"t4": {"standard": 2.0, "night": 0.5}}
    portal = accounting_portal(
        tmp_path, accounting_site({"tariffs": tariffs}, prices=prices), NOON - DAY, NOON, [used]
    ).portal
    text = portal.browser(ADA).client.get("/project").text
    assert "<b>3.00 EUR</b> cost" in text, "two hours until eleven o'clock in Rome, and one at the standard price"
    assert "cost</p>" not in page(health_portal(tmp_path / "free"), ADA), "nothing has a price there"
