#!/usr/bin/env python3
"""``run.sh --jitconfig CONFIG``: a stand-in for actions/runner, for machines that cannot have it.

It connects with a just-in-time configuration, waits for one job, prints what the real one prints, and ends. A job's
work is to take its time; it runs ``GPUYARD_JOB_COMMAND`` when that is set. Standard library only, and Python 3.9: it
goes into virtual machines. The protocol is that of ``runner_sessions.py`` and not GitHub's.

Exit status, as the real one's: 0 after a job, 1 when it cannot go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

VERSION = "2.330.0"
POLL_S = 70.0
RENEW_S = 20.0
RETRY_S = 2.0
GIVE_UP_AFTER = 30


def say(text: str) -> None:
    print(text, flush=True)


def stamped(text: str) -> None:
    say(time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()) + ": " + text)


class Refused(Exception):
    """The server will not have this runner."""


class RunnerLine:
    """Connection to the server, which asks again when nobody answers or the server is broken."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self.opener = build_opener(ProxyHandler({}))

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return status and JSON. Raises Refused for 401, 404 and 409, and when the server does not answer."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        headers = {"Authorization": "Bearer " + self.token, "Content-Type": "application/json"}
        for attempt in range(GIVE_UP_AFTER):
            try:
                request = Request(self.url + path, data, headers, method=method)
                with self.opener.open(request, timeout=POLL_S) as answer:
                    text = answer.read()
                    return answer.status, json.loads(text) if text else {}
            except HTTPError as error:
                with error:
                    if error.code in (401, 404, 409):
                        raise Refused(_message(error.read())) from None
            except (OSError, ValueError):
                pass
            except Exception as error:  # http.client's: a half answer
                if type(error).__module__ != "http.client":
                    raise
            if attempt == 0:
                stamped("Runner connect error: the server does not answer. Retrying until reconnected.")
            time.sleep(RETRY_S)
        raise Refused("the server does not answer")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return "refused"


def read_config(text: str) -> tuple[str, str, str]:
    """Return server, name and token of an encoded configuration. Raises ValueError when it is none."""
    try:
        files = {name: json.loads(b64decode(value)) for name, value in json.loads(b64decode(text)).items()}
        settings, credentials = files[".runner"], files[".credentials"]
        return settings["serverUrl"], settings["agentName"], credentials["data"]["token"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("the just-in-time configuration cannot be read") from None


def context(job: dict[str, Any]) -> dict[str, str]:
    """Return the environment that actions/runner gives a job, with the event in a file."""
    folder = tempfile.mkdtemp(prefix="event-")
    path = os.path.join(folder, "event.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job.get("event", {}), file)
    variables = {"GITHUB_REPOSITORY": job["repository"], "GITHUB_RUN_ID": str(job["runId"]), "GITHUB_EVENT_PATH": path}
    return {**os.environ, **variables}


def work(connection: RunnerLine, job: dict[str, Any]) -> str:
    """Do a job; returns its result."""
    command = os.environ.get("GPUYARD_JOB_COMMAND")
    process = subprocess.Popen(command, shell=True, env=context(job)) if command else None  # noqa: S602
    began = renewed = time.monotonic()
    result = {"success": "Succeeded", "failure": "Failed"}.get(job.get("result", "success"), "Failed")
    while process.poll() is None if process else time.monotonic() - began < float(job.get("seconds", 0)):
        time.sleep(0.05 if process else min(0.5, max(0.0, began + float(job["seconds"]) - time.monotonic())))
        if time.monotonic() - renewed >= RENEW_S:
            renewed = time.monotonic()
            if connection.ask("POST", f"/jobs/{job['jobId']}/renew")[1].get("cancelled"):
                if process:
                    process.kill()
                return "Canceled"
    return "Failed" if process and process.returncode else result


def run(url: str, token: str) -> int:
    """Connect, do one job, end."""
    try:
        _, session = RunnerLine(url, token).ask("POST", "/sessions")
        connection = RunnerLine(url, session["session"])
        say("\n√ Connected to GitHub\n")
        say(f"Current runner version: '{VERSION}'")
        stamped("Listening for Jobs")
        while True:
            status, job = connection.ask("GET", "/message")
            if status != 200:
                continue
            try:
                connection.ask("POST", f"/jobs/{job['jobId']}/start")
            except Refused:  # somebody else has it, or it was cancelled
                continue
            break
        stamped(f"Running job: {job['jobDisplayName']}")
        result = work(connection, job)
        try:
            connection.ask("POST", f"/jobs/{job['jobId']}/finish", {"result": result})
        except Refused as error:  # also when the answer to the first time was lost: the registration is gone then
            stamped(f"finishing: {error}")
        stamped(f"Job {job['jobDisplayName']} completed with result: {result}")
        return 0
    except Refused as error:
        say(f"An error occurred: {error}")
        return 1


def main() -> int:
    parser = argparse.ArgumentParser("run.sh")
    parser.add_argument("--jitconfig", default=os.environ.get("ACTIONS_RUNNER_INPUT_JITCONFIG", ""))
    try:
        url, _, token = read_config(parser.parse_args().jitconfig)
    except ValueError as error:
        say(f"An error occurred: {error}")
        return 1
    return run(url, token)


if __name__ == "__main__":
    sys.exit(main())
