"""A plan in a file: what somebody has read and approved, to be carried out later as it is or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.plan import Plan, Step, Verb

FORMAT = 1


@dataclass(frozen=True)
class StoredPlan:
    """The steps of a plan, and what it was made for."""

    site: str
    cloud: str
    prune: bool
    steps: tuple[Step, ...]


def render_plan(stored: StoredPlan) -> str:
    """JSON."""
    return json.dumps({"format": FORMAT, **asdict(stored)}, indent=2) + "\n"


def parse_plan(text: str, name: str) -> StoredPlan:
    """What render_plan() made; `name` is the file's, for UsageError when it is something else."""
    try:
        document: dict[str, Any] = json.loads(text)
        if document["format"] != FORMAT:
            raise UsageError(f"{name}: is a plan of another version of gpuyard; make it again: gpuyard site plan -o")
        steps = tuple(_step(row) for row in document["steps"])
        return StoredPlan(str(document["site"]), str(document["cloud"]), bool(document["prune"]), steps)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name}: is no plan that 'gpuyard site plan -o' wrote ({error!r})") from None


def _step(row: Mapping[str, Any]) -> Step:
    return Step(Verb(row["verb"]), row["kind"], row["name"], row["reason"], row["before"], row["after"])


def require_same(stored: StoredPlan, site: str, cloud: str, now: Plan) -> None:
    """Raise BlockedError unless the steps are those that would be planned now, too."""
    if (stored.site, stored.cloud) != (site, cloud):
        raise UsageError(
            f"the plan was made for site {stored.site} on cloud {stored.cloud}, and this is site {site} on {cloud}"
        )
    then, again = _by_name(stored.steps), _by_name(now.steps)
    moved = [
        *(f"{name} is no longer to be done, or not like this" for name in then if name not in again),
        *(f"{name} is new" for name in again if name not in then),
        *(f"{name} differs: {_differs(then[name], again[name])}" for name in then if _moved(then, again, name)),
    ]
    if moved:
        lines = "\n".join(f"- {text}" for text in moved)
        raise BlockedError(
            f"the cloud or the site file has changed since the plan was made, so nothing was done; plan again:\n{lines}"
        )


def _by_name(steps: Iterable[Step]) -> dict[str, Step]:
    return {str(step): step for step in steps}


def _moved(then: Mapping[str, Step], again: Mapping[str, Step], name: str) -> bool:
    return name in again and (then[name].before, then[name].after) != (again[name].before, again[name].after)


def _differs(then: Step, now: Step) -> str:
    old = Step(then.verb, "", "", "", then.before, now.before).changes
    new = Step(then.verb, "", "", "", then.after, now.after).changes
    return "; ".join([*(f"was {text}" for text in old), *(f"wanted {text}" for text in new)])
