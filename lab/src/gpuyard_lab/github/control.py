"""Answers requests below ``/_fake``, with which tests and people control the stand-in; GitHub has nothing like them.

| request | does |
|---|---|
| ``GET /_fake/state`` | all that it knows, without secrets |
| ``GET /_fake/journal`` | the faults that were injected, and how many of each |
| ``POST /_fake/repositories`` | ``{"name": "demo/science", "private": false, "files": {".cirun.yml": "..."}}`` |
| ``POST /_fake/jobs`` | ``{"repository": ..., "jobs": [{"labels": [...], "seconds": 5}]}``: starts a run |
| ``GET /_fake/jobs/{id}`` | one job |
| ``POST /_fake/jobs/{id}/cancel`` | as a person who clicks on cancel |
| ``POST /_fake/hooks`` | ``{"scope": "app", "url": ..., "secret": ...}`` |
| ``POST /_fake/faults`` | ``{"seed": 7, "rates": {"hook_lost": 0.3}}``: from now on |
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from gpuyard_lab.github import payloads
from gpuyard_lab.github.faults import FaultRates
from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import ForgeJob, JobOrder
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest

PREFIX = "/_fake"
SECRET = ("secret", "session", "token", "body")


def dump(value: Any) -> Any:
    """Return records as JSON, without secrets."""
    if isinstance(value, dict):
        return {str(key): dump(item) for key, item in value.items() if key not in SECRET}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [dump(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def shown(forge: Forge, job: ForgeJob) -> dict[str, Any]:
    record: dict[str, Any] = dump(asdict(job))
    return {**record, "json": payloads.job(forge, job)}


class Control:
    """Answers the requests of a test or a person who runs the stand-in."""

    def __init__(self, forge: Forge) -> None:
        self.forge = forge

    def answer(self, request: ForgeRequest) -> ForgeAnswer:
        """Answer a request. Raises ForgeRefusal."""
        path = request.path.removeprefix(PREFIX).strip("/").split("/")
        if request.method == "GET":
            return self._get(path)
        if request.method != "POST":
            raise ForgeRefusal(405, f"{request.method} means nothing here")
        try:
            return self._post(path, request.json() if request.body else {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForgeRefusal(422, f"{request.path}: {error!r}") from None

    def _get(self, path: list[str]) -> ForgeAnswer:
        forge = self.forge
        if path == ["state"]:
            return ForgeAnswer(200, self.state())
        if path == ["journal"]:
            journal = [dump(asdict(injected)) for injected in forge.faults.journal]
            return ForgeAnswer(200, {"seed": forge.faults.seed, "counts": forge.faults.counts(), "faults": journal})
        if path[0] == "jobs" and len(path) == 2:
            return ForgeAnswer(200, shown(forge, self._job(path[1])))
        raise ForgeRefusal(404, "Not Found")

    def _post(self, path: list[str], body: dict[str, Any]) -> ForgeAnswer:
        forge = self.forge
        if path == ["repositories"]:
            repository = forge.add_repository(body["name"], private=bool(body.get("private")))
            repository.files.update(body.get("files", {}))
            return ForgeAnswer(201, dump(asdict(repository)))
        if path == ["jobs"]:
            about = {key: value for key, value in body.items() if key not in ("repository", "jobs")}
            run = forge.push(body["repository"], [order(job) for job in body["jobs"]], **about)
            return ForgeAnswer(201, {"run": run.id, "jobs": run.jobs})
        if path == ["hooks"]:
            hook = forge.add_hook(body["scope"], body["url"], body["secret"])
            return ForgeAnswer(201, {"id": hook.id})
        if path == ["faults"]:
            forge.faults.seed = int(body.get("seed", forge.faults.seed))
            forge.faults.rates = FaultRates.of(body.get("rates", {}))
            return ForgeAnswer(200, asdict(forge.faults.rates))
        if path[0] == "jobs" and path[2:] == ["cancel"]:
            forge.cancel(self._job(path[1]))
            return ForgeAnswer(202, {})
        raise ForgeRefusal(404, "Not Found")

    def _job(self, id: str) -> ForgeJob:
        job = self.forge.jobs.get(int(id)) if id.isdecimal() and len(id) < 18 else None
        if job is None:
            raise ForgeRefusal(404, f"there is no job {id[:20]}")
        return job

    def state(self) -> dict[str, Any]:
        """Return all that the stand-in knows, without secrets, as JSON."""
        forge = self.forge
        kinds: dict[str, dict[Any, Any]] = {
            "accounts": forge.accounts, "repositories": forge.repositories, "runs": forge.runs, "jobs": forge.jobs,
            "runners": forge.runners, "sets": forge.sets, "hooks": forge.hooks, "deliveries": forge.sendings,
        }  # fmt: skip
        now = forge.now().isoformat()
        return {"now": now, **{name: [dump(asdict(row)) for row in rows.values()] for name, rows in kinds.items()}}


def order(body: dict[str, Any]) -> JobOrder:
    """Read a job from JSON. Raises TypeError and ValueError for anything else."""
    labels = body.get("labels", [])
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError("'labels' is a list of texts")
    more = {key: value for key, value in body.items() if key not in ("labels", "approval_s")}
    approval = body.get("approval_s")
    return JobOrder(tuple(labels), approval=None if approval is None else timedelta(seconds=approval), **more)
