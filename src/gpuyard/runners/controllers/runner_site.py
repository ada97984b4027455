"""Derives from the site file what the runners' controller needs: names, Nova's flavors, patience, and demands of scale
sets."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property

from gpuyard.model.booking import Lane
from gpuyard.model.errors import UsageError
from gpuyard.runners.guest_rules import guest_rules
from gpuyard.runners.progress import Patience
from gpuyard.runners.records import Runner, ScaleSetState, ServerChoice, ServerSpec
from gpuyard.runners.resolve import as_runner, served, server_spec
from gpuyard.runners.view import SetDemand
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import slot_trait
from gpuyard.site.runner_rules import Enrolment, SiteRunners

LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
RANDOM = 8
POOL = 30
"""Most characters of a pool's name in a runner's: GitHub takes 64 in all."""
MIB_PER_STEP = 64 * 1024


def random_letters() -> str:
    """Return eight random letters and digits, of 32 ** 8 combinations: none comes twice in the life of a site."""
    return "".join(secrets.choice(LETTERS) for _ in range(RANDOM))


class RunnerSite:
    """One site's settings for runners. Pure, but for the random names."""

    def __init__(
        self, compiled: CompiledSite, project_id: str, letters: Callable[[], str] = random_letters, identity: str = ""
    ) -> None:
        """`project_id`: of the runners' project. `identity`: `RunnerStore.identity`. Raises UsageError for a site
        without runners."""
        if compiled.site.runners is None:
            raise UsageError(f"site {compiled.site.site} has no 'runners:'")
        self.compiled = compiled
        self.runners: SiteRunners = compiled.site.runners
        self.project_id = project_id
        self._letters = letters
        self._flavors = {flavor.name: flavor for flavor in compiled.flavors}
        # Two sites may serve one organisation, and neither shall take the other's registrations for its own; nor shall
        # one that has its name, as a copy for tests has.
        self._mark = hashlib.sha256(f"{compiled.site.site}\0{identity}".encode()).hexdigest()[:6]
        self._ours = re.compile(rf"gpuyard-[a-z0-9._-]{{1,{POOL}}}-{self._mark}-[{LETTERS}]{{{RANDOM}}}")

    @cached_property
    def boots(self) -> Mapping[str, timedelta]:
        """Flavor, as jobs ask for it -> how long its server may take to be ACTIVE."""
        return {name: self._boot(name) for name in self.compiled.site.flavors}

    @property
    def name(self) -> str:
        return self.compiled.site.site

    def new_name(self, pool: str) -> str:
        """Return a name that was never used before: ``gpuyard-v100-5f3a9c-k8x2m9qd``."""
        shown = re.sub(r"[^a-z0-9._-]", "-", pool.lower())[:POOL]
        return f"gpuyard-{shown}-{self._mark}-{self._letters()}"

    def is_ours(self, name: str) -> bool:
        """Return whether a registration's name is one that this site gives."""
        return self._ours.fullmatch(name) is not None

    def patience(self, runner: Runner) -> Patience:
        """Return the time limits for a runner. A server with much memory takes longer: all of it is pinned before it
        starts."""
        return Patience(self._boot(runner.choice.flavor), self.runners.register_within)

    def _boot(self, flavor: str) -> timedelta:
        ram = max((self._flavors[name].ram for name in self._variants(flavor)), default=0)
        return self.runners.boot * (1 + ram // MIB_PER_STEP)

    def nova_flavors(self, choice: ServerChoice, lanes: Sequence[Lane], *, in_slots: bool) -> list[str]:
        """Return Nova's names for a choice's flavor, the best first. `in_slots`: whether Placement knows by now which
        GPUs are alone in their groups; then a server that takes no whole group is put into slots of the kinds that its
        lease has."""
        plain = self._nova_flavor(choice, lanes)
        traits = self._slot_traits(lanes)
        able = (flavor for flavor in self._flavors.values() if in_slots and flavor.variant_of == plain)
        return [*(flavor.name for flavor in able if flavor.slot_traits == traits), plain]

    def _slot_traits(self, lanes: Sequence[Lane]) -> tuple[str, ...]:
        """Return the traits of each lane's slot, sorted."""
        gpus = {(gpu.host, gpu.address): gpu for gpu in self.compiled.gpus}
        leaders = [gpus.get((lane.host, lane.addresses[0])) for lane in lanes]
        return tuple(sorted(slot_trait(gpu) for gpu in leaders if gpu is not None))

    def _nova_flavor(self, choice: ServerChoice, lanes: Sequence[Lane]) -> str:
        """Return Nova's name for a flavor: one that takes a whole IOMMU group has one for each kind of group."""
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
            for name, candidate in self._flavors.items()
            if candidate.set_letter and name == f"{flavor}-{candidate.set_letter.lower()}"
        ]

    def enrolment(self, name: str) -> Enrolment | None:
        return next((enrolment for enrolment in self.runners.enrolments if enrolment.name == name), None)

    def guest_rules(self, runner: Runner, run: int) -> str:
        """Return the rules that a runner's server checks its job against; `run`: of the job that it is made for."""
        enrolment = self.enrolment(runner.scope)
        if enrolment is None:
            raise UsageError(f"the site file has no enrolment {runner.scope!r} (any more)")
        return guest_rules(runner, enrolment, self.runners, run)

    def set_scope(self, label: str) -> str:
        """Return the name of the enrolment of a scale set."""
        return self.runners.sets[label].enrolment or self.runners.enrolments[0].name

    def demands(self, states: Sequence[ScaleSetState], turned_down: Mapping[tuple[str, str], int]) -> list[SetDemand]:
        """Return GitHub's figures for the scale sets that the site has. `turned_down`: `RunnerStore.turned_down`."""
        states_by_set = {(state.scope, state.name): state for state in states}
        scopes = {label: self.set_scope(label) for label in self.runners.sets}
        return [
            SetDemand(
                label,
                scope,
                self.set_wanted(label),
                assigned=state.assigned,
                waiting=0 if state.error else state.waiting,
                turned_down=turned_down.get((scope, label), 0),
            )
            for label, scope in scopes.items()
            for state in [states_by_set.get((scope, label), ScaleSetState(scope, label))]
        ]

    def set_wanted(self, label: str) -> ServerSpec:
        """Return the servers that runners of a scale set get, before it is known whose job they get."""
        ways = as_runner(label, self.runners.sets[label]).ways
        choices, _ = served(ways, self.compiled.site, ask_allowed=False)
        return server_spec(label, choices, self.runners.rules("", label))
