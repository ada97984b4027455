"""The stand-in GitHub's scale sets: who gets a job when, and what a listener hears of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.wire import ForgeRequest
from tests.support.forges import Asker, forge
from tests.unit.lab.test_github_standin import SIDE, connect

DIRECT = ForgeSettings(poll_s=0, offers=False)
OFFERING = ForgeSettings(poll_s=0)
VERSION = "api-version=6.0-preview"


@dataclass
class Heard:
    id: int
    statistics: dict[str, int]
    events: list[dict[str, Any]]

    @property
    def kinds(self) -> list[str]:
        return [event["messageType"] for event in self.events]


class Listener:
    """A scale set ``gpu`` of the organisation demo, and who listens for it."""

    def __init__(self, github: Asker, place: str = "demo", labels: list[str] | None = None) -> None:
        self.github = github
        kind = "repos" if "/" in place else "orgs"
        path = f"/api/v3/{kind}/{place}/actions/runners/registration-token"
        token = github.ask("POST", path)["token"]
        body = {"url": f"http://github.test/{place}", "runner_event": "register"}
        where = github.ask("POST", "/api/v3/actions/runner-registration", body, authorization=f"RemoteAuth {token}")
        self.base = where["url"].removeprefix("http://github.test")
        self.service = Asker(github.clock, github.standin, where["token"])
        group = self.ask("GET", "runtime/runnergroups/?groupName=default")["value"][0]["id"]
        made = {"name": "gpu", "runnerGroupId": group, "labels": [{"name": label} for label in labels or []]}
        self.set = self.ask("POST", "runtime/runnerscalesets", made)
        self.open()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        joint = "&" if "?" in path else "?"
        return self.service.ask(method, f"{self.base}_apis/{path}{joint}{VERSION}", body)

    def open(self) -> None:
        self.session = self.ask("POST", f"runtime/runnerscalesets/{self.set['id']}/sessions", {"ownerName": "tests"})
        self.queue = Asker(self.github.clock, self.github.standin, self.session["messageQueueAccessToken"])
        self.messages = self.session["messageQueueUrl"].removeprefix("http://github.test")

    def poll(self, last: int = 0, capacity: int = 10) -> Heard | None:
        message = self.queue.ask("GET", f"{self.messages}&lastMessageId={last}", x_scalesetmaxcapacity=str(capacity))
        if self.queue.last.status == 202:
            return None
        assert self.queue.last.status == 200
        return Heard(message["messageId"], message["statistics"], json.loads(message["body"]))

    def acknowledge(self, message: int) -> None:
        self.queue.ask("DELETE", self.messages.replace("?", f"/{message}?"))
        assert self.queue.last.status == 204

    def acquire(self, *requests: int) -> list[int]:
        path = f"{self.base}_apis/runtime/runnerscalesets/{self.set['id']}/acquirejobs?{VERSION}"
        taken: list[int] = self.queue.ask("POST", path, list(requests))["value"]
        return taken

    def jit(self, name: str) -> Any:
        answer = self.ask("POST", f"runtime/runnerscalesets/{self.set['id']}/generatejitconfig", {"name": name})
        if self.service.last.status != 200:
            return answer
        return {"runner": answer["runner"], "encoded_jit_config": answer["encodedJITConfig"]}


def push(github: Asker, *labels: str, many: int = 1) -> list[int]:
    return github.standin.forge.push("demo/science", [JobOrder(labels or ("gpu",))] * many).jobs


def test_a_job_of_a_scale_set_from_the_queue_to_its_end() -> None:
    github = forge(settings=OFFERING)
    listener = Listener(github)
    assert listener.poll() is None
    push(github)
    offered = listener.poll()
    assert offered
    assert (offered.kinds, offered.statistics["totalAvailableJobs"]) == (["JobAvailable"], 1)
    assert offered.statistics["totalAssignedJobs"] == 0
    request = offered.events[0]["runnerRequestId"]
    assert listener.acquire(request) == [request]
    assigned = listener.poll(offered.id)
    assert assigned
    assert (assigned.kinds, assigned.statistics["totalAssignedJobs"]) == (["JobAssigned"], 1)
    runner = connect(github, listener.jit("one"))
    job = runner.ask("GET", f"{SIDE}/message")["jobId"]
    runner.ask("POST", f"{SIDE}/jobs/{job}/start")
    started = listener.poll(assigned.id)
    assert started
    assert (started.kinds, started.events[0]["runnerName"]) == (["JobStarted"], "one")
    assert (started.statistics["totalRunningJobs"], started.statistics["totalBusyRunners"]) == (1, 1)
    runner.ask("POST", f"{SIDE}/jobs/{job}/finish", {"result": "Succeeded"})
    done = listener.poll(started.id)
    assert done
    assert (done.kinds, done.events[0]["result"]) == (["JobCompleted"], "succeeded")
    assert done.statistics["totalAssignedJobs"] == done.statistics["totalRegisteredRunners"] == 0


@pytest.mark.parametrize("settings", [DIRECT, OFFERING], ids=["direct", "offering"])
def test_never_more_jobs_than_the_capacity_of_the_last_poll(settings: ForgeSettings) -> None:
    github = forge(settings=settings)
    listener = Listener(github)
    push(github, many=20)
    last, most = 0, 0
    for capacity in (0, 3, 1, 0, 5, 2, 7):
        most = max(most, capacity)
        while heard := listener.poll(last, capacity):
            last = heard.id
            listener.acquire(*[event["runnerRequestId"] for event in heard.events])
            assert heard.statistics["totalAssignedJobs"] <= most
        assert listener.github.standin.sets.assigned(github.standin.forge.sets[listener.set["id"]]) == most


def test_a_message_comes_until_it_is_acknowledged() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    push(github)
    first, again = listener.poll(), listener.poll()
    assert first
    assert again
    assert (again.id, again.events) == (first.id, first.events)
    assert listener.poll(first.id) is None
    listener.acknowledge(first.id)
    assert listener.poll() is None


def test_a_message_has_at_most_fifty_events() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    push(github, many=70)
    first = listener.poll(0, 100)
    assert first
    assert (len(first.events), first.statistics["totalAssignedJobs"]) == (50, 70)


def test_what_nobody_acquires_is_offered_again() -> None:
    github = forge(settings=OFFERING)
    listener = Listener(github)
    push(github)
    first = listener.poll()
    assert first
    listener.acknowledge(first.id)
    assert listener.poll(first.id) is None
    github.later(seconds=60)
    again = listener.poll(first.id)
    assert again
    assert again.events[0]["runnerRequestId"] == first.events[0]["runnerRequestId"]


def test_an_assignment_that_no_runner_takes_up_is_taken_back_and_given_again() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    push(github)
    first = listener.poll()
    assert first
    github.later(minutes=15)
    listener.open()
    second = listener.poll(first.id)
    assert second
    assert (second.kinds, second.events[0]["result"]) == (["JobCompleted"], "canceled")
    assert second.statistics["totalAssignedJobs"] == 0
    github.later(seconds=10)
    third = listener.poll(second.id)
    assert third
    assert third.kinds == ["JobAssigned"]
    assert third.events[0]["runnerRequestId"] != first.events[0]["runnerRequestId"]
    assert third.events[0]["jobId"] == first.events[0]["jobId"]


def test_one_session_at_a_time_until_it_is_closed_or_idle() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    sessions = f"runtime/runnerscalesets/{listener.set['id']}/sessions"
    refused = listener.ask("POST", sessions, {"ownerName": "others"})
    assert listener.service.last.status == 409
    assert "active session for owner tests" in refused["message"]
    listener.ask("DELETE", f"{sessions}/{listener.session['sessionId']}")
    assert listener.service.last.status == 204
    listener.open()
    github.later(seconds=120)
    listener.open()


def test_the_token_of_a_queue_is_renewed() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    push(github)
    github.standin.forge.faults.rates = FaultRates(session_expired=1.0)
    listener.queue.ask("GET", listener.messages, x_scalesetmaxcapacity="1")
    assert listener.queue.last.status == 401
    github.standin.forge.faults.rates = FaultRates()
    session = f"runtime/runnerscalesets/{listener.set['id']}/sessions/{listener.session['sessionId']}"
    listener.queue.token = listener.ask("PATCH", session)["messageQueueAccessToken"]
    assert listener.poll()


def test_a_job_goes_to_runners_of_its_set_alone_and_only_when_it_is_assigned() -> None:
    github = forge(settings=OFFERING)
    listener = Listener(github)
    push(github)
    other, own = connect(github, github.jit("other", ["gpu"])), connect(github, listener.jit("own"))
    for runner in (other, own):
        runner.ask("GET", f"{SIDE}/message")
        assert runner.last.status == 202
    offered = listener.poll()
    assert offered
    listener.acquire(offered.events[0]["runnerRequestId"])
    other.ask("GET", f"{SIDE}/message")
    assert other.last.status == 202
    assert own.ask("GET", f"{SIDE}/message")["jobId"]


def test_labels_and_scope_decide_which_set_a_job_is_for() -> None:
    github = forge(settings=DIRECT)
    github.standin.forge.add_repository("another/science")
    listener = Listener(github, "demo/science", ["gpu", "v100"])
    github.standin.forge.add_repository("demo/more")
    for repository, labels in [
        ("demo/more", ("gpu",)),
        ("another/science", ("gpu",)),
        ("demo/science", ("gpu", "t4")),
        ("demo/science", ("GPU", "v100")),
    ]:
        github.standin.forge.push(repository, [JobOrder(labels)])
    heard = listener.poll()
    assert heard
    assert [(event["ownerName"], event["repositoryName"], event["requestLabels"]) for event in heard.events] == [
        ("demo", "science", ["GPU", "v100"])
    ]


def test_runners_of_a_set() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    made = listener.jit("one")["runner"]
    assert listener.jit("ONE")["typeName"].startswith("GitHub.Actions.Runtime.WebApi.AgentExistsException")
    agents = "distributedtask/pools/0/agents"
    assert listener.ask("GET", f"{agents}?agentName=one")["value"] == [made]
    assert listener.ask("GET", f"{agents}?agentName=none")["count"] == 0
    listener.ask("DELETE", f"{agents}/{made['id']}")
    assert listener.service.last.status == 204
    gone = listener.ask("DELETE", f"{agents}/{made['id']}")
    assert (listener.service.last.status, gone["typeName"].split(",")[0].split(".")[-1]) == (
        404,
        "AgentNotFoundException",
    )


def test_what_was_waiting_in_a_set_that_is_deleted_waits_for_the_next_one() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    push(github)
    assert listener.poll()
    listener.ask("DELETE", f"runtime/runnerscalesets/{listener.set['id']}")
    heard = Listener(github).poll()
    assert heard
    assert heard.kinds == ["JobAssigned"]


def test_who_speaks_to_a_github_that_was_restarted_has_to_come_in_anew() -> None:
    listener, fresh = Listener(forge()), forge()
    listener.service.standin = fresh.standin
    listener.ask("GET", "runtime/runnerscalesets")
    assert listener.service.last.status == 401


def test_the_way_in_is_for_who_was_let_in() -> None:
    github = forge()
    github.standin.forge.add_account("another")
    token = github.ask("POST", "/api/v3/orgs/another/actions/runners/registration-token")["token"]
    body = {"url": "http://github.test/demo", "runner_event": "register"}
    path = "/api/v3/actions/runner-registration"
    github.ask("POST", path, body, authorization=f"RemoteAuth {token}")
    assert github.last.status == 404
    github.ask("POST", path, body, authorization="RemoteAuth wrong")
    assert github.last.status == 401
    github.ask("POST", path, body)
    assert github.last.status == 401
    listener = Listener(github)
    listener.service.token = github.token
    listener.ask("GET", "runtime/runnerscalesets")
    assert listener.service.last.status == 401


def test_a_poll_that_was_broken_off_takes_nothing_with_it() -> None:
    github = forge(settings=DIRECT)
    listener = Listener(github)
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    headers = {"authorization": f"Bearer {listener.queue.token}", "x-scalesetmaxcapacity": "1"}
    poll = ForgeRequest.of("GET", f"{listener.messages}&lastMessageId=0", headers, b"")
    assert github.standin.handle(replace(poll, gone=lambda: True)).cut == "all"
    went: list[bool] = [False, True]  # hangs up when the message is made
    assert github.standin.handle(replace(poll, gone=lambda: went.pop(0))).cut == "all"
    heard = listener.poll(0, 1)
    assert heard is not None
    assert heard.kinds == ["JobAssigned"]
