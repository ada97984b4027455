"""Finds the job that people mean by what GitHub shows them of it: its address, its number, or its run's number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuyard.client.errors import ApiRefusedError
from gpuyard.model.errors import BlockedError

if TYPE_CHECKING:
    from gpuyard.client.client import Client, Row

# A job's page is https://github.com/acme/maps/actions/runs/99/job/123456, with its id at the end; that of a run ends
# before /job, and that of a second attempt has /attempts/2. Older addresses, which `html_url` of old jobs has, are
# .../actions/runs/99/jobs/777, whose last number is no job's id (cli/cli#6663; payloads of octokit/webhooks), and
# .../runs/123456. So a number in an address is never enough: the job must be of its repository and run, too.
ADDRESS = re.compile(
    r"https?://(?P<host>[^/\s]{1,253})/(?P<repository>[^/\s]{1,100}/[^/\s]{1,100})/"
    r"(?:runs/(?P<check>\d{1,20})|actions/runs/(?P<run>\d{1,20})(?:/attempts/\d{1,6})?"
    r"(?:/job/(?P<job>\d{1,20})|/jobs/(?P<page>\d{1,20}))?)/?(?:[?#]\S{0,500})?",
    re.ASCII,
)
NUMBER = re.compile(r"[0-9]{1,20}")


def names_a_job(text: str) -> bool:
    """Return whether a text is about a job: gpuyard's id of one, GitHub's address, or a number."""
    return "/" in text or NUMBER.fullmatch(text) is not None


def find_job(client: Client, text: str) -> Row:
    """Return a job, with its ``runners`` and ``events``, by gpuyard's id, GitHub's id, or the address or number of its
    run. Raises BlockedError when there is none, or several."""
    if address := ADDRESS.fullmatch(text):
        return _at(client, address, text)
    if NUMBER.fullmatch(text) is None:
        return client.job(text)
    if job := _by_number(client, "github.com", text):
        return job
    jobs = _jobs(client, "")  # of scale sets, of runs, and of GitHub Enterprise Server
    numbered = [job for job in jobs if text == str(job["id"]).rpartition("/")[2]]
    return _the_one_of(client, text, text, numbered or [job for job in jobs if text == (_run_of(job) or ("", ""))[1]])


def _at(client: Client, address: re.Match[str], text: str) -> Row:
    """The job of a page: by its number, else by the address that GitHub gave of it, else the only one of its run."""
    host, repository, run = address["host"].lower(), address["repository"], address["run"]
    if number := address["job"] or address["check"]:
        job = _by_number(client, host, number)
        if (
            job is not None
            and job["repository"].lower() == repository.lower()
            and (run is None or _run_of(job) in (None, (host, run)))
        ):
            return job
    jobs = _jobs(client, repository)
    same_page = [job for job in jobs if _place(ADDRESS.fullmatch(str(job["url"]))) == _place(address)]
    if len(same_page) == 1 or run is None:
        return _the_one_of(client, text, str(number), same_page)
    return _the_one_of(client, text, run, [job for job in jobs if _run_of(job) == (host, run)])


def _by_number(client: Client, host: str, number: str) -> Row | None:
    """None for the job of a scale set, too: GitHub counts these apart, and gpuyard's id has another form."""
    try:
        return client.job(f"{host}/{number}")
    except ApiRefusedError:
        return None


def _jobs(client: Client, repository: str) -> Sequence[Row]:
    """The last jobs, the newest first."""
    from gpuyard.runners.records import JobState

    return client.jobs([state.value for state in JobState], repository)


def _run_of(job: Row) -> tuple[str, str] | None:
    """Host and number of the run of a job; None where its address does not say."""
    address = ADDRESS.fullmatch(str(job["url"]))
    return (address["host"].lower(), address["run"]) if address is not None and address["run"] else None


def _place(address: re.Match[str] | None) -> tuple[str, ...] | None:
    """What tells pages apart: not the attempt, nor what comes behind."""
    if address is None:
        return None
    return tuple((address[name] or "").lower() for name in ("host", "repository", "check", "run", "job", "page"))


def _the_one_of(client: Client, text: str, run: str, jobs: Sequence[Row]) -> Row:
    if len(jobs) != 1:
        raise BlockedError(_several(run, jobs) if jobs else _none(text))
    return client.job(str(jobs[0]["id"]))


def _none(text: str) -> str:
    return (
        f"gpuyard has no job that is {text!r} at GitHub: it never saw it, or it was longer ago than jobs are kept; "
        "'gpuyard runner jobs --all' lists those that it has"
    )


def _several(run: str, jobs: Sequence[Row]) -> str:
    names = "; ".join(f"{job['id']} ({job['name']})" for job in jobs[:10])
    more = f"; and {len(jobs) - 10} more" if len(jobs) > 10 else ""
    return f"run {run} has {len(jobs)} jobs here, name one of them: {names}{more}"
