"""The stand-in GitHub behind a socket: long polls, answers that break, webhooks, and the runner that goes with it."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gpuyard_lab.github import runner_standin
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.server import ForgeServer

PERSON = "ghp_of_a_person"


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    server = ForgeServer()
    server.standin.forge.personal_tokens[PERSON] = "octocat"
    server.standin.forge.add_repository("demo/science")
    with server:
        yield server


def ask(server: ForgeServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request(
            method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {PERSON}"}
        )
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def jit(server: ForgeServer, name: str) -> str:
    body = {"name": name, "labels": ["gpu"], "runner_group_id": 1}
    status, answer = ask(server, "POST", "/api/v3/repos/demo/science/actions/runners/generate-jitconfig", body)
    assert status == 201
    config: str = answer["encoded_jit_config"]
    return config


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def test_a_runner_waits_for_a_job_does_it_and_says_what_the_real_one_says(github: ForgeServer) -> None:
    command = [sys.executable, runner_standin.__file__, "--jitconfig", jit(github, "one")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        until(lambda: any(runner.online for runner in github.standin.forge.runners.values()))
        run = ask(github, "POST", "/_fake/jobs", {"repository": "demo/science", "jobs": [{"labels": ["gpu"]}]})[1]
        output = runner.communicate(timeout=20)[0]
    assert runner.returncode == 0
    assert ask(github, "GET", f"/_fake/jobs/{run['jobs'][0]}")[1]["conclusion"] == "success"
    expected = ["√ Connected to GitHub", ": Listening for Jobs", ": Running job: build"]
    places = [output.index(line) for line in [*expected, ": Job build completed with result: Succeeded"]]
    assert places == sorted(places)


def test_a_configuration_that_was_used_is_refused(github: ForgeServer) -> None:
    config = jit(github, "one")
    url, _, token = runner_standin.read_config(config)
    runner_standin.RunnerLine(url, token).ask("POST", "/sessions")
    done = subprocess.run(
        [sys.executable, runner_standin.__file__, "--jitconfig", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "An error occurred: A session for this runner already exists." in done.stdout


@pytest.mark.parametrize("config", ["", "x", "e30=", "bnVsbA==", "{}"])
def test_a_configuration_that_is_none(config: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        runner_standin.read_config(config)


@pytest.mark.parametrize("fault", ["reply_lost", "reply_half"])
def test_an_answer_that_is_cut_has_been_acted_on(github: ForgeServer, fault: str) -> None:
    github.standin.forge.faults.rates = FaultRates.of({fault: 1.0})
    with pytest.raises((HTTPException, OSError)):
        jit(github, "one")
    github.standin.forge.faults.rates = FaultRates()
    listed = ask(github, "GET", "/api/v3/repos/demo/science/actions/runners")[1]
    assert [runner["name"] for runner in listed["runners"]] == ["one"]
    assert github.standin.forge.faults.counts() == {fault: 1}


class Received(BaseHTTPRequestHandler):
    """Where webhooks go."""

    found: list[tuple[dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.found.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(202)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    received: list[tuple[dict[str, str], bytes]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Received,), {"found": received}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_webhooks_are_signed_and_those_that_failed_can_be_sent_again(
    github: ForgeServer, receiver: tuple[str, list[tuple[dict[str, str], bytes]]]
) -> None:
    url, received = receiver
    with github.standin.forge.lock:
        hook = github.standin.forge.add_hook("demo/science", url, "s3cret")
        github.standin.forge.faults.rates = FaultRates(hook_failed=1.0)
        github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
        github.standin.forge.faults.rates = FaultRates()
    deliveries = f"/api/v3/repos/demo/science/hooks/{hook.id}/deliveries"
    (failed,) = until(lambda: ask(github, "GET", deliveries)[1])
    assert failed["status_code"] == 0
    assert not received
    assert ask(github, "POST", f"{deliveries}/{failed['id']}/attempts")[0] == 202
    until(lambda: received)
    headers, body = received[0]
    assert headers["x-github-delivery"] == failed["guid"]
    assert headers["x-github-event"] == "workflow_job"
    signature = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature-256"] == f"sha256={signature}"
    assert json.loads(body)["action"] == "queued"
    again = until(
        lambda: [delivery for delivery in ask(github, "GET", deliveries)[1] if delivery["status_code"] == 202]
    )
    assert [(delivery["redelivery"], delivery["guid"]) for delivery in again] == [(True, failed["guid"])]
