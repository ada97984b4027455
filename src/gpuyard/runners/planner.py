"""Which runners to make, which to delete, and which jobs wait for what: from jobs, runners and the room there is.

Pure. What is wanted follows from the ids of jobs and never from counting events, so that a plan made twice does
nothing the second time. docs/adr/0024 says in which order jobs go and what backfill may do.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from gpuyard.runners.view import RunnerPlan, RunnerView

TEARDOWN = timedelta(minutes=10)
"""What a lease has for the end of a job and the deletion of its server."""
SPARE = timedelta(minutes=2)
"""A runner that nobody needs is deleted when it was so for this long: GitHub may be about to give it a job."""
MOST_TRIES = 5
"""A job is given up when so many of its runners failed."""


def retry_after(tries: int) -> timedelta:
    """How long to wait after so many failures, for `Job.not_before`: 30 s, 1, 2, 4 ... minutes, at most 15."""
    return min(timedelta(seconds=30 * 2 ** min(max(tries, 1) - 1, 10)), timedelta(minutes=15))


def plan(view: RunnerView, now: datetime) -> RunnerPlan:
    """What to do now. The same for the same view in whatever order its parts are."""
    raise NotImplementedError
