"""Writes the rules that a runner's server checks its job against before the first step (guest/job_rules.py). Pure.

They are taken from the site file when the server is made. Policies of `.access.yml` are not among them: these ask
GitHub about people, which a server cannot.
"""

from __future__ import annotations

import json

from gpuyard.runners.records import Runner
from gpuyard.runners.resolve import ASSOCIATIONS
from gpuyard.site.runner_rules import Enrolment, Forks, SiteRunners


def guest_rules(runner: Runner, enrolment: Enrolment, site: SiteRunners, run: int = 0) -> str:
    """Return the rules of one runner, as JSON. `run` is the run of the job for which it is made: gpuyard has admitted
    that one.

    - ``repositories``: patterns in lower case; jobs of others are refused
    - ``forks``: pairs of a pattern and the associations of authors whose pull requests from forks may run, null for
      everybody's; the last pair that matches counts
    - ``run``: its jobs may run, whatever `forks` says; 0 for none
    """
    own = runner.repository or enrolment.repository or ""
    if own:
        patterns = [own.lower()]
        forks = [(own.lower(), site.rules(own, runner.scale_set).forks)]
    else:
        owner = enrolment.owner.lower()
        patterns = [repository.lower() for repository in enrolment.repositories] or [f"{owner}/*"]
        forks = [("*", site.rules("", runner.scale_set).forks)]
        forks += [
            (name.lower(), limits.forks) for name, limits in site.repositories.items() if limits.forks is not None
        ]
    document = {
        "repositories": patterns,
        "forks": [(name, _associations(policy)) for name, policy in forks],
        "run": run,
    }
    return json.dumps(document, separators=(",", ":"))


def _associations(forks: Forks) -> list[str] | None:
    return None if forks == "everybody" else sorted(ASSOCIATIONS[forks])
