"""Converts jobs and runners to rows and back: the one place that knows how each field is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from gpuyard.database.columns import storable
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, ServerChoice, Trust, Wanted

REMEMBERED = 1024
"""Different texts of a kind that need not be read again: most jobs of a repository want the same."""


class Form(NamedTuple):
    """The conversion of one field: how it is written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None
    """None: as it is."""


def _json(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False))


def _wanted_text(wanted: Wanted | None) -> str:
    return _json({**asdict(wanted), "longest": wanted.longest.total_seconds()}) if wanted else ""


@lru_cache(REMEMBERED)
def _wanted(text: str) -> Wanted | None:
    if not text:
        return None
    data = json.loads(text)
    data["choices"] = tuple(ServerChoice(**choice) for choice in data["choices"])
    return Wanted(**{**data, "longest": timedelta(seconds=data["longest"])})


@lru_cache(REMEMBERED)
def _choice(text: str) -> ServerChoice:
    return ServerChoice(**json.loads(text))


@lru_cache(REMEMBERED)
def _texts(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _plain(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


PLAIN = Form(_plain, None)
TIME = Form(seconds, moment)
MAYBE_TIME = Form(maybe_seconds, maybe_moment)
TEXTS = Form(lambda texts: _json(list(texts)), _texts)
WANTED = Form(_wanted_text, _wanted)
CHOICE = Form(lambda choice: _json(asdict(choice)), _choice)
TRUST = Form(lambda trust: trust.value if trust else "", lambda text: Trust(text) if text else None)
CAUSE = Form(lambda cause: cause.value if cause else "", lambda text: Cause(text) if text else None)

JOB: Mapping[str, Form] = {
    **dict.fromkeys([field.name for field in fields(Job)], PLAIN),
    **dict.fromkeys(["not_before", "started", "completed", "changed"], MAYBE_TIME),
    "queued": TIME,
    "state": Form(lambda state: state.value, JobState),
    "labels": TEXTS,
    "trust": TRUST,
    "wanted": WANTED,
}
RUNNER: Mapping[str, Form] = {
    **dict.fromkeys([field.name for field in fields(Runner)], PLAIN),
    **dict.fromkeys(["active", "online", "busy", "ended", "until"], MAYBE_TIME),
    "created": TIME,
    "changed": TIME,
    "state": Form(lambda state: state.value, RunnerState),
    "labels": TEXTS,
    "gpus": TEXTS,
    "wanted": WANTED,
    "choice": CHOICE,
    "cause": CAUSE,
}


JOB_COLUMNS = tuple(JOB)
RUNNER_COLUMNS = (*RUNNER, "kind", "pool", "gpu_count")
_JOB_READS, _RUNNER_READS = ([form.read for form in forms.values()] for forms in (JOB, RUNNER))


def job_row(job: Job) -> dict[str, Any]:
    return {name: form.write(getattr(job, name)) for name, form in JOB.items()}


def runner_row(runner: Runner) -> dict[str, Any]:
    written = {name: form.write(getattr(runner, name)) for name, form in RUNNER.items()}
    kind, pool = storable(runner.wanted.kind), storable(runner.choice.pool)
    return {**written, "kind": kind, "pool": pool, "gpu_count": runner.choice.gpus}


def to_job(row: Sequence[Any]) -> Job:
    """Return the job of a row that begins with the columns of JOB."""
    return Job(*[read(value) if read else value for read, value in zip(_JOB_READS, row, strict=False)])


def to_runner(row: Sequence[Any]) -> Runner:
    """Return the runner of a row that begins with the columns of RUNNER."""
    return Runner(*[read(value) if read else value for read, value in zip(_RUNNER_READS, row, strict=False)])
