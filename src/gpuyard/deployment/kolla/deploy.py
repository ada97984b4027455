"""Plans the steps of a deployment with ``kolla-ansible``, in the order that PCI devices in Placement need. Pure.

Where Placement decides (`pci_in_placement: on`), the services that schedule come before the hypervisors: Nova's own
match of aliases knows models and not classes, and would give the second GPU of a group to another server than the
first. Otherwise hypervisors come first, since the scheduler must find what it looks for in Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.model.errors import UsageError
from gpuyard.nova.release import RELEASES

TAGS = "nova,placement"
CONTROL_GROUPS = "nova-api,nova-metadata,nova-scheduler,nova-conductor,nova-super-conductor"
"""Kolla's inventory groups of the Nova services that schedule."""

RELEASE_OF = {release.kolla: release.name for release in RELEASES.values()}
"""Major version of kolla-ansible -> the OpenStack release that it deploys."""

FULL = "full"
COMPUTES = "computes"
WITHIN_LIMIT = ("prechecks", COMPUTES)
"""Steps that change nothing but the hypervisors that --limit names."""


@dataclass(frozen=True)
class DeployStep:
    """One run of kolla-ansible: the verb and its options, without the program."""

    name: str
    words: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Wish:
    """The operator's request."""

    kolla: Path
    inventories: tuple[Path, ...] = ()
    limit: str = ""
    """Ansible's pattern: only these hypervisors."""
    tags: str = ""
    full: bool = False
    placement_decides: bool = True
    """Whether the site has `pci_in_placement: on`."""


def all_steps(wish: Wish, compute_group: str) -> tuple[DeployStep, ...]:
    """Return every step for a wish, in order."""
    if wish.full:
        limit = ["--limit", wish.limit] if wish.limit else []
        return (
            _step(wish, "bootstrap-servers", "what Kolla needs on the hosts", "bootstrap-servers", *limit),
            _step(wish, "prechecks", "Kolla's own checks, before anything is deployed", "prechecks", *limit),
            _step(wish, "deploy", "all services", "deploy", *limit),
            _step(wish, "post-deploy", "files for the administrator", "post-deploy"),
        )
    tags = wish.tags or TAGS
    cell = "nova-cell" if "nova" in tags.split(",") else ""
    others = ",".join(tag for tag in tags.split(",") if tag != "nova")
    steps = [_step(wish, "prechecks", "Kolla's own checks, before anything changes", "prechecks", "--tags", tags)]
    if others:
        steps.append(_step(wish, others.replace(",", "-"), "the services beside Nova", "reconfigure", "--tags", others))
    if cell:
        first, last = COMPUTES, "control-plane"
        reasons = {
            first: "hypervisors first: what the scheduler looks for must have been reported to Placement",
            last: "then the services that schedule",
        }
        if wish.placement_decides:
            # Nova's own match of aliases knows models, not classes: while it decides, the second GPU of a group that
            # a hypervisor already offers would go to another server than the first.
            reasons = {
                last: "the services that schedule first: from then on Placement keeps the GPUs of a group together",
                first: "then the hypervisors, which offer all GPUs of a group",
            }
        limits = {first: wish.limit or compute_group, last: CONTROL_GROUPS}
        step_tags = {first: cell, last: "nova"}
        for name, reason in reasons.items():
            steps.append(_step(wish, name, reason, "reconfigure", "--tags", step_tags[name], "--limit", limits[name]))
    return tuple(steps)


def _step(wish: Wish, name: str, reason: str, verb: str, *more: str) -> DeployStep:
    words = [verb, "--configdir", str(wish.kolla.absolute())]
    words += [word for path in wish.inventories for word in ("--inventory", str(path))]
    return DeployStep(name, (*words, *more), reason)


def chosen(steps: Sequence[DeployStep], names: Sequence[str], first: str = "") -> tuple[DeployStep, ...]:
    """Return the steps to run: those named, or all from `first` on, always in their order. Raises UsageError."""
    step_names = [step.name for step in steps]
    for name in (*names, *([first] if first else [])):
        if name not in step_names:
            raise UsageError(f"there is no step {name!r}; there are {', '.join(step_names)}")
    if names and first:
        raise UsageError("name the steps, or one with --from to go on there, not both")
    if names:
        return tuple(step for step in steps if step.name in names)
    return tuple(steps[step_names.index(first) if first else 0 :])


def within_limit(steps: Sequence[DeployStep], first: str = "") -> tuple[DeployStep, ...]:
    """Return the steps that run with --limit when none is named: nothing that reaches beyond the hypervisors that it
    names, so no services of the whole cloud. Raises UsageError when nothing is left, or `first` is not among it."""
    inside = tuple(step for step in steps if step.name in WITHIN_LIMIT)
    if COMPUTES not in [step.name for step in inside]:
        raise UsageError(f"--limit names hypervisors, and there is no step {COMPUTES} with these tags; leave it out")
    if first and first in [step.name for step in steps] and first not in WITHIN_LIMIT:
        raise UsageError(f"step {first} is for the whole cloud, and --limit only for some of it; leave --limit out")
    return inside


def left_out(steps: Sequence[DeployStep]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the steps that `within_limit` leaves out: those that come before the hypervisors, and those that come
    after."""
    names = [step.name for step in steps]
    place = names.index(COMPUTES)
    before, after = names[:place], names[place + 1 :]
    return tuple(name for name in before if name not in WITHIN_LIMIT), tuple(after)


def wrong_release(version: str, release: str) -> str:
    """Return why this kolla-ansible does not fit the site; empty when it does, or its release is unknown."""
    major = version.strip().split(" ")[-1].split(".")[0]
    deploys = RELEASE_OF.get(int(major)) if major.isdigit() else None
    if deploys is None or deploys == release:
        return ""
    return (
        f"kolla-ansible {version.strip().split(' ')[-1]} deploys OpenStack {deploys}, and the site file says "
        f"'release: {release}'; write 'release: \"{deploys}\"' there, or use the kolla-ansible of {release}"
    )
