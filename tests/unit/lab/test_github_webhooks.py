"""The stand-in GitHub's webhooks: held against the public schemas; what goes wrong with them, by seed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.runners.jobs import JobUpdate
from gpuyard.runners.webhook import delivery_of, job_update, signed_by
from gpuyard_lab.github.faults import STORM, FaultRates, Faults
from gpuyard_lab.github.records import ForgeHook, HookSending, JobOrder
from gpuyard_lab.github.webhooks import headers_of
from tests.support.forges import START, Asker, forge
from tests.unit.lab.test_github_standin import SIDE, connect

OCTOKIT = Path(__file__).parents[2] / "support" / "octokit"
SCHEMA = jsonschema.Draft7Validator(
    json.loads((OCTOKIT / "workflow_job.schema.json").read_text()), format_checker=jsonschema.FormatChecker()
)
EXAMPLES = json.loads((OCTOKIT / "examples.json").read_text())["workflow_job"]
SECRET = "s3cret"  # noqa: S105
FAULTS = [field.name for field in fields(FaultRates)]


def sent(github: Asker) -> list[tuple[ForgeHook, HookSending]]:
    return github.standin.hooks.take_due()


def actions(sendings: list[tuple[ForgeHook, HookSending]]) -> list[str]:
    return [sending.action for _, sending in sendings]


def work(github: Asker, name: str = "one") -> None:
    """A runner comes, and does a job if there is one."""
    jit = github.jit(name, ["gpu"])
    if github.last.status != 201 or github.last.cut:
        return
    runner = connect(github, jit)
    job = runner.ask("GET", f"{SIDE}/message")
    if runner.last.status == 200:
        runner.ask("POST", f"{SIDE}/jobs/{job['jobId']}/start")
        runner.ask("POST", f"{SIDE}/jobs/{job['jobId']}/finish", {"result": "Succeeded"})


def watched(rates: FaultRates | None = None, seed: int = 0, owner: str = "demo") -> Asker:
    github = forge(rates, seed)
    github.standin.forge.add_hook(owner, "http://hook.test", SECRET)
    return github


def test_the_schema_is_that_of_the_public_examples() -> None:
    assert len(EXAMPLES) >= 7
    newer = [example for example in EXAMPLES if "custom_properties" in example["repository"]]
    assert newer
    assert [SCHEMA.is_valid(example) for example in newer] == [True] * len(newer)
    assert not SCHEMA.is_valid({**newer[0], "more": 1})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_all_that_is_sent_is_as_github_sends_it(seed: int, organization: bool, installed: bool) -> None:
    rates = FaultRates(
        hook_doubled=0.3, hook_reordered=0.3, hook_late=0.2, hook_resent=0.3, completed_bare=0.3, job_waiting=0.3,
        job_cancelled=0.3, job_stolen=0.2,
    )  # fmt: skip
    github = forge(rates, seed)
    github.standin.forge.add_account("somebody", organization=organization, installed=installed)
    github.standin.forge.add_repository("somebody/things", private=True)
    for scope in ("demo", "somebody", "app"):
        github.standin.forge.add_hook(scope, "http://hook.test", SECRET)
    for repository in ("demo/science", "somebody/things"):
        run = github.standin.forge.push(
            repository, [JobOrder(("gpu",)), JobOrder(("gpu", "v100"))], event="pull_request"
        )
    sendings = sent(github)
    for number in range(4):
        work(github, f"runner-{number}")
        github.later(seconds=40)
        sendings += sent(github)
    github.ask("POST", f"/api/v3/repos/somebody/things/actions/runs/{run.id}/cancel")
    github.later(hours=25)
    sendings += sent(github)
    assert {"queued", "completed"} <= set(actions(sendings))
    for hook, sending in sendings:
        body = json.loads(sending.body)
        assert [error.message for error in SCHEMA.iter_errors(body)] == []
        assert body["action"] == sending.action
        assert "organization" in body or body["repository"]["owner"]["type"] == "User"
        headers = {name.lower(): value for name, value in headers_of(hook, sending).items()}
        assert delivery_of(headers) == (sending.guid, "workflow_job")
        assert signed_by(sending.body, headers["x-hub-signature-256"], {"demo": [SECRET.encode()]}) == ["demo"]
        assert isinstance(job_update("workflow_job", sending.body, "demo"), JobUpdate)


def test_without_faults_each_event_is_sent_once_in_order() -> None:
    github = watched()
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    work(github)
    sendings = sent(github)
    assert actions(sendings) == ["queued", "in_progress", "completed"]
    assert len({sending.guid for _, sending in sendings}) == 3
    github.later(days=1)
    assert sent(github) == []
    assert github.standin.forge.faults.journal == []


def test_lost_is_lost_and_failed_is_in_the_list() -> None:
    lost, failed = watched(FaultRates(hook_lost=1.0)), watched(FaultRates(hook_failed=1.0))
    for github in (lost, failed):
        github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
        assert sent(github) == []
    (hook,) = lost.standin.forge.hooks
    path = f"/api/v3/orgs/demo/hooks/{hook}/deliveries"
    assert lost.ask("GET", path) == []
    assert [(delivery["action"], delivery["status_code"]) for delivery in failed.ask("GET", path)] == [("queued", 0)]


def test_doubled_has_one_guid_and_resent_another_and_later() -> None:
    github = watched(FaultRates(hook_doubled=1.0, hook_resent=1.0))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    assert Counter(sending.guid for _, sending in sent(github)).most_common(1)[0][1] == 2
    work(github)
    now = sent(github)
    assert sorted(actions(now)) == ["completed", "completed", "in_progress", "in_progress"]
    github.later(minutes=10)
    later = sent(github)
    assert actions(later) == ["completed"]
    assert later[0][1].guid not in {sending.guid for _, sending in now}


def test_a_completed_that_says_next_to_nothing() -> None:
    github = watched(FaultRates(completed_bare=1.0))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    work(github)
    job = json.loads(sent(github)[-1][1].body)["workflow_job"]
    assert (job["labels"], job["runner_name"], job["conclusion"]) == ([], None, "success")


def test_waiting_comes_first_and_is_no_job_yet() -> None:
    github = watched(FaultRates(job_waiting=1.0))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    bodies = [json.loads(sending.body) for _, sending in sent(github)]
    assert [(body["action"], body["workflow_job"]["status"]) for body in bodies] == [("waiting", "waiting")]
    work(github)
    assert sent(github) == []
    github.later(seconds=30)
    assert actions(sent(github)) == ["queued"]


def test_a_stolen_job_runs_on_somebody_elses_runner() -> None:
    github = watched(FaultRates(job_stolen=1.0))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    jobs = [json.loads(sending.body)["workflow_job"] for _, sending in sent(github)]
    assert jobs[-1]["runner_name"].startswith("somebody-elses-")
    github.later(seconds=30)
    assert actions(sent(github)) == ["completed"]


def test_a_job_is_cancelled_in_the_queue() -> None:
    github = watched(FaultRates(job_cancelled=1.0))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    github.later(seconds=60)
    job = json.loads(sent(github)[-1][1].body)["workflow_job"]
    assert (job["status"], job["conclusion"], job["runner_name"]) == ("completed", "cancelled", None)


def test_a_rerun_of_the_failed_sends_what_was_completed_before_again() -> None:
    github = watched()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",)), JobOrder(("gpu",), result="failure")])
    work(github)
    runner = connect(github, github.jit("two", ["gpu"]))
    job = runner.ask("GET", f"{SIDE}/message")
    runner.ask("POST", f"{SIDE}/jobs/{job['jobId']}/start")
    runner.ask("POST", f"{SIDE}/jobs/{job['jobId']}/finish", {"result": "Failed"})
    sent(github)
    github.ask("POST", f"/api/v3/repos/demo/science/actions/runs/{run.id}/rerun-failed-jobs")
    events = [(sending.action, json.loads(sending.body)["workflow_job"]["id"]) for _, sending in sent(github)]
    assert events == [("completed", run.jobs[0]), ("queued", run.jobs[2])]


def story(seed: int, reverse: bool = False) -> tuple[dict[str, int], Any]:
    """What a storm does to twenty runs, with requests asked in one order or the other."""
    github = watched(STORM, seed)
    for _ in range(20):
        github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    paths = [f"/api/v3/repos/demo/science/actions/jobs/{id}" for id in github.standin.forge.jobs]
    answers = {}
    for path in reversed(paths) if reverse else paths:
        github.ask("GET", path)
        answers[path] = (github.last.status, github.last.cut, github.last.delay_s)
    github.later(minutes=5)
    return github.standin.forge.faults.counts(), (
        answers,
        [(sending.guid, sending.action) for _, sending in sent(github)],
    )


def test_a_seed_decides_and_the_order_of_requests_does_not() -> None:
    assert story(7) == story(7)
    assert story(7)[1][0] == story(7, reverse=True)[1][0]
    assert len({str(story(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("fault", FAULTS)
def test_rates_are_kept_and_all_that_strikes_is_written_down(fault: str) -> None:
    faults = Faults(3, FaultRates.of({fault: 0.25}))
    struck = sum(faults.strikes(fault, f"job {number}", START) for number in range(4000))
    assert 850 < struck < 1150
    assert faults.counts() == {fault: struck}
    assert {entry.at for entry in faults.journal} == {START}
    others = set(FAULTS) - {fault}
    assert not any(faults.strikes(other, "job 1", START) for other in others)


@pytest.mark.parametrize("rates", [{"hook_lost": 1.1}, {"hook_lost": -0.1}, {"nonsense": 0.1}])
def test_rates_that_are_none(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be from 0 to 1|no such fault: nonsense"):
        FaultRates.of(rates)


@pytest.mark.parametrize(
    "fault, statuses",
    [
        ("unauthorized", {401}),
        ("forbidden", {403}),
        ("limited", {403, 429}),
        ("broken", {500, 502, 503}),
        ("conflict", {409}),
        ("unprocessable", {422}),
    ],
)
def test_a_request_that_is_refused_changes_nothing(fault: str, statuses: set[int]) -> None:
    github = forge(FaultRates.of({fault: 1.0}))
    observed_statuses = set()
    for number in range(30):
        github.jit(f"runner-{number}", ["gpu"])
        observed_statuses.add(github.last.status)
        if fault == "limited":
            assert github.last.headers["retry-after"]
    assert observed_statuses == statuses
    assert github.standin.forge.runners == {}
