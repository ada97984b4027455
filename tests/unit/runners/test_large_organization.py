"""An organisation of GitHub's real size: 25,000 repositories, and the deliveries of days. What was lost is found with a
bounded number of calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.database.engine import Database
from gpuyard.runners.controllers.call_budget import CallBudget
from gpuyard.runners.controllers.lost_deliveries import FARTHEST, TRIES, LostDeliveries, SearchProgress
from gpuyard.runners.controllers.lost_jobs import MOST_PAGES, SETTLED, LostJobs, PushProgress
from gpuyard.runners.github.answers import RepositoryPage
from gpuyard.runners.github.api import RestApi
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.jobs import JobUpdate
from gpuyard.runners.records import Job, JobState
from gpuyard.runners.resolve import Configuration, RepositoryFiles, read
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import Enrolment
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import ForgeRepository, HookSending, JobOrder
from gpuyard_lab.github.standin import StandIn
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRequest
from tests.support.simulated_runners import CIRUN, Clock, StandInWire

ORG = "large"
ORG_SCOPE = f"github.test/{ORG}"
PERIOD = timedelta(minutes=2)
CALLS = 33
"""Of one run: a fifth of 5,000 an hour, at a run every two minutes."""


@dataclass
class Organization:
    """One at the stand-in, with its client, and a store that outlives whoever looks for what was lost."""

    store: RunnerStore
    client: GitHubClient
    standin: StandIn
    clock: Clock
    visited: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Repositories in which a job was found."""
    calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        handle = self.standin.handle

        def count(request: ForgeRequest) -> ForgeAnswer:
            self.calls[request.method] += 1
            return handle(request)

        self.standin.handle = count  # type: ignore[method-assign]

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    def search(self) -> LostJobs:
        """As after a start of the process."""
        intake = SimpleNamespace(found=self._take_in)
        repositories = SimpleNamespace(configuration=self._configuration)
        return LostJobs(self.store, cast(Any, intake), cast(Any, repositories), self.clock)

    def _take_in(self, updates: list[JobUpdate]) -> int:
        self.found += [update.repository for update in updates if update.state is JobState.QUEUED]
        return len(updates)

    def _configuration(self, scope: str, name: str) -> Configuration:
        self.visited.append(name)
        if name.endswith("/broken"):
            raise ValueError("nobody thought of that")
        return read(RepositoryFiles(self.client.file(name, ".cirun.yml").text))

    def add(self, name: str, *orders: JobOrder, event: str = "schedule") -> None:
        """A repository with runners of ours, and jobs that wait."""
        self.standin.forge.add_repository(f"{ORG}/{name}").files[".cirun.yml"] = CIRUN
        self.standin.forge.push(f"{ORG}/{name}", orders, event=event)

    def add_others(self, count: int) -> None:
        repositories = self.standin.forge.repositories
        for number in range(count):
            repository = ForgeRepository(self.standin.forge.next_id("repository"), ORG, f"r{number:05}")
            repositories[repository.full_name] = repository

    def send(self, count: int, apart: timedelta, lost: Callable[[int], bool]) -> None:
        """Deliveries of the organisation's webhook, the last one now; `lost` says by the number of each, counted back
        from the last one, which of them nobody answered."""
        forge, actions = self.standin.forge, ("completed", "in_progress", "queued")
        hook = forge.add_hook(ORG, "https://portal.test", "secret")
        for back in reversed(range(count)):
            at = self.clock() - back * apart
            sending = HookSending(
                forge.next_id("sending"), hook.id, f"g{back}", "workflow_job", actions[back % 3], b"{}", at, sent=at,
                status_code=0 if lost(back) else 202,
            )  # fmt: skip
            forge.sendings[sending.id] = sending

    def asked_again(self) -> list[str]:
        return [sending.guid for sending in self.standin.forge.sendings.values() if sending.redelivery]

    def deliver(self, status: int = 202) -> None:
        for _, sending in self.standin.hooks.take_due():
            self.standin.hooks.answered(sending, status)


JOB = JobOrder(("cirun-gpu",), 60)


@pytest.fixture
def organization(tmp_path: Path) -> Iterator[Organization]:
    clock = Clock()
    standin = StandIn(clock, None, ForgeSettings(poll_s=0, requests_an_hour=10**6), "https://github.test")
    standin.forge.personal_tokens["secret"] = "yard"  # noqa: S105
    standin.forge.add_account(ORG)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    enrolment = Enrolment.model_validate(
        {"organization": ORG, "url": "https://github.test", "token_file": str(tmp_path / "token")}
    )
    wire: Any = StandInWire(standin, lambda what: None)
    api = RestApi(enrolment, wire=wire, now=clock, clock=clock.steady, sleep=lambda seconds: None, rate=1e6, burst=1e6)
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        yield Organization(RunnerStore(database), GitHubClient(enrolment, api), standin, clock)


def run(organization: Organization, search: LostJobs, calls: int = CALLS) -> None:
    before = organization.total
    search.run(ORG_SCOPE, organization.client, CallBudget(calls))
    assert organization.total - before <= calls + 1, "the budget counts each call"
    organization.clock.now += PERIOD


def test_all_of_25000_repositories_are_asked_in_turn(organization: Organization) -> None:
    organization.add_others(25_000)
    organization.add("last", JOB)
    search = organization.search()
    for _ in range(5):
        run(organization, search)
    run(organization, search, 300)
    run(organization, organization.search(), 300)
    visited = [name for name in organization.visited if name != f"{ORG}/last"]
    assert len(visited) > 500
    again = [name for name, times in Counter(visited).items() if times > 1]
    assert len(again) < 100, "after a restart it goes on where it was, but for the page that it was in"
    organization.found.clear()
    organization.store.set_value(f"listed/{ORG_SCOPE}", "251")
    run(organization, organization.search())
    assert organization.found == [f"{ORG}/last"]
    assert organization.store.value(f"listed/{ORG_SCOPE}") == "1", "and then from the beginning"


@pytest.mark.parametrize("event", ["push", "schedule"])
def test_where_something_happened_lately_is_asked_first(organization: Organization, event: str) -> None:
    """Either somebody has just pushed there, or it had jobs of ours before."""
    organization.add_others(25_000)
    organization.add("science", JOB, event=event)
    if event == "schedule":
        done = Job("github.test/1", f"{ORG}/science", (), JobState.COMPLETED, organization.clock(), ORG_SCOPE)
        organization.store.put_job(done)
    organization.clock.now += PERIOD + timedelta(seconds=1)
    run(organization, organization.search())
    assert organization.found == [f"{ORG}/science"]


def test_pushes_are_remembered_over_a_restart(organization: Organization) -> None:
    names = [f"p{number:02}" for number in range(30)]
    for name in names:
        organization.add(name, event="push")
    organization.clock.now += PERIOD
    run(organization, organization.search())
    search = organization.search()
    for _ in range(30):
        run(organization, search, 20)
    assert {f"{ORG}/{name}" for name in names} <= {*organization.visited}
    assert organization.store.value(f"pushed/{ORG_SCOPE}"), "all were asked"


def test_thousands_of_pushes_after_a_gap_are_all_asked_about(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,500 within five hours, the process starts anew halfway, and meanwhile others are pushed to."""
    monkeypatch.setattr(organization.client, "repositories", lambda page: RepositoryPage(()))
    organization.add_others(2_500)
    repositories = list(organization.standin.forge.repositories.values())
    for number, repository in enumerate(repositories):
        repository.pushed = organization.clock() - SETTLED - number * timedelta(seconds=7)
    search = organization.search()
    key, runs = f"pushed/{ORG_SCOPE}", 0
    while runs == 0 or PushProgress.of(organization.store.value(key)).mark is not None:
        if runs == 6:
            assert len({*organization.visited}) < 2_000
            search = organization.search()
        run(organization, search, 300)
        for number in range(150):
            new = organization.standin.forge.add_repository(f"{ORG}/new-{runs}-{number}")
            new.pushed = organization.clock()
        runs += 1
    visits = Counter(organization.visited)
    assert {*visits} == {repository.full_name for repository in repositories}
    assert 10 <= runs <= 13
    assert visits.total() <= 2_500 + 100 + 25, "once, but for the page of the restart, and the last one of each page"


def test_pushes_of_more_than_a_day_ago_are_not_asked_about(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organization.client, "repositories", lambda page: RepositoryPage(()))
    organization.add_others(300)
    now = organization.clock()
    for number, repository in enumerate(organization.standin.forge.repositories.values()):
        repository.pushed = now - timedelta(minutes=10 * number)
    organization.store.set_value(f"pushed/{ORG_SCOPE}", (now - timedelta(days=9)).isoformat())
    run(organization, organization.search(), 1_000)
    assert PushProgress.of(organization.store.value(f"pushed/{ORG_SCOPE}")) == PushProgress(now - SETTLED)
    assert len(organization.visited) == timedelta(hours=25) / timedelta(minutes=10)


def test_a_repository_that_breaks_us_keeps_nobody_from_the_others(organization: Organization) -> None:
    organization.standin.forge.add_repository(f"{ORG}/broken")
    organization.add("science", JOB)
    run(organization, organization.search())
    assert organization.visited == [f"{ORG}/broken", f"{ORG}/science"]
    assert organization.found == [f"{ORG}/science"]


def test_a_repository_with_many_waiting_runs_is_asked_for_all_of_them(organization: Organization) -> None:
    for _ in range(100):
        organization.add("science", JobOrder(("somebody-elses",), 60))
    organization.add("science", JOB)
    search = organization.search()
    for _ in range(8):
        run(organization, search)
    assert len(organization.found) > 101


def work_off(organization: Organization, rounds: int, restart_after: int = -1) -> None:
    lost = LostDeliveries(organization.store, organization.clock)
    for number in range(rounds):
        if number == restart_after:
            lost = LostDeliveries(organization.store, organization.clock)
        before = organization.total
        lost.run(ORG_SCOPE, organization.client, CallBudget(CALLS))
        assert organization.total - before <= CALLS
        organization.deliver()
        organization.clock.now += PERIOD


def is_old(back: int) -> bool:
    return back >= 11_000


def test_deliveries_that_were_lost_long_ago_are_found_behind_thousands_that_arrived(
    organization: Organization,
) -> None:
    """12,000 in twenty hours, of which the oldest 1,000 did not arrive."""
    organization.send(12_000, timedelta(seconds=6), is_old)
    organization.store.set_value(f"redelivered/{ORG_SCOPE}", (organization.clock() - timedelta(hours=21)).isoformat())
    work_off(organization, 20, restart_after=4)
    assert {*organization.asked_again()} == {f"g{back}" for back in range(11_000, 12_000) if back % 3 == 2}
    assert len(organization.asked_again()) < 350, "of old ones only those that tell of new jobs, each once"
    before = organization.total
    work_off(organization, 1)
    assert organization.total - before <= 5, "nothing is left to do"


def test_a_week_of_deliveries_takes_the_calls_of_a_day(organization: Organization) -> None:
    """GitHub keeps three days of them, and a job waits for a day."""
    organization.send(20_160, timedelta(seconds=30), lambda back: back > 0)
    organization.store.set_value(f"redelivered/{ORG_SCOPE}", (organization.clock() - timedelta(days=9)).isoformat())
    work_off(organization, 60)
    redelivered = [int(guid[1:]) for guid in organization.asked_again()]
    assert max(redelivered) <= FARTHEST / timedelta(seconds=30)
    assert len(redelivered) >= 0.9 * FARTHEST / timedelta(seconds=90)


def test_while_we_cannot_be_reached_one_delivery_is_tried(organization: Organization) -> None:
    organization.send(300, timedelta(seconds=6), lambda back: True)
    lost = LostDeliveries(organization.store, organization.clock)
    for _ in range(3 * TRIES):
        lost.run(ORG_SCOPE, organization.client, CallBudget(CALLS))
        organization.deliver(status=502)
        organization.clock.now += PERIOD
    assert len(organization.asked_again()) == 3 * TRIES
    work_off(organization, 20)
    assert {*organization.asked_again()} >= {f"g{back}" for back in range(100, 300) if back % 3 == 2}


def test_a_cursor_that_github_does_not_know_any_more_begins_anew(organization: Organization) -> None:
    organization.send(500, timedelta(seconds=6), lambda back: back > 450)
    now = organization.clock()
    hook = next(iter(organization.standin.forge.hooks))
    key = f"redelivered/{ORG_SCOPE}//orgs/{ORG}/hooks/{hook}/deliveries"
    organization.store.set_value(key, SearchProgress(now, "stale", now - timedelta(hours=2)).text())
    work_off(organization, 3)
    assert len(organization.asked_again()) == 16


@given(st.one_of(st.text(), st.builds(json.dumps, st.recursive(st.none() | st.text() | st.integers(), st.lists))))
def test_what_was_stored_is_read_whatever_it_is(text: str) -> None:
    assert isinstance(SearchProgress.of(text), SearchProgress)
    assert isinstance(PushProgress.of(text), PushProgress)


def test_progress_is_read_as_it_was_written() -> None:
    now = Clock()()
    for progress in (SearchProgress(), SearchProgress(now), SearchProgress(now, "v1_5", now - PERIOD)):
        assert SearchProgress.of(progress.text()) == progress
    assert SearchProgress.of(now.isoformat()) == SearchProgress(now), "as older versions wrote it"
    for pushes in (PushProgress(), PushProgress(now), PushProgress(now, now + PERIOD, now + PERIOD / 2, 17)):
        assert PushProgress.of(pushes.text()) == pushes
    assert PushProgress.of(now.isoformat()) == PushProgress(now), "as older versions wrote it"
    assert PushProgress.of(PushProgress(now, now, now, MOST_PAGES + 1).text()) == PushProgress(), "no such page"


def test_githubs_filter_of_failures_leaves_out_those_without_an_answer(organization: Organization) -> None:
    """@octokit/openapi-types 29.0.1, webhook-delivery-status: status codes from 400 to 599."""
    organization.send(3, timedelta(seconds=6), lambda back: True)
    (hook,) = organization.client.hooks()
    assert organization.client.api.page(hook.path, query={"status": "failure"}) == ([], "")
    assert len(organization.client.api.page(hook.path)[0]) == 3
