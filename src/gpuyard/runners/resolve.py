"""Resolves a job's request for a runner: its labels, its repository's files, policies and the site's rules in, a
`ServerSpec` or a refusal out.

It checks in this order: whether a runner of the site or of the files has the job's labels (else the job is somebody
else's); whether the enrolment includes the repository; whether the site allows its code, where that is from a fork;
whether the policies of `.access.yml` allow its author; and which of the flavors and images asked for the site has and
allows. What GitHub has not said yet makes the answer UNKNOWN, never a grant. Pure but for the questions about people
that it asks through `PersonFacts`, of which it asks as few as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuyard.model.finding import Finding
from gpuyard.runners.access import Access, Considered, RunnerRequest, access_to
from gpuyard.runners.cirun.access_file import read_access
from gpuyard.runners.cirun.cirun_file import read_cirun
from gpuyard.runners.cirun.labels import fits, is_general, is_hosted, meant_for_cirun
from gpuyard.runners.cirun.records import OPENSTACK, AccessFile, CirunFile, CirunRunner, Way
from gpuyard.runners.facts import PersonFacts
from gpuyard.runners.records import Job, ServerChoice, ServerSpec, Trust
from gpuyard.site.objects import runner_flavors
from gpuyard.site.runner_rules import CPU, Enrolment, JobRules, ScaleSet, SiteRunners
from gpuyard.site.schema import Site

ASSOCIATIONS: dict[str, frozenset[str]] = {
    "never": frozenset(),
    "members": frozenset({"OWNER", "MEMBER"}),
    "collaborators": frozenset({"OWNER", "MEMBER", "COLLABORATOR"}),
    "contributors": frozenset({"OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR"}),
    "everybody": frozenset(),
}
"""The site's `forks` -> GitHub's ``author_association`` of those whose pull requests from forks get a runner; for
``everybody`` it is not checked."""

OWN_EVENTS = frozenset({"push", "schedule", "workflow_dispatch", "repository_dispatch", "release", "merge_group"})
"""Events that only people of the repository can start, with its own code. For any other GitHub has to be asked where
the code is from."""


class Ruling(StrEnum):
    """The kinds of answer to a job's request for a runner."""

    GRANTED = "granted"
    """`spec` says what it may have."""
    REFUSED = "refused"
    """For good, `reasons` say why: the job is JobState.REFUSED."""
    NOT_OURS = "not-ours"
    """No runner of gpuyard has its labels: somebody else's job, to be left alone without a word."""
    UNKNOWN = "unknown"
    """GitHub must be asked first; `reasons` say what for. To be tried again."""
    WITHHELD = "withheld"
    """GitHub refuses to say what must be known: the app or token lacks a permission. Tried again a few times."""


ELSEWHERE = frozenset({"flavor-unknown", "flavor-without-gpu"})
"""Rules of `problem_of` by which a shared runner is another cloud's."""


@dataclass(frozen=True)
class Resolution:
    """The answer to a job's request, and how it was found."""

    ruling: Ruling
    spec: ServerSpec | None = None
    reasons: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Parts of the files' request that were dropped, though there is a runner."""
    steps: tuple[Considered, ...] = ()

    @property
    def reason(self) -> str:
        """All reasons in one line, for the job."""
        return "; ".join(self.reasons)


@dataclass(frozen=True)
class RepositoryFiles:
    """Texts of the files of the default branches. None: there is no such file. Callers keep what `read` makes of them,
    by their ETags."""

    cirun: str | None = None
    """``.cirun.yml`` of the job's repository; for a pull request too it is that of the base."""
    cirun_global: str | None = None
    """``.cirun.global.yml`` of ``OWNER/.cirun``."""
    access: str | None = None
    """``.access.yml`` of ``OWNER/.cirun``."""


@dataclass(frozen=True)
class Configuration:
    """The files that apply to a repository, parsed."""

    own: CirunFile = field(default_factory=CirunFile)
    shared: CirunFile = field(default_factory=CirunFile)
    access: AccessFile | None = None
    """None: there is no `.access.yml`, and everybody may use what the site allows."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.own.findings, *self.shared.findings, *(self.access.findings if self.access else ()))


@dataclass(frozen=True)
class IdleRunners:
    """Runners of one kind that should wait for jobs now."""

    scope: str
    """Name of the enrolment."""
    repository: str
    """``owner/name`` that they are registered with; empty for the organisation's, which every repository's jobs get."""
    scale_set: str
    labels: tuple[str, ...]
    spec: ServerSpec
    count: int
    not_before: datetime | None = None
    """After some have failed: when the next one may be made."""


def read(files: RepositoryFiles) -> Configuration:
    """Parse a repository's files. Never raises; what is wrong is among the findings. Takes milliseconds for usual
    files, and some tenths of a second for the worst that somebody can write (`reading.BOUNDS`)."""
    return Configuration(
        CirunFile() if files.cirun is None else read_cirun(files.cirun),
        CirunFile() if files.cirun_global is None else read_cirun(files.cirun_global, ".cirun.global.yml"),
        None if files.access is None else read_access(files.access),
    )


def resolve(job: Job, site: Site, configuration: Configuration, facts: PersonFacts) -> Resolution:
    """Decide what a job may have. A job of a scale set needs `scale_set`, others `labels`; all `scope` and
    `repository`.

    A job's runner gets the job's own labels (suffixes and all), so that no other job has them all.
    """
    return _Case(job, site, configuration, facts).resolution()


def not_ours_by_labels(job: Job, runners: SiteRunners, enrolment: Enrolment) -> str:
    """Say why a job is somebody else's whatever files its repository has; empty where the files decide.

    Most jobs of an organisation are GitHub's own to run. This tells them from ours without a call to GitHub.
    """
    if job.scale_set:
        return ""
    if (served_by := next((scale_set for scale_set in runners.sets if job.labels == (scale_set,)), None)) is not None:
        return f"the scale set {served_by!r} gets it, not a runner of .cirun.yml"
    labels = ", ".join(job.labels) or "none"
    if not enrolment.cirun:
        return f"no .cirun.yml is read for {enrolment.name}, and a job with the labels {labels} is of no scale set"
    if enrolment.has_hosted_runners and is_hosted(job.labels):
        return f"{labels} is a runner that GitHub hosts, and GitHub runs the job there"
    if is_general(job.labels):
        return f"the labels {labels} name no runner in particular, so no runner of .cirun.yml gets it"
    return ""


@dataclass
class _Case:
    """The resolution of one job; each step adds what it has found."""

    job: Job
    site: Site
    configuration: Configuration
    facts: PersonFacts
    steps: list[Considered] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def resolution(self) -> Resolution:
        runners = self.site.runners
        if runners is None:
            return self._end(Ruling.NOT_OURS, "the site has no runners")
        enrolment = next((enrolment for enrolment in runners.enrolments if enrolment.name == self.job.scope), None)
        if enrolment is None:
            return self._end(Ruling.REFUSED, f"the site file has no enrolment {self.job.scope!r} (any more)")
        candidates, refusal = self._candidates(runners, enrolment)
        if refusal is not None:
            return refusal
        if not enrolment.includes(self.job.repository):
            reason = f"the site's enrolment {enrolment.name!r} does not include the repository {self.job.repository}"
            return self._end(Ruling.REFUSED, reason)
        self._ok(f"the site's enrolment {enrolment.name!r} includes the repository {self.job.repository}")
        rules = runners.rules(self.job.repository, self.job.scale_set)
        if (stopped := self._trusted(rules)) is not None:
            return stopped
        allowed, stopped = self._allowed(candidates, enrolment)
        if stopped is not None:
            return stopped
        return self._choose(allowed, rules)

    def _end(self, ruling: Ruling, *reasons: str) -> Resolution:
        texts = {step.text for step in self.steps}
        self.steps += [Considered(reason, False) for reason in reasons if reason not in texts]
        return Resolution(ruling, None, tuple(dict.fromkeys(reasons)), tuple(self.notices), tuple(self.steps))

    def _ok(self, text: str) -> None:
        self.steps.append(Considered(text, True))

    def _candidates(self, runners: SiteRunners, enrolment: Enrolment) -> tuple[list[CirunRunner], Resolution | None]:
        """Runners that fit the job's labels, in order, or why there are none."""
        if self.job.scale_set:
            if (stated := runners.sets.get(self.job.scale_set)) is None:
                return [], self._end(Ruling.REFUSED, f"the site file has no set {self.job.scale_set!r} (any more)")
            self._ok(f"the label {self.job.scale_set!r} is a scale set of the site")
            return [as_runner(self.job.scale_set, stated)], None
        if reason := not_ours_by_labels(self.job, runners, enrolment):
            return [], self._end(Ruling.NOT_OURS, reason)
        labels = ", ".join(self.job.labels)
        files = (self.configuration.own, self.configuration.shared)
        fitting = [runner for file in files for runner in file.runners if fits(self.job.labels, runner.labels)]
        ours = [runner for runner in fitting if runner.ours]
        others = sorted({runner.cloud for runner in fitting if not runner.ours})
        elsewhere = [runner for runner in ours if self._is_elsewhere(runner)]
        if elsewhere and elsewhere == ours and not others:
            flavors = ", ".join(sorted({way.flavor for runner in elsewhere for way in runner.ways}))
            reason = (
                f"runners with the labels {labels} are another cloud's: this site has none with the flavor {flavors}"
            )
            return [], self._end(Ruling.NOT_OURS, reason)
        if ours:
            for runner in ours:
                self._ok(f"runner {runner.name!r} ({runner.file}, line {runner.line}) has the labels {labels}")
            if others:
                self.notices.append(f"runners of {', '.join(others)} with the same labels are left alone")
            return ours, None
        if others:
            reason = (
                f"runners with the labels {labels} are of the cloud {', '.join(others)}, which gpuyard leaves alone"
            )
            return [], self._end(Ruling.NOT_OURS, reason)
        broken = [finding for file in files if not file.readable for finding in file.findings[:1]]
        if broken and meant_for_cirun(self.job.labels):
            return [], self._end(Ruling.REFUSED, *(f"{finding.object}: {finding.reason}" for finding in broken))
        return [], self._end(Ruling.NOT_OURS, f"no runner has the labels {labels}")

    def _is_elsewhere(self, runner: CirunRunner) -> bool:
        """Return whether a runner of the file that all repositories share is meant for another OpenStack: of several
        clouds that serve one organisation each leaves the others' flavors alone. In a repository's own file it is an
        error."""
        if not runner.ways or runner not in self.configuration.shared.runners:
            return False
        return all(problem_of(way, self.site)[0] in ELSEWHERE for way in runner.ways)

    def _trusted(self, rules: JobRules) -> Resolution | None:
        """Return the refusal, or open question, when the job's code may not run at all."""
        job = self.job
        if not job.event:
            return self._end(Ruling.UNKNOWN, "GitHub has not said yet what started the job")
        if job.trust is None and job.event not in OWN_EVENTS:
            return self._end(Ruling.UNKNOWN, "GitHub has not said yet whether the job's code is from a fork")
        if job.trust is not Trust.FORK:
            self._ok(f"started by {job.event}: the code is the repository's own")
            return None
        origin = f"'forks: {rules.forks}' of {rules.origins['forks']}" if "forks" in rules.origins else "the site"
        if rules.forks != "everybody" and rules.forks != "never" and not job.association:
            return self._end(Ruling.UNKNOWN, "GitHub has not said yet how near the fork's author is to the repository")
        if job.association.upper() not in ASSOCIATIONS[rules.forks] and rules.forks != "everybody":
            who = f"; its author is {job.association.upper()}" if job.association and rules.forks != "never" else ""
            key = "" if "forks" in rules.origins else "; the key 'forks' of the site file would"
            reason = f"it is a pull request from a fork, and {origin} does not allow it{who}{key}"
            return self._end(Ruling.REFUSED, reason)
        self._ok(f"a pull request from a fork: {origin} allows it")
        return None

    def _allowed(
        self, candidates: Sequence[CirunRunner], enrolment: Enrolment
    ) -> tuple[list[CirunRunner], Resolution | None]:
        """The candidates that policies allow, or why there are none."""
        access = self.configuration.access if enrolment.cirun else None
        if access is None and enrolment.access_required:
            where = f"{enrolment.owner}/.cirun"
            reason = f"gpuyard sees no .access.yml in {where}, and the site demands one for {enrolment.name}"
            return [], self._end(Ruling.REFUSED, reason)
        if access is None:
            self._ok("there is no .access.yml that gpuyard may see, so policies keep nobody out")
            return list(candidates), None
        allowed: list[CirunRunner] = []
        reasons: list[str] = []
        unknown: list[str] = []
        pull_request = _is_pull_request(self.job) or self.job.trust is Trust.FORK
        request = RunnerRequest(self.job.repository, self.job.actor, pull_request, enrolment.url)
        for candidate in candidates:
            answer = self._policies(candidate, access, request)
            self.steps += answer.steps
            if answer.allowed:
                allowed.append(candidate)
            else:
                (unknown if answer.allowed is None else reasons).extend(answer.reasons)
        if allowed:
            return allowed, None
        if unknown:
            return [], self._end(Ruling.UNKNOWN, *unknown)
        return [], self._end(Ruling.REFUSED, *reasons)

    def _policies(self, runner: CirunRunner, access: AccessFile, request: RunnerRequest) -> Access:
        if self.job.scale_set and access.readable and all(grant.resource != runner.name for grant in access.grants):
            text = f"{access.file} does not name the scale set {runner.name!r}, which the site gives to all of its jobs"
            return Access(True, (), (Considered(text, True),))
        if not self.job.scale_set and runner in self.configuration.own.runners:
            text = (
                f"runner {runner.name!r} is of the repository's own .cirun.yml, and where there is an .access.yml only "
                "runners of .cirun.global.yml may be used: whoever can push here could give it any flavor"
            )
            return Access(False, (text,), (Considered(text, False),))
        return access_to(runner.name, access, request, self.facts)

    def _choose(self, allowed: Sequence[CirunRunner], rules: JobRules) -> Resolution:
        """Cut down what is asked for to what the site has and allows."""
        assert self.site.runners is not None
        ways = [way for runner in allowed for way in runner.ways]
        choices, dropped = served(ways, self.site, ask_allowed=not self.job.scale_set)
        broken = [
            f"runner {runner.name!r} has mistakes ({runner.file}, line {runner.line}); 'gpuyard runner lint' says which"
            for runner in allowed
            if not runner.ways
        ]
        if not choices:
            return self._end(Ruling.REFUSED, *dropped, *broken)
        self.notices += [*dropped, *broken]
        spec = server_spec(next(runner for runner in allowed if runner.ways).name, choices, rules)
        tried = ", ".join(f"{choice.flavor} with {choice.image}" for choice, _ in choices)
        self._ok(f"tried in this order: {tried}")
        return Resolution(Ruling.GRANTED, spec, (), tuple(self.notices), tuple(self.steps))


def _is_pull_request(job: Job) -> bool:
    return job.event.startswith("pull_request")


def as_runner(name: str, scale_set: ScaleSet) -> CirunRunner:
    """Return a scale set of the site file as a runner of a `.cirun.yml`: every flavor with every image."""
    ways = tuple(Way(flavor, image) for flavor in scale_set.flavors for image in scale_set.images)
    return CirunRunner(name, OPENSTACK, (name,), ways, (), "site file")


def served(
    ways: Sequence[Way], site: Site, ask_allowed: bool = True
) -> tuple[list[tuple[ServerChoice, bool]], list[str]]:
    """Return those of the ways that the site has and allows, each with whether it is preemptible; and why not the
    others. A scale set's flavors are the site's own: `ask_allowed` is False for it."""
    assert site.runners is not None
    choices: dict[ServerChoice, bool] = {}
    refused: dict[str, None] = {}
    for way in ways:
        _, problem = problem_of(way, site, ask_allowed)
        if problem:
            refused[problem] = None
            continue
        name = flavor_name(way.flavor, site)
        flavor = site.flavors[name]
        pool, gpus = next(iter(flavor.gpus.items()), (CPU, 0))
        choices.setdefault(ServerChoice(pool, name, way.image, gpus, flavor.same_group), way.preemptible)
    return list(choices.items()), list(refused)


def flavor_name(name: str, site: Site) -> str:
    """Return a flavor's name as the site file has it. For a flavor of whole IOMMU groups Nova has one for each set,
    ``pair-a``, and any of them means all of them."""
    base, _, letters = name.rpartition("-")
    flavor = site.flavors.get(base)
    return base if name not in site.flavors and flavor is not None and flavor.same_group and letters.isalpha() else name


def problem_of(way: Way, site: Site, ask_allowed: bool = True) -> tuple[str, str]:
    """Return why the site does not serve a way: the rule of the linter, and a sentence. Empty when it does."""
    name = flavor_name(way.flavor, site)
    if name not in site.flavors:
        return "flavor-unknown", f"the site has no flavor {way.flavor!r}"
    if not site.flavors[name].gpus and not (site.runners and site.runners.cpu_runners):
        return "flavor-without-gpu", f"the flavor {way.flavor!r} has no GPU, and the site has no runners without one"
    if not ask_allowed or site.runners is None:
        return "", ""
    flavors, images = site.runners.allowed.flavors, site.runners.allowed.images
    if flavors and name not in flavors:
        return "flavor-not-allowed", f"the site gives jobs no flavor {way.flavor!r}, but {', '.join(flavors)}"
    if name not in runner_flavors(site):
        return "flavor-not-allowed", f"the flavor {way.flavor!r} is private to other projects than that of the runners"
    if images and way.image not in images:
        return (
            "image-not-allowed",
            f"the site starts no jobs with the image {way.image!r}, but with {', '.join(images)}",
        )
    return "", ""


def server_spec(kind: str, choices: Sequence[tuple[ServerChoice, bool]], rules: JobRules) -> ServerSpec:
    """Return what a job may have. A repository may agree to less than the site lets it, never to more: to jobs that a
    booking may end."""
    agreed = rules.preemptible or all(preemptible for _, preemptible in choices)
    return ServerSpec(kind, tuple(choice for choice, _ in choices), rules.longest, rules.priority, agreed)
