"""Answers the stand-in's runners, in a protocol of our own: GitHub's is not published, and needs its own runner.

A runner has the JIT configuration and nothing else. All paths are below ``/_services/runner``, with
``Authorization: Bearer`` and the token of the configuration at the first one, that of its session at all others:

| request | answer |
|---|---|
| ``POST /sessions`` | 201 ``{"session": ..., "name": ...}``; 409 the configuration was used before; 401 it is gone |
| ``GET /message`` | 200 a job; 202 none in 50 s (``?wait=`` says less): ask again; 401 the registration is gone |
| ``POST /jobs/{id}/start`` | 204 it is this runner's now; 404 it is not |
| ``POST /jobs/{id}/renew`` | 200 ``{"cancelled": false}``; to be said every minute while it runs |
| ``POST /jobs/{id}/finish`` | with ``{"result": "Succeeded"}``, ``Failed`` or ``Canceled``: 204 |
| ``DELETE /session`` | 204 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuyard_lab.github import payloads
from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import IN_PROGRESS, ForgeJob, ForgeRunner
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRequest, ServiceRefusal

RESULTS = {"Succeeded": "success", "Failed": "failure", "Canceled": "cancelled"}
PREFIX = "/_services/runner"
Wait = Callable[[Callable[[], bool], float], bool]


class RunnerSide:
    """Answers runners' requests."""

    def __init__(self, forge: Forge, wait: Wait) -> None:
        """``wait`` waits until something is true, or so many seconds are over; returns whether it is true."""
        self.forge, self.wait = forge, wait

    def answer(self, request: ForgeRequest) -> ForgeAnswer:
        """Answer a request. Raises ServiceRefusal."""
        path = request.path.removeprefix(PREFIX).strip("/").split("/")
        if (request.method, path) == ("POST", ["sessions"]):
            return self._connect(request)
        runner = self._runner(request, "session")
        runner.heard, runner.silent = self.forge.now(), False
        if (request.method, path) == ("GET", ["message"]):
            return self._message(request, runner)
        if (request.method, path) == ("DELETE", ["session"]):
            return self._disconnect(runner)
        if request.method == "POST" and len(path) == 3 and path[0] == "jobs":
            job = self._job(runner, path[1])
            if path[2] == "start":
                return self._start(runner, job)
            if path[2] == "renew" and job.status == IN_PROGRESS:
                return ForgeAnswer(200, {"cancelled": job.cancelled})
            if path[2] == "finish" and job.status == IN_PROGRESS:
                return self._finish(request, job)
        raise ServiceRefusal(404, "VssResourceNotFoundException", f"there is nothing at {request.path}")

    def _runner(self, request: ForgeRequest, what: str) -> ForgeRunner:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        runner = None
        if scheme == "Bearer" and token:
            runner = next((runner for runner in self.forge.runners.values() if getattr(runner, what) == token), None)
        if runner is None:
            raise ServiceRefusal(
                401, "TaskAgentNotFoundException",
                "The runner registration has been deleted from the server, please re-configure.",
            )  # fmt: skip
        return runner

    def _connect(self, request: ForgeRequest) -> ForgeAnswer:
        runner = self._runner(request, "secret")
        if runner.connected is not None:
            raise ServiceRefusal(409, "TaskAgentSessionConflictException", "A session for this runner already exists.")
        runner.session = self.forge.guid("runner session")
        runner.connected = runner.heard = self.forge.now()
        self.forge.wake()
        return ForgeAnswer(201, {"session": runner.session, "name": runner.name})

    def _message(self, request: ForgeRequest, runner: ForgeRunner) -> ForgeAnswer:
        wait, longest = request.query.get("wait", ""), self.forge.settings.poll_s
        jobs: list[ForgeJob] = []

        def something() -> bool:
            if runner.id not in self.forge.runners:
                return True
            if not runner.job and (job := self.forge.job_for(runner)):
                jobs.append(job)
            return bool(jobs)

        self.wait(something, min(longest, int(wait)) if wait.isdecimal() and len(wait) < 9 else longest)
        if runner.id not in self.forge.runners:
            self._runner(ForgeRequest("GET", ""), "session")
        runner.heard = self.forge.now()
        if not jobs:
            return ForgeAnswer(202)
        job = jobs[0]
        if self.forge.faults.strikes("offer_lost", f"job {job.id}", self.forge.now()):
            return ForgeAnswer(202)
        order = job.order
        return ForgeAnswer(
            200,
            {
                "jobId": job.id,
                "jobDisplayName": order.name,
                "repository": job.repository,
                "runId": job.run,
                "event": self._event(job),
                "seconds": order.seconds,
                "result": order.result,
            },
        )

    def _event(self, job: ForgeJob) -> dict[str, Any]:
        """Return the part of the run's event that says where its code is from."""
        repository, run = self.forge.repositories[job.repository.lower()], self.forge.runs[job.run]
        if not run.pull:
            return {}
        return {"pull_request": payloads.pull(self.forge, repository, repository.pulls[run.pull])}

    def _job(self, runner: ForgeRunner, id: str) -> ForgeJob:
        job = self.forge.jobs.get(int(id)) if id.isdecimal() and len(id) < 18 else None
        if job is None or runner.job != job.id or job.runner != runner.id:
            raise ServiceRefusal(404, "TaskAgentJobNotFoundException", f"job {id[:20]} is not this runner's")
        return job

    def _start(self, runner: ForgeRunner, job: ForgeJob) -> ForgeAnswer:
        if job.status == IN_PROGRESS:  # the answer to the first time was lost
            return ForgeAnswer(204)
        if job.offered is None:
            raise ServiceRefusal(404, "TaskAgentJobNotFoundException", f"job {job.id} is not offered any more")
        self.forge.begin(job, runner)
        return ForgeAnswer(204)

    def _finish(self, request: ForgeRequest, job: ForgeJob) -> ForgeAnswer:
        result = RESULTS.get(str(request.json().get("result")))
        if result is None:
            raise ServiceRefusal(400, "ArgumentException", f"a result is one of {', '.join(RESULTS)}")
        self.forge.complete(job, result)
        return ForgeAnswer(204)

    def _disconnect(self, runner: ForgeRunner) -> ForgeAnswer:
        """A runner that goes without its job: GitHub learns of it when it does not renew the job."""
        if not runner.job:
            runner.session = ""
        return ForgeAnswer(204)
