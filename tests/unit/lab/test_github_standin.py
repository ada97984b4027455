"""The stand-in GitHub: its REST API, and how jobs find runners."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gpuyard_lab.github.forge import ForgeApp, ForgeSettings
from gpuyard_lab.github.records import ForgeGroup, JobOrder
from gpuyard_lab.github.runner_standin import read_config
from tests.support.forges import Asker, forge

RUNNERS = "/api/v3/repos/demo/science/actions/runners"
SIDE = "/_services/runner"


def connect(github: Asker, jit: Any) -> Asker:
    """A runner that has connected with its configuration."""
    url, name, token = read_config(jit["encoded_jit_config"])
    assert (url, name) == ("http://github.test/_services/runner", jit["runner"]["name"])
    runner = Asker(github.clock, github.standin, token)
    runner.token = runner.ask("POST", f"{SIDE}/sessions")["session"]
    return runner


def test_a_job_goes_to_an_idle_runner_with_its_labels_and_the_registration_goes_with_it() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",), name="train")])
    job = f"/api/v3/repos/demo/science/actions/jobs/{run.jobs[0]}"
    runner = connect(github, github.jit("one", ["gpu", "v100"]))
    listed = github.ask("GET", f"{RUNNERS}?name=one")["runners"]
    assert [(row["status"], row["busy"]) for row in listed] == [("online", False)]
    given = runner.ask("GET", f"{SIDE}/message")
    assert given["jobDisplayName"] == "train"
    assert github.ask("GET", job)["status"] == "queued"
    assert runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/start") is None
    shown = github.ask("GET", job)
    assert (shown["status"], shown["runner_name"], shown["labels"]) == ("in_progress", "one", ["gpu"])
    github.ask("DELETE", f"{RUNNERS}/{listed[0]['id']}")
    assert github.last.status == 422
    runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/finish", {"result": "Succeeded"})
    assert runner.last.status == 204
    shown = github.ask("GET", job)
    assert (shown["status"], shown["conclusion"]) == ("completed", "success")
    assert github.ask("GET", RUNNERS) == {"total_count": 0, "runners": []}
    runner.ask("GET", f"{SIDE}/message")
    assert runner.last.status == 401


@pytest.mark.parametrize(
    "labels, place, gets",
    [
        (["gpu"], "repos/demo/science", True),
        (["GPU", "more"], "repos/demo/science", True),
        (["other"], "repos/demo/science", False),
        (["gpu"], "repos/demo/other", False),
        (["gpu"], "orgs/demo", True),
        (["gpu"], "orgs/another", False),
    ],
)
def test_which_runner_gets_a_job(labels: list[str], place: str, gets: bool) -> None:
    github = forge()
    github.standin.forge.add_repository("demo/other")
    github.standin.forge.add_account("another")
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    runner = connect(github, github.jit("one", labels, place))
    runner.ask("GET", f"{SIDE}/message")
    assert runner.last.status == (200 if gets else 202)


def test_a_runner_of_a_group_only_serves_its_repositories() -> None:
    github = forge()
    groups = github.standin.forge.accounts["demo"].groups
    groups[7] = ForgeGroup(7, "closed", frozenset({"demo/other"}))
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    runner = connect(github, github.jit("one", ["gpu"], "orgs/demo", group=7))
    runner.ask("GET", f"{SIDE}/message")
    assert runner.last.status == 202
    assert github.jit("two", ["gpu"], group=7)["message"].startswith("The runner group cannot be used")
    assert github.last.status == 403


def test_a_job_that_is_not_picked_up_goes_to_another_runner() -> None:
    github = forge()
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    first, second = (connect(github, github.jit(name, ["gpu"])) for name in ("one", "two"))
    given = first.ask("GET", f"{SIDE}/message")
    second.ask("GET", f"{SIDE}/message")
    assert second.last.status == 202
    github.later(seconds=60)
    assert second.ask("GET", f"{SIDE}/message")["jobId"] == given["jobId"]
    first.ask("POST", f"{SIDE}/jobs/{given['jobId']}/start")
    assert first.last.status == 404
    second.ask("POST", f"{SIDE}/jobs/{given['jobId']}/start")
    assert second.last.status == 204


def test_a_jit_configuration_works_once() -> None:
    github = forge()
    jit = github.jit("one", ["gpu"])
    connect(github, jit)
    again = Asker(github.clock, github.standin, read_config(jit["encoded_jit_config"])[2])
    again.ask("POST", f"{SIDE}/sessions")
    assert again.last.status == 409


@pytest.mark.parametrize(
    "body, status",
    [
        ({"name": "two", "labels": ["gpu"]}, 422),
        ({"name": "two", "labels": [], "runner_group_id": 1}, 422),
        ({"name": "two", "labels": ["x"] * 101, "runner_group_id": 1}, 422),
        ({"labels": ["gpu"], "runner_group_id": 1}, 422),
        ({"name": "x" * 65, "labels": ["gpu"], "runner_group_id": 1}, 422),
        ({"name": "ONE", "labels": ["gpu"], "runner_group_id": 1}, 409),
        ({"name": "two", "labels": ["gpu"], "runner_group_id": 9}, 404),
        ({"name": "two", "labels": ["gpu"], "runner_group_id": 1}, 201),
    ],
)
def test_what_a_registration_needs(body: dict[str, Any], status: int) -> None:
    github = forge()
    github.jit("one", ["gpu"])
    github.ask("POST", f"{RUNNERS}/generate-jitconfig", body)
    assert github.last.status == status


def test_a_full_group_takes_no_more() -> None:
    github = forge(settings=ForgeSettings(poll_s=0, runners_in_group=1))
    github.jit("one", ["gpu"])
    assert "max limit of 1 runners" in github.jit("two", ["gpu"])["message"]


def test_a_runner_that_dies_in_its_job_loses_it() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    runner = connect(github, github.jit("one", ["gpu"]))
    given = runner.ask("GET", f"{SIDE}/message")
    runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/start")
    github.later(minutes=9)
    assert runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/renew") == {"cancelled": False}
    github.later(minutes=9)
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == ""
    github.later(minutes=1)
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == "failure"


def test_cancelling_in_the_queue_and_while_it_runs() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",)), JobOrder(("other",))])
    runner = connect(github, github.jit("one", ["gpu"]))
    given = runner.ask("GET", f"{SIDE}/message")
    runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/start")
    cancel = f"/api/v3/repos/demo/science/actions/runs/{run.id}/cancel"
    github.ask("POST", cancel)
    assert github.last.status == 202
    states = [github.standin.forge.jobs[id].conclusion for id in run.jobs]
    assert states == ["", "cancelled"]
    assert runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/renew") == {"cancelled": True}
    runner.ask("POST", f"{SIDE}/jobs/{given['jobId']}/finish", {"result": "Canceled"})
    github.ask("POST", cancel)
    assert github.last.status == 409
    shown = github.ask("GET", f"/api/v3/repos/demo/science/actions/runs/{run.id}")
    assert (shown["status"], shown["conclusion"]) == ("completed", "cancelled")


def test_a_job_that_waits_for_approval_is_queued_later() -> None:
    github = forge()
    order = JobOrder(("gpu",), approval=timedelta(minutes=5))
    run = github.standin.forge.push("demo/science", [order])
    queued = "/api/v3/repos/demo/science/actions/runs?status=queued"
    assert github.ask("GET", queued)["total_count"] == 0
    github.later(minutes=5)
    assert [row["id"] for row in github.ask("GET", queued)["workflow_runs"]] == [run.id]


def test_contents_and_their_etag() -> None:
    github = forge()
    path = "/api/v3/repos/demo/science/contents/README.md"
    contents = github.ask("GET", path)
    assert b64decode(contents["content"]) == b"Science.\n"
    etag = github.last.headers["etag"]
    before = github.last.headers["x-ratelimit-remaining"]
    github.ask("GET", path, if_none_match=f"W/{etag}")
    assert github.last.status == 304
    github.ask("GET", path, accept="application/vnd.github.raw+json")
    assert github.last.encoded() == b"Science.\n"
    assert int(before) - int(github.last.headers["x-ratelimit-remaining"]) == 1
    github.ask("GET", path.replace("README", "NONE"))
    assert github.last.status == 404


def test_the_rate_limit() -> None:
    github = forge(settings=ForgeSettings(poll_s=0, requests_an_hour=2))
    for _ in range(2):
        github.ask("GET", "/api/v3/user")
        assert github.last.status == 200
    github.ask("GET", "/api/v3/user")
    assert (github.last.status, github.last.headers["x-ratelimit-remaining"]) == (403, "0")
    github.later(hours=1)
    github.ask("GET", "/api/v3/user")
    assert github.last.status == 200


def test_an_app_gets_a_token_for_each_installation_and_sees_no_more_with_it() -> None:
    github = forge()
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    github.standin.forge.app = ForgeApp(42, public.decode())
    github.standin.forge.add_repository("secret/other")

    def app(minutes: float, issuer: str = "42") -> Asker:
        now = github.clock.now.timestamp()
        claims = {"iat": int(now - 60), "exp": int(now + minutes * 60), "iss": issuer}
        return Asker(github.clock, github.standin, jwt.encode(claims, key, algorithm="RS256"))

    good = app(9)
    app_installation = good.ask("GET", "/api/v3/orgs/demo/installation")
    token = good.ask("POST", f"/api/v3/app/installations/{app_installation['id']}/access_tokens")
    assert good.last.status == 201
    installation = Asker(github.clock, github.standin, token["token"])
    repositories = installation.ask("GET", "/api/v3/installation/repositories")["repositories"]
    assert [repository["full_name"] for repository in repositories] == ["demo/science"]
    installation.ask("GET", "/api/v3/repos/secret/other")
    assert installation.last.status == 404
    for bad in (app(30), app(-1), app(9, "41")):
        bad.ask("GET", "/api/v3/app")
        assert bad.last.status == 401
    github.later(hours=1)
    installation.ask("GET", "/api/v3/installation/repositories")
    assert installation.last.status == 401


def test_lists_come_in_pages() -> None:
    github = forge()
    for number in range(5):
        github.jit(f"runner-{number}", ["gpu"])
    names, path = [], f"{RUNNERS}?per_page=2"
    while path:
        names += [runner["name"] for runner in github.ask("GET", path)["runners"]]
        ways = re.findall(r'<http://github\.test([^>]*)>; rel="(\w+)"', github.last.headers.get("link", ""))
        path = next((address for address, way in ways if way == "next"), "")
    assert names == [f"runner-{number}" for number in range(5)]


def test_the_dump_has_no_secrets() -> None:
    github = forge()
    jit = github.jit("one", ["gpu"])
    connect(github, jit)
    text = json.dumps(github.ask("GET", "/_fake/state"))
    runner = github.standin.forge.runners[jit["runner"]["id"]]
    assert '"one"' in text
    assert runner.secret not in text
    assert runner.session not in text
