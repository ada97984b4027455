"""A plan in a file: what somebody has read and approved, to be applied later exactly as it is or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.plan import differences
from gpuyard.site.steps import SitePlan, Values

FORMAT = 1


@dataclass(frozen=True)
class StoredPlan:
    """The steps of a plan as people read them, with the site, the cloud and the `prune` that it was made for."""

    site: str
    cloud: str
    prune: bool
    steps: list[dict[str, Any]]


def store_plan(site: str, cloud: str, prune: bool, plan: SitePlan) -> StoredPlan:
    """Return the plan as it goes into a file."""
    steps = []
    for step in plan.steps:
        before, after = step.values
        row = {"verb": step.verb.value, "kind": step.kind, "name": step.name, "reason": step.reason}
        steps.append({**row, "before": before, "after": after})
    return StoredPlan(site, cloud, prune, steps)


def render_plan(stored: StoredPlan) -> str:
    """Return the plan as JSON."""
    return json.dumps({"format": FORMAT, **asdict(stored)}, indent=2) + "\n"


def parse_plan(text: str, name: str) -> StoredPlan:
    """Parse what render_plan() made; `name` is the file's, for the UsageError when it is something else."""
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != FORMAT:
            raise UsageError(f"{name}: is a plan of another version of gpuyard; make it again: gpuyard site plan -o")
        stored = StoredPlan(str(document["site"]), str(document["cloud"]), bool(document["prune"]), document["steps"])
        for before, after in _by_name(stored).values():
            differences(before, after)
        return stored
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{name}: is no plan that 'gpuyard site plan -o' wrote ({error!r})") from None


def _by_name(stored: StoredPlan) -> dict[str, tuple[Values, Values]]:
    return {f"{row['verb']} {row['kind']} {row['name']}": (row["before"], row["after"]) for row in stored.steps}


def require_same(approved: StoredPlan, now: StoredPlan) -> None:
    """Raise BlockedError unless the steps are those that would be planned now, UsageError for another site or cloud."""
    if (approved.site, approved.cloud) != (now.site, now.cloud):
        raise UsageError(
            f"the plan was made for site {approved.site} on cloud {approved.cloud}, and this is site {now.site} on "
            f"{now.cloud}"
        )
    then, again = _by_name(approved), _by_name(now)
    moved = [
        *(f"{name} is no longer to be done, or not like this" for name in then if name not in again),
        *(f"{name} is new" for name in again if name not in then),
        *(f"{name} differs: {text}" for name in then if name in again and (text := _differs(then[name], again[name]))),
    ]
    if moved:
        lines = "\n".join(f"- {text}" for text in moved)
        raise BlockedError(
            f"the cloud or the site file has changed since the plan was made, so nothing was done; plan again:\n{lines}"
        )


def _differs(then: tuple[Values, Values], now: tuple[Values, Values]) -> str:
    old, new = map(differences, then, now)
    return "; ".join([*(f"was {text}" for text in old), *(f"wanted {text}" for text in new)])
