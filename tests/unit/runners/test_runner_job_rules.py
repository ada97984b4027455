"""What a runner's server lets run: the rules that it is told, and the real hook before the first step."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import gpuyard.runners
from gpuyard.runners.guest.job_rules import refusal
from gpuyard.runners.guest_rules import guest_rules
from gpuyard.runners.records import Runner, RunnerState, ServerChoice, ServerSpec
from gpuyard.site.runner_rules import Enrolment, SiteRunners

GUEST = Path(gpuyard.runners.__file__).parent / "guest"
RECORDED = json.loads((Path(__file__).parents[2] / "support/octokit/pull_request.json").read_text())
HELLO = "Codertocat/Hello-World"
NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
WORKER = """\
import os, subprocess, sys
failed = subprocess.run(["bash", "-e", os.environ["ACTIONS_RUNNER_HOOK_JOB_STARTED"]]).returncode
open("always", "w").write("a step with 'if: always()' has run")
if not failed:
    open("ran", "w").write("the first step has run")
"""
"""A job's steps as actions/runner 2.336 runs them (src/Runner.Worker/JobExtension.cs, StepsRunner.cs): the hook is the
first step, as a child; when it fails the others are skipped, but for those whose condition says otherwise."""


def opened(source: str | None = HELLO, association: str = "NONE") -> dict[str, Any]:
    """A recorded pull request, from another repository or author; None: the fork is gone."""
    pull = RECORDED["pull_request"]
    head = {**pull["head"], "repo": None if source is None else {**pull["head"]["repo"], "full_name": source}}
    return {**RECORDED, "pull_request": {**pull, "author_association": association, "head": head}}


def rules(forks: str = "never", *, repository: str = "", run: int = 0, **site: Any) -> dict[str, Any]:
    enrolment = Enrolment.model_validate({"organization": "codertocat", "token_file": "/token"})
    stated = {"project": "ci", "enrolments": [enrolment], "forks": forks, **site}
    choice = ServerChoice("v100", "gpu_tiny", "tiny", 1, False)
    runner = Runner(
        name="r", state=RunnerState.REQUESTED, scope="codertocat", repository=repository, labels=("gpu",),
        spec=ServerSpec("gpu", (choice,), timedelta(hours=1)), choice=choice, created=NOW, changed=NOW,
    )  # fmt: skip
    job_rules: dict[str, Any] = json.loads(guest_rules(runner, enrolment, SiteRunners.model_validate(stated), run))
    return job_rules


FORK = "mallory/Hello-World"


@pytest.mark.parametrize(
    ("told", "event", "refused"),
    [
        (rules(), {}, False),  # a push
        (rules(), RECORDED, False),
        (rules(), opened(HELLO.upper()), False),
        (rules(), opened(FORK, "OWNER"), True),
        (rules(), opened(None), True),
        (rules("members"), opened(FORK, "MEMBER"), False),
        (rules("members"), opened(FORK, "CONTRIBUTOR"), True),
        (rules("contributors"), opened(FORK, "CONTRIBUTOR"), False),
        (rules("contributors"), opened(FORK, "FIRST_TIME_CONTRIBUTOR"), True),
        (rules("everybody"), opened(FORK), False),
        (rules(run=77), opened(FORK), False),
        (rules(run=78), opened(FORK), True),
        (rules(repositories={"codertocat/*": {"forks": "everybody"}}), opened(FORK), False),
        (rules("everybody", repositories={"Codertocat/hello-*": {"forks": "never"}}), opened(FORK), True),
        (rules("everybody", repository=HELLO), opened(FORK), False),
        (rules("everybody", repository="codertocat/other"), RECORDED, True),
    ],
)  # fmt: skip
def test_rules_let_in_what_the_site_lets_in(told: dict[str, Any], event: dict[str, Any], refused: bool) -> None:
    assert bool(refusal(told, HELLO, "77", event)) is refused


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """The guest's folder, elsewhere."""
    for name in ("job-started.sh", "job_rules.py"):
        text = (GUEST / name).read_text().replace("/var/lib/gpuyard", str(tmp_path))
        (tmp_path / name).write_text(text)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def work(folder: Path, event: dict[str, Any] | None, **environment: str) -> subprocess.CompletedProcess[str]:
    if event is not None:
        (folder / "event.json").write_text(json.dumps(event))
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "ACTIONS_RUNNER_HOOK_JOB_STARTED": str(folder / "job-started.sh"),
        "GITHUB_REPOSITORY": HELLO,
        "GITHUB_RUN_ID": "77",
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GPUYARD_LAST_WORDS": "0",
        **environment,
    }
    command = [sys.executable, "worker.py"]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_a_job_that_may_run_does(hook: Path) -> None:
    (hook / "job-rules.json").write_text(json.dumps(rules()))
    (hook / "next.sh").write_text(f"touch {hook}/next")
    assert work(hook, RECORDED, GPUYARD_NEXT_HOOK=str(hook / "next.sh")).returncode == 0
    assert (hook / "ran").exists()
    assert (hook / "next").exists(), "the image's own hook"


@pytest.mark.parametrize("event", [opened(FORK), None], ids=["of a fork", "of nobody knows what"])
def test_no_step_runs_of_a_job_that_may_not(hook: Path, event: dict[str, Any] | None) -> None:
    (hook / "job-rules.json").write_text(json.dumps(rules()))
    done = work(hook, event)
    assert done.returncode == -9
    assert "::error::gpuyard does not run this job: " in done.stdout
    assert not (hook / "always").exists()
    assert not (hook / "ran").exists()


def test_python_that_is_missing_lets_nobody_in(hook: Path) -> None:
    (hook / "job-rules.json").write_text("{}")
    assert work(hook, RECORDED).returncode == -9
    assert not (hook / "ran").exists()
