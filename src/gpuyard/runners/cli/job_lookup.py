"""Finds the job that people mean by what GitHub shows them of it: its address, its number, or its run's number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuyard.client.errors import ApiRefusedError
from gpuyard.model.errors import BlockedError

if TYPE_CHECKING:
    from gpuyard.client.client import Client, Row

# https://github.com/acme/maps/actions/runs/99/job/123456, as the address line has it: a run's ends before /job, that of
# a second attempt has /attempts/2. GitHub's webhooks have had /jobs/, too, and before that /acme/maps/runs/123456 with
# the job's number (the workflow_job payloads of octokit/webhooks).
ADDRESS = re.compile(
    r"https?://(?P<host>[^/\s]{1,253})/(?P<repository>[^/\s]{1,100}/[^/\s]{1,100})/"
    r"(?:runs/(?P<check>\d{1,20})|actions/runs/(?P<run>\d{1,20})(?:/attempts/\d{1,6})?(?:/jobs?/(?P<job>\d{1,20}))?)"
    r"/?(?:[?#]\S{0,500})?",
    re.ASCII,
)
NUMBER = re.compile(r"[0-9]{1,20}")


def names_a_job(text: str) -> bool:
    """Return whether a text is about a job: gpuyard's id of one, GitHub's address, or a number."""
    return "/" in text or NUMBER.fullmatch(text) is not None


def find_job(client: Client, text: str) -> Row:
    """Return a job, with its ``runners`` and ``events``, by gpuyard's id, GitHub's id, or the address or number of its
    run. Raises BlockedError when there is none, or several."""
    address = ADDRESS.fullmatch(text)
    if address is None and NUMBER.fullmatch(text) is None:
        return client.job(text)
    host = address["host"].lower() if address else "github.com"
    number = address["job"] or address["check"] if address else text
    if number:
        try:
            return client.job(f"{host}/{number}")
        except ApiRefusedError:
            pass  # the job of a scale set, which GitHub counts apart, or the number of a run
    run, repository = (address["run"], address["repository"]) if address else (text, "")
    matches = [job for job in _jobs(client, repository) if _is_of_run(job, host, run)] if run else []
    if len(matches) == 1:
        return client.job(str(matches[0]["id"]))
    raise BlockedError(_none(text) if not matches else _several(run, matches))


def _jobs(client: Client, repository: str) -> Sequence[Row]:
    """The last jobs, the newest first."""
    from gpuyard.runners.records import JobState

    return client.jobs([state.value for state in JobState], repository)


def _is_of_run(job: Row, host: str, run: str) -> bool:
    address = ADDRESS.fullmatch(str(job["url"]))
    return address is not None and (address["host"], address["run"]) == (host, run)


def _none(text: str) -> str:
    return (
        f"gpuyard has no job that is {text!r} at GitHub: it never saw it, or it was longer ago than jobs are kept; "
        "'gpuyard runner jobs --all' lists those that it has"
    )


def _several(run: str, jobs: Sequence[Row]) -> str:
    names = "; ".join(f"{job['id']} ({job['name']})" for job in jobs[:10])
    more = f"; and {len(jobs) - 10} more" if len(jobs) > 10 else ""
    return f"run {run} has {len(jobs)} jobs here, name one of them: {names}{more}"
