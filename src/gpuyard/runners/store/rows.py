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
from gpuyard.runners.records import Cause, Job, JobState, Runner, RunnerState, ServerChoice, ServerSpec, Trust

REMEMBERED = 1024
"""Different texts of a kind that need not be read again: most jobs of a repository want the same."""


class Form(NamedTuple):
    """The conversion of one field: how it is written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None
    """None: as it is."""


def _json(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False))


def _spec_text(spec: ServerSpec | None) -> str:
    return _json({**asdict(spec), "longest": spec.longest.total_seconds()}) if spec else ""


@lru_cache(REMEMBERED)
def _spec(text: str) -> ServerSpec | None:
    if not text:
        return None
    data = json.loads(text)
    data["choices"] = tuple(ServerChoice(**choice) for choice in data["choices"])
    return ServerSpec(**{**data, "longest": timedelta(seconds=data["longest"])})


@lru_cache(REMEMBERED)
def _choice(text: str) -> ServerChoice:
    return ServerChoice(**json.loads(text))


@lru_cache(REMEMBERED)
def _texts(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _plain(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


FIELDS = {"wanted": "spec"}
"""Fields that have another name than their column, by column."""


def _columns(record: type[Job] | type[Runner]) -> list[str]:
    """Return the columns of a record's fields, in the order of the fields."""
    columns = {field: column for column, field in FIELDS.items()}
    return [columns.get(field.name, field.name) for field in fields(record)]


PLAIN = Form(_plain, None)
TIME = Form(seconds, moment)
MAYBE_TIME = Form(maybe_seconds, maybe_moment)
TEXTS = Form(lambda texts: _json(list(texts)), _texts)
SPEC = Form(_spec_text, _spec)
CHOICE = Form(lambda choice: _json(asdict(choice)), _choice)
TRUST = Form(lambda trust: trust.value if trust else "", lambda text: Trust(text) if text else None)
CAUSE = Form(lambda cause: cause.value if cause else "", lambda text: Cause(text) if text else None)

JOB: Mapping[str, Form] = {
    **dict.fromkeys(_columns(Job), PLAIN),
    **dict.fromkeys(["not_before", "started", "completed", "changed"], MAYBE_TIME),
    "queued": TIME,
    "state": Form(lambda state: state.value, JobState),
    "labels": TEXTS,
    "trust": TRUST,
    "wanted": SPEC,
}
RUNNER: Mapping[str, Form] = {
    **dict.fromkeys(_columns(Runner), PLAIN),
    **dict.fromkeys(["active", "online", "busy", "ended", "until"], MAYBE_TIME),
    "created": TIME,
    "changed": TIME,
    "state": Form(lambda state: state.value, RunnerState),
    "labels": TEXTS,
    "gpus": TEXTS,
    "wanted": SPEC,
    "choice": CHOICE,
    "cause": CAUSE,
}


JOB_COLUMNS = tuple(JOB)
RUNNER_COLUMNS = (*RUNNER, "kind", "pool", "gpu_count")
_JOB_READS, _RUNNER_READS = ([form.read for form in forms.values()] for forms in (JOB, RUNNER))


def job_row(job: Job) -> dict[str, Any]:
    return {name: form.write(getattr(job, FIELDS.get(name, name))) for name, form in JOB.items()}


def runner_row(runner: Runner) -> dict[str, Any]:
    written = {name: form.write(getattr(runner, FIELDS.get(name, name))) for name, form in RUNNER.items()}
    kind, pool = storable(runner.spec.kind), storable(runner.choice.pool)
    return {**written, "kind": kind, "pool": pool, "gpu_count": runner.choice.gpus}


def to_job(row: Sequence[Any]) -> Job:
    """Return the job of a row that begins with the columns of JOB."""
    return Job(*[read(value) if read else value for read, value in zip(_JOB_READS, row, strict=False)])


def to_runner(row: Sequence[Any]) -> Runner:
    """Return the runner of a row that begins with the columns of RUNNER."""
    return Runner(*[read(value) if read else value for read, value in zip(_RUNNER_READS, row, strict=False)])
