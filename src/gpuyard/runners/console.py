"""Reads the state of a runner's server from its serial console, whose text Nova keeps. Pure.

A server reports nothing but this. Its lines are ours (guest/runner.sh) only until a job runs: a job that is root in its
server can write any of them, and push ours out of what Nova keeps (100 KiB). What that can do:

- `online` and `job` say nothing that GitHub does not say itself. They tell early; GitHub's word prevails.
- `gpu` is the one that matters, since a failed check takes a GPU out of use. It may be believed only while GitHub has
  never had the runner online: until then no job can have run. The caller must see to that. Within one text the first
  verdict counts, and what comes after `online` never does. Whoever makes the image controls this line in any case.
- `log` is text to show, with nothing but printable characters and line ends.

All else that a job can write is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuyard.guest.console import plain_lines

MOST_LOG = 48 * 1024
"""Characters of a runner's log, its end."""
MOST_WORDS = 300
"""Characters of a reason."""
PREFIX = "gpuyard-runner: "
LOG_LINE = "| "


class GpuVerdict(StrEnum):
    """The result of the GPU check before the first job."""

    UNKNOWN = "unknown"
    """It has not ended, or did not come to the console."""
    OK = "ok"
    FAILED = "failed"


class JobProgress(StrEnum):
    """The progress of the job, as its runner reports it."""

    NONE = "none"
    STARTED = "started"
    FINISHED = "finished"


@dataclass(frozen=True)
class Console:
    """The parsed content of a console."""

    gpu: GpuVerdict = GpuVerdict.UNKNOWN
    gpu_words: str = ""
    """Which GPUs there are, or what is wrong with them."""
    online: bool = False
    """The runner listens for jobs, or has."""
    job: JobProgress = JobProgress.NONE
    result: str = ""
    """The runner's result of a finished job: ``Succeeded``, ``Failed``, ``Canceled``."""
    failed: str = ""
    """Why there is, or was, no runner for a reason other than the GPUs; empty when nothing went wrong."""
    over: bool = False
    """The server has done what it was made for, and switches itself off."""
    log: str = ""
    """The end of the runner's log; the console's last lines while there is none."""


def read(text: str) -> Console:
    """Parse a console. Accepts any text, in a time that is proportional to its length."""
    lines = plain_lines(text)
    gpu, gpu_words, result, failed = GpuVerdict.UNKNOWN, "", "", ""
    online = over = False
    job = JobProgress.NONE
    for line in lines:
        if not line.startswith(PREFIX):
            continue
        word, _, rest = line[len(PREFIX) :].strip()[: MOST_WORDS + 20].partition(" ")
        state, _, words = rest.partition(" ")
        match word, state:
            case "gpu", ("ok" | "failed") if gpu is GpuVerdict.UNKNOWN and not online:
                gpu, gpu_words = GpuVerdict(state), words[:MOST_WORDS]
            case "online", _:
                online = True
            case "job", "started" if job is JobProgress.NONE:
                job = JobProgress.STARTED
            case "job", "finished":
                job, result = JobProgress.FINISHED, words[:50]
            case "failed", _ if not failed:
                failed = rest[:MOST_WORDS]
            case "over", _:
                over = True
    return Console(gpu, gpu_words, online, job, result, failed, over, _log(lines))


def _log(lines: list[str]) -> str:
    """The log that was sent last; without one the console's last lines."""
    own: list[str] | None = None
    for line in lines:
        if line == PREFIX + "log begins":
            own = []
        elif own is not None and f"{line} ".startswith(LOG_LINE):  # an empty one has lost its space
            own.append(line[len(LOG_LINE) :])
    shown = lines if own is None else own
    return "\n".join(shown)[-MOST_LOG:].strip("\n")
