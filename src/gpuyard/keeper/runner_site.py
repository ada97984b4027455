"""What the keeper of runners takes from the site file: names, flavors, patience, and what waits for jobs."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property

from gpuyard.model.booking import Lane
from gpuyard.model.errors import UsageError
from gpuyard.runners.progress import Patience
from gpuyard.runners.records import Runner, ScaleSetState, ServerChoice, Wanted
from gpuyard.runners.resolve import as_runner, served, wanted_of
from gpuyard.runners.view import SetDemand
from gpuyard.site.compile import CompiledSite
from gpuyard.site.runner_rules import Enrolment, SiteRunners

LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
RANDOM = 8
POOL = 30
"""Most characters of a pool's name in a runner's: GitHub takes 64 in all."""
MIB_PER_STEP = 64 * 1024


def random_letters() -> str:
    """32 ** 8 of them: none comes twice in the life of a site."""
    return "".join(secrets.choice(LETTERS) for _ in range(RANDOM))


class RunnerSite:
    """One site's. Pure, but for the names."""

    def __init__(
        self, compiled: CompiledSite, project_id: str, letters: Callable[[], str] = random_letters, yard: str = ""
    ) -> None:
        """`project_id`: of the runners' project. `yard`: `RunnerStore.identity`. Raises UsageError for a site without
        runners."""
        if compiled.site.runners is None:
            raise UsageError(f"site {compiled.site.site} has no 'runners:'")
        self.compiled = compiled
        self.runners: SiteRunners = compiled.site.runners
        self.project_id = project_id
        self._letters = letters
        self._flavors = {flavor.name: flavor for flavor in compiled.flavors}
        # Two sites may serve one organisation, and neither shall take the other's registrations for its own; nor shall
        # one that has its name, as a copy for tests has.
        self._mark = hashlib.sha256(f"{compiled.site.site}\0{yard}".encode()).hexdigest()[:6]
        self._ours = re.compile(rf"gpuyard-[a-z0-9._-]{{1,{POOL}}}-{self._mark}-[{LETTERS}]{{{RANDOM}}}")

    @cached_property
    def boots(self) -> Mapping[str, timedelta]:
        """Flavor, as jobs ask for it -> how long its server may take to be ACTIVE."""
        return {name: self._boot(name) for name, one in self.compiled.site.flavors.items() if one.gpus}

    @property
    def name(self) -> str:
        return self.compiled.site.site

    def new_name(self, pool: str) -> str:
        """``gpuyard-v100-5f3a9c-k8x2m9qd``: never used before."""
        shown = re.sub(r"[^a-z0-9._-]", "-", pool.lower())[:POOL]
        return f"gpuyard-{shown}-{self._mark}-{self._letters()}"

    def is_ours(self, name: str) -> bool:
        """Whether a registration's name is one that this site gives."""
        return self._ours.fullmatch(name) is not None

    def patience(self, runner: Runner) -> Patience:
        """A server with much memory takes longer: all of it is pinned before it starts."""
        return Patience(self._boot(runner.choice.flavor), self.runners.register_within)

    def _boot(self, flavor: str) -> timedelta:
        ram = max((self._flavors[name].ram for name in self._variants(flavor)), default=0)
        return self.runners.boot * (1 + ram // MIB_PER_STEP)

    def nova_flavor(self, choice: ServerChoice, lanes: Sequence[Lane]) -> str:
        """Nova's name for a choice's flavor: one that takes a whole IOMMU group has one for each kind of group."""
        variants = self._variants(choice.flavor)
        if choice.flavor in variants or not variants:
            return choice.flavor
        sets = {(gpu.host, gpu.address): gpu.set_letter for gpu in self.compiled.gpus}
        letters = {sets.get((lane.host, address)) for lane in lanes for address in lane.addresses}
        return next((name for name in variants if self._flavors[name].set_letter in letters), variants[0])

    def _variants(self, flavor: str) -> list[str]:
        if flavor in self._flavors:
            return [flavor]
        return [
            name
            for name, one in self._flavors.items()
            if one.set_letter and name == f"{flavor}-{one.set_letter.lower()}"
        ]

    def enrolment(self, name: str) -> Enrolment | None:
        return next((one for one in self.runners.enrolments if one.name == name), None)

    def set_scope(self, label: str) -> str:
        """Name of the enrolment of a scale set."""
        return self.runners.sets[label].enrolment or self.runners.enrolments[0].name

    def demands(self, states: Sequence[ScaleSetState], turned_down: Mapping[tuple[str, str], int]) -> list[SetDemand]:
        """What GitHub says of the scale sets that the site has. `turned_down`: `RunnerStore.turned_down`."""
        assigned: Mapping[tuple[str, str], int] = {(one.scope, one.name): one.assigned for one in states}
        scopes = {label: self.set_scope(label) for label in self.runners.sets}
        return [
            SetDemand(
                label,
                scope,
                self.set_wanted(label),
                assigned.get((scope, label), 0),
                turned_down.get((scope, label), 0),
            )
            for label, scope in scopes.items()
        ]

    def set_wanted(self, label: str) -> Wanted:
        """What runners of a scale set are, before it is known whose job they get."""
        ways = as_runner(label, self.runners.sets[label]).ways
        choices, _ = served(ways, self.compiled.site, ask_allowed=False)
        return wanted_of(label, choices, self.runners.rules("", label))
