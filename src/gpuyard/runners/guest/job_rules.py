"""Decides in a runner's server, before a job's first step, whether that job may run here.

GitHub gives a job to any runner that has its labels, and who writes a workflow chooses the labels. So the rules travel
with the server, and are held against what GitHub told the runner about the job: its repository, its run, and the event
that started it. Standard library and Python 3.9 only; it runs as the runner's user, and its files are root's.

    job_rules.py RULES      exit status 0: the job may run; anything else: it may not, and standard output says why
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def refusal(rules: Mapping[str, Any], repository: str, run: object, event: Mapping[str, Any]) -> str:
    """Why a job may not run here; empty when it may. `event` is the webhook's payload that started its run."""
    name = repository.lower()
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in rules["repositories"]):
        return "this runner is not for jobs of " + repository
    if rules["run"] and str(run) == str(rules["run"]):
        return ""  # gpuyard has decided about this very run
    pull = event.get("pull_request")
    if not isinstance(pull, dict):
        return ""  # nothing else runs with code of another repository
    source = ((pull.get("head") or {}).get("repo") or {}).get("full_name") or ""
    if source.lower() == name:
        return ""
    allowed = [associations for pattern, associations in rules["forks"] if fnmatch.fnmatchcase(name, pattern)]
    if allowed and (allowed[-1] is None or pull.get("author_association") in allowed[-1]):
        return ""
    return "it is a pull request from a fork, and the site does not allow it (forks)"


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        rules = json.load(file)
    with open(os.environ["GITHUB_EVENT_PATH"], encoding="utf-8") as file:
        event = json.load(file)
    why = refusal(rules, os.environ["GITHUB_REPOSITORY"], os.environ.get("GITHUB_RUN_ID", ""), event)
    print(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
