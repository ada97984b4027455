"""The clients to GitHub, on the stand-in that speaks as GitHub does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpuyard.runners.github.answers import Hook
from gpuyard.runners.github.api import RestApi
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.messages import NoticeKind, SetMessage, job_updates
from gpuyard.runners.github.scale_sets import ScaleSetClient, SetSession
from gpuyard.runners.jobs import merge
from gpuyard.runners.records import Job, JobState
from gpuyard.site.runner_rules import Enrolment, GitHubApp
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.forge import ForgeApp, ForgeSettings
from gpuyard_lab.github.records import ForgeGroup, ForgeRunner, JobOrder
from gpuyard_lab.github.server import ForgeServer

PERSON = "ghp_of_a_person"
OLD = datetime(2020, 1, 1, tzinfo=UTC)
T = TypeVar("T")


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    server = ForgeServer(settings=ForgeSettings(poll_s=0.5))
    forge = server.standin.forge
    forge.personal_tokens[PERSON] = "octocat"
    science = forge.add_repository("demo/science")
    science.files[".cirun.yml"] = "runners: []\n"
    science.permissions["ada"] = "maintain"
    forge.add_repository("demo/art")
    forge.accounts["demo"].groups[5] = ForgeGroup(5, "GPUs")
    forge.accounts["demo"].teams["core"] = {"ada"}
    with server:
        yield server


def enrolment(**stated: object) -> Enrolment:
    return Enrolment.model_validate(stated)


def quick(enrolled: Enrolment) -> GitHubClient:
    """One that does not really sleep."""
    return GitHubClient(enrolled, RestApi(enrolled, sleep=lambda seconds: None))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(PERSON + "\n")
    return path


@pytest.fixture
def client(github: ForgeServer, token_file: Path) -> GitHubClient:
    return quick(enrolment(organization="demo", url=github.url, token_file=str(token_file), runner_group="gpus"))


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def app_client(github: ForgeServer, tmp_path: Path, key: rsa.RSAPrivateKey) -> GitHubClient:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    github.standin.forge.app = ForgeApp(77, public)
    path = tmp_path / "app.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    return quick(enrolment(organization="demo", url=github.url, app=GitHubApp(id=77, key_file=str(path))))


def begin(github: ForgeServer, runner_id: int) -> None:
    """Its runner gets the oldest job that it could run."""
    forge = github.standin.forge
    with forge.lock:
        runner = forge.runners[runner_id]
        runner.session, runner.connected, runner.heard = "s", forge.now(), forge.now()
        job = forge.job_for(runner)
        assert job is not None
        forge.begin(job, runner)


# Repositories, files, people


def test_repositories(client: GitHubClient, app_client: GitHubClient, token_file: Path, github: ForgeServer) -> None:
    for github_client in (client, app_client):
        assert [repository.name for repository in github_client.repositories().repositories] == [
            "demo/science",
            "demo/art",
        ]
        assert github_client.repositories(2).repositories == ()
    some = client.enrolment.model_copy(update={"repositories": ["demo/sci*"]})
    assert [repository.name for repository in quick(some).repositories().repositories] == ["demo/science"]
    own = enrolment(repository="demo/art", url=github.url, token_file=str(token_file))
    assert [repository.name for repository in quick(own).repositories().repositories] == ["demo/art"]


def test_a_file_is_read_once_until_it_changes(client: GitHubClient, github: ForgeServer) -> None:
    first = client.file("demo/science", ".cirun.yml")
    assert (first.text, first.same) == ("runners: []\n", False)
    again = client.file("demo/science", ".cirun.yml", first.etag)
    assert (again.text, again.same, again.etag) == (None, True, first.etag)
    assert client.usage().unchanged == 1
    github.standin.forge.repositories["demo/science"].files[".cirun.yml"] = "runners: [x]\n"
    assert client.file("demo/science", ".cirun.yml", first.etag).text == "runners: [x]\n"
    assert client.file("demo/art", ".cirun.yml").text is None


def test_people(client: GitHubClient) -> None:
    assert client.role("demo/science", "ada") == "maintain"
    assert client.role("demo/science", "somebody/../else") == "read"
    assert client.in_team("core", "ada")
    assert not client.in_team("core", "eve")
    assert not client.in_team("no-such-team", "ada")


def test_pull_requests(client: GitHubClient, github: ForgeServer) -> None:
    run = github.standin.forge.push(
        "demo/science", [], event="pull_request", actor="eve", branch="x", head_repository="eve/science",
        association="FIRST_TIME_CONTRIBUTOR",
    )  # fmt: skip
    workflow_run = client.run("demo/science", run.id)
    assert (workflow_run.event, workflow_run.actor, workflow_run.head_repository) == (
        "pull_request",
        "eve",
        "eve/science",
    )
    pull_requests = client.pull_requests_of("demo/science", "eve", "x")
    assert [(pull_request.author, pull_request.association, pull_request.fork) for pull_request in pull_requests] == [
        ("eve", "FIRST_TIME_CONTRIBUTOR", True)
    ]


def test_what_cannot_be_a_repository_is_not_asked(client: GitHubClient) -> None:
    for name in ("../../orgs/demo", "demo/..", "demo", "demo/science?x=1", "demo/science/../../x"):
        with pytest.raises(GitHubError, match="no name of a repository") as error:
            client.run(name, 1)
        assert error.value.kind is GitHubTrouble.REFUSED
    assert client.usage().calls == 0


# Runners


def test_runners_of_an_organisation(client: GitHubClient, github: ForgeServer) -> None:
    made = client.jit("one", ("gpu",))
    assert github.standin.forge.runners[made.id].group == 5, "the enrolment's group, by name and in any case"
    assert "encoded" not in repr(made)
    registered = client.runner_named("one")
    assert registered is not None
    assert (registered.id, registered.labels, registered.online, registered.busy) == (made.id, ("gpu",), False, False)
    assert client.runner(made.id) == registered
    assert client.runners() == [registered]
    assert client.runner_named("on") is None
    assert client.delete_runner(made.id)
    assert not client.delete_runner(made.id)
    assert client.runner(made.id) is None


def test_a_name_that_is_taken(client: GitHubClient) -> None:
    client.jit("one", ("gpu",))
    with pytest.raises(GitHubError) as error:
        client.jit("one", ("gpu",))
    assert error.value.kind is GitHubTrouble.CONFLICT


def test_runners_of_a_repository(client: GitHubClient) -> None:
    made = client.jit("one", ("gpu",), "demo/science")
    assert client.runners() == []
    assert [runner.id for runner in client.runners("demo/science")] == [made.id]
    assert client.delete_runner(made.id, "demo/science")


def test_a_runner_that_has_a_job_stays(client: GitHubClient, github: ForgeServer) -> None:
    made = client.jit("one", ("gpu",))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    begin(github, made.id)
    with pytest.raises(GitHubError) as error:
        client.delete_runner(made.id)
    assert error.value.kind is GitHubTrouble.CONFLICT


def test_a_runner_group_that_there_is_not(github: ForgeServer, token_file: Path) -> None:
    client = quick(enrolment(organization="demo", url=github.url, token_file=str(token_file), runner_group="nope"))
    with pytest.raises(GitHubError, match=r"no runner group 'nope'; it has: default, gpus") as error:
        client.jit("one", ("gpu",))
    assert error.value.kind is GitHubTrouble.MISSING


def test_many_runners_come_in_pages(client: GitHubClient, github: ForgeServer) -> None:
    forge = github.standin.forge
    for number in range(1, 251):
        forge.register(ForgeRunner(number, f"r{number}", "demo", "", ("gpu",), 1, "", forge.now()))
    before = client.usage().calls
    assert [runner.id for runner in client.runners()] == list(range(1, 251))
    assert client.usage().calls - before == 3


@pytest.mark.parametrize("fault", ["reply_lost", "reply_half"])
def test_a_registration_whose_answer_is_lost_can_be_found(
    client: GitHubClient, github: ForgeServer, fault: str
) -> None:
    client.group("gpus")
    faults = github.standin.forge.faults
    faults.rates = FaultRates.of({fault: 1.0})
    with pytest.raises(GitHubError) as error:
        client.jit("one", ("gpu",))
    assert error.value.kind is GitHubTrouble.RETRY
    assert faults.counts()[fault] == 1, "it was not asked twice"
    faults.rates = FaultRates()
    registered = client.runner_named("one")
    assert registered is not None
    assert client.delete_runner(registered.id)


# Jobs


def test_jobs_as_they_go(client: GitHubClient, github: ForgeServer) -> None:
    orders = [JobOrder(("gpu",)), JobOrder(("gpu",), approval=timedelta(hours=1))]
    run = github.standin.forge.push("demo/science", orders)
    first = client.job("demo/science", run.jobs[0])
    assert first is not None
    assert (first.state, first.labels, first.repository) == (JobState.QUEUED, ("gpu",), "demo/science")
    host = github.url.partition("://")[2]
    assert first.id == f"{host}/{run.jobs[0]}"
    assert client.waiting_runs("demo/science") == [run.id]
    waiting = {update.id: update.state for update in client.jobs_of("demo/science", run.id)}
    assert waiting[first.id] is JobState.QUEUED
    assert waiting[f"{host}/{run.jobs[1]}"] is JobState.HELD
    begin(github, client.jit("one", ("gpu",)).id)
    taken = client.job("demo/science", run.jobs[0])
    assert taken is not None
    job = merge(merge(None, taken, datetime.now(UTC)), first, datetime.now(UTC))
    assert (job.state, job.runner) == (JobState.RUNNING, "one")
    assert client.job("demo/science", 5) is None


def test_a_run_is_cancelled(client: GitHubClient, github: ForgeServer) -> None:
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    client.cancel_run("demo/science", run.id)
    update = client.job("demo/science", run.jobs[0])
    assert update is not None
    assert (update.state, update.conclusion) == (JobState.COMPLETED, "cancelled")
    with pytest.raises(GitHubError) as error:
        client.cancel_run("demo/science", run.id)
    assert error.value.kind is GitHubTrouble.CONFLICT


def test_a_status_at_a_commit(client: GitHubClient, github: ForgeServer) -> None:
    sha = "a" * 40
    client.set_status("demo/science", sha, "pending", "x" * 500, "gpuyard", "https://example.org/jobs/1")
    statuses = github.standin.forge.repositories["demo/science"].statuses[sha]
    assert [(status["state"], len(str(status["description"]))) for status in statuses] == [("pending", 140)]


# Webhooks


@pytest.mark.parametrize("scope", ["demo", "app"])
def test_deliveries_that_failed_are_sent_again(
    client: GitHubClient, app_client: GitHubClient, github: ForgeServer, scope: str
) -> None:
    hook_client = app_client if scope == "app" else client
    forge = github.standin.forge
    forge.add_hook(scope, "http://127.0.0.1:1/nobody", "secret")
    forge.push("demo/science", [JobOrder(("gpu",))])
    hooks = hook_client.hooks()
    assert [hook.path.endswith("/deliveries") for hook in hooks] == [True]
    attempts = until(lambda: hook_client.deliveries(hooks[0]).attempts)
    outcomes = [(each.event, each.action, each.ok, each.redelivery) for each in attempts]
    assert outcomes == [("workflow_job", "queued", False, False)]
    hook_client.redeliver(hooks[0], attempts[0].id)
    again = until(lambda: [each for each in hook_client.deliveries(hooks[0]).attempts if each.redelivery])
    assert again[0].guid == attempts[0].guid


def test_an_app_is_who_it_is(client: GitHubClient, app_client: GitHubClient, github: ForgeServer) -> None:
    with pytest.raises(GitHubError, match="only an app"):
        client.deliveries(Hook("/app/hook/deliveries"))
    app_client.runners()
    before = app_client.usage().calls
    app_client.runners()
    assert app_client.usage().calls == before + 1, "the installation's token is kept"
    github.standin.gate.tokens.clear()
    assert app_client.runners() == [], "and renewed when GitHub does not know it any more"


def test_an_apps_token_is_renewed_before_its_end(app_client: GitHubClient, github: ForgeServer) -> None:
    late = datetime.now(UTC) + timedelta(minutes=56)
    api = RestApi(app_client.enrolment, now=lambda: late, sleep=lambda seconds: None)
    client = GitHubClient(app_client.enrolment, api)
    client.runners()
    before = client.usage().calls
    client.runners()
    assert client.usage().calls == before + 2, "a new token, and the call"


def test_an_app_that_is_installed_anew(app_client: GitHubClient, github: ForgeServer) -> None:
    app_client.runners()
    account = github.standin.forge.accounts["demo"]
    account.installation += 1000
    github.standin.gate.tokens.clear()
    assert app_client.runners() == []
    account.installation = 0
    github.standin.gate.tokens.clear()
    with pytest.raises(GitHubError, match="app 77 is not installed for demo"):
        app_client.runners()


def test_a_token_may_change(client: GitHubClient, token_file: Path, github: ForgeServer) -> None:
    assert client.runners() == []
    github.standin.forge.personal_tokens.clear()
    with pytest.raises(GitHubError, match="401: Bad credentials; look at the app or token of enrolment") as error:
        client.runners()
    assert error.value.kind is GitHubTrouble.UNAUTHORIZED
    assert PERSON not in str(error.value)
    github.standin.forge.personal_tokens["ghp_new"] = "octocat"
    token_file.write_text("ghp_new")
    assert client.runners() == []


# Scale sets


@pytest.fixture
def sets(client: GitHubClient) -> ScaleSetClient:
    return ScaleSetClient(client)


def test_a_scale_set_is_made_once(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "gpus")
    assert (made.name, made.group, made.labels) == ("gpuyard-v100", 5, ("gpuyard-v100",))
    assert sets.ensure("gpuyard-v100", "gpus") == made
    more = sets.ensure("gpuyard-v100", "gpus", ("gpuyard-v100", "v100"))
    assert (more.id, more.labels) == (made.id, ("gpuyard-v100", "v100"))
    assert sets.set_of(made.id).labels == more.labels
    sets.delete(made.id)
    sets.delete(made.id)
    assert github.standin.forge.sets == {}
    with pytest.raises(GitHubError, match="no runner group 'nope'"):
        sets.ensure("x", "nope")


def test_a_job_by_long_poll(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "gpus")
    session = sets.open(made.id, "gpuyard on x")
    github.standin.forge.push("demo/science", [JobOrder(("gpuyard-v100",), name="train")])
    offered = next_message(session, 0, 2)
    assert [notice.kind for notice in offered.notices] == [NoticeKind.AVAILABLE]
    assert job_updates(offered, made, "demo") == []
    assert session.acquire(offered.available) == offered.available
    assert session.acquire((99,)) == session.acquire(()) == ()
    session.acknowledge(offered.id)
    assigned = next_message(session, offered.id, 2)
    assert assigned.statistics.assigned == 1
    runner = sets.jit(made.id, "one")
    begin(github, runner.id)
    started = next_message(session, assigned.id, 2)
    with pytest.raises(GitHubError) as error:
        sets.delete_runner(runner.id)
    assert error.value.kind is GitHubTrouble.CONFLICT
    forge = github.standin.forge
    with forge.lock:
        forge.complete(next(iter(forge.jobs.values())), "success")
    completed = next_message(session, started.id, 2)
    job: Job | None = None
    states = []
    for message in (offered, assigned, started, completed):
        for update in job_updates(message, made, "demo", "https://github.com"):
            job = merge(job, update, datetime.now(UTC))
            states.append(job.state)
    assert states == [JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED]
    assert job is not None
    assert job.id == f"github.com/set/demo/{made.id}/{offered.available[0]}"
    assert (job.repository, job.name, job.runner, job.conclusion, job.workflow, job.head_branch, job.labels) == (
        "demo/science", "train", "one", "success", "ci.yml", "main", ("gpuyard-v100",),
    )  # fmt: skip
    session.close()


def test_runners_of_a_scale_set(sets: ScaleSetClient) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    runner = sets.jit(made.id, "one")
    registered = sets.runner_named("one")
    assert registered is not None
    assert (registered.id, registered.scale_set) == (runner.id, made.id)
    assert sets.runner_named("on") is None
    with pytest.raises(GitHubError) as error:
        sets.jit(made.id, "one")
    assert error.value.kind is GitHubTrouble.CONFLICT
    assert sets.delete_runner(runner.id)
    assert not sets.delete_runner(runner.id)


def test_one_session_at_a_time(sets: ScaleSetClient) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    session = sets.open(made.id, "one")
    with pytest.raises(GitHubError, match="already has an active session") as error:
        sets.open(made.id, "two")
    assert error.value.kind is GitHubTrouble.CONFLICT
    sets.end_session(made.id, session.id)
    with pytest.raises(GitHubError) as error:
        session.poll(0, 1)
    assert error.value.kind is GitHubTrouble.MISSING
    sets.open(made.id, "two").close()
    sets.end_session(made.id, session.id)
    sets.open(made.id, "three").close()


def test_a_queue_token_that_is_over_is_renewed(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    session = sets.open(made.id, "one")
    github.standin.forge.sets[made.id].token_until = OLD
    assert session.poll(0, 1) is None
    github.standin.forge.sets[made.id].token_until = OLD
    session.acknowledge(5)


def test_an_admin_token_that_is_over_is_renewed(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    github.standin.gate.tokens.clear()
    assert sets.set_of(made.id) == made


def test_polls_that_break_do_not_stop_other_calls(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    session = sets.open(made.id, "one")
    github.standin.forge.faults.rates = FaultRates.of({"poll_broken": 1.0})
    errors = []
    for _ in range(8):
        with pytest.raises(GitHubError) as error:
            session.poll(0, 1)
        errors.append(error.value)
    assert {error.kind for error in errors} == {GitHubTrouble.RETRY}
    assert errors[-1].retry_at is not None, "it is not asked again at once for ever"
    assert sets.set_of(made.id) == made


def test_capacity_is_what_the_last_poll_said(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    session = sets.open(made.id, "one")
    session.poll(0, 3)
    assert github.standin.forge.sets[made.id].capacity == 3
    session.poll(0, -1)
    assert github.standin.forge.sets[made.id].capacity == 0


def test_a_message_that_is_not_acknowledged_comes_again(sets: ScaleSetClient, github: ForgeServer) -> None:
    made = sets.ensure("gpuyard-v100", "Default")
    session = sets.open(made.id, "one")
    github.standin.forge.push("demo/science", [JobOrder(("gpuyard-v100",))])
    first = next_message(session, 0, 1)
    assert next_message(session, 0, 1).id == first.id
    session.acknowledge(first.id)
    assert session.poll(0, 1) is None


def next_message(session: SetSession, last: int, capacity: int) -> SetMessage:
    return until(lambda: session.poll(last, capacity))


def until(condition: Callable[[], T | None]) -> T:
    """The first that is something."""
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value
