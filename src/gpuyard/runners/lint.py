"""Linter for `.cirun.yml`, `.cirun.global.yml` and `.access.yml`: findings in each, between them, and for a certain
site. Pure, but for what callers pass in to ask GitHub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath

from gpuyard.model.errors import GpuyardError
from gpuyard.model.finding import Finding
from gpuyard.runners.cirun.access_file import read_access
from gpuyard.runners.cirun.cirun_file import read_cirun
from gpuyard.runners.cirun.labels import GENERAL, bare
from gpuyard.runners.cirun.reading import finding
from gpuyard.runners.cirun.records import AccessFile, CirunFile, CirunRunner, IdleByUse
from gpuyard.runners.permissions import missing
from gpuyard.runners.resolve import Configuration, problem_of
from gpuyard.site.objects import runner_flavors
from gpuyard.site.runner_rules import Enrolment, SiteRunners
from gpuyard.site.schema import Site

ACCESS = ".access.yml"
GLOBAL = ".cirun.global.yml"


@dataclass(frozen=True)
class RunnerFiles:
    """Files that belong together, parsed."""

    own: tuple[CirunFile, ...] = ()
    """Each is a repository's; usually there is one."""
    shared: CirunFile | None = None
    access: AccessFile | None = None

    @property
    def configuration(self) -> Configuration:
        """The configuration of a repository that has the first of the `own` files."""
        return Configuration(self.own[0] if self.own else CirunFile(), self.shared or CirunFile(), self.access)


def read_files(texts: Mapping[str, str]) -> RunnerFiles:
    """Parse files, given as path -> text. The name says what a file is: a name that ends in ``access.yml`` is an
    ``.access.yml``, one that ends in ``cirun.global.yml`` a ``.cirun.global.yml``, and all others are a repository's
    ``.cirun.yml``."""
    own: list[CirunFile] = []
    shared: CirunFile | None = None
    access: AccessFile | None = None
    for path, text in texts.items():
        name = PurePath(path).name
        if name.endswith(("access.yml", "access.yaml")):
            access = read_access(text, path)
        elif name.endswith(("cirun.global.yml", "cirun.global.yaml")):
            shared = read_cirun(text, path)
        else:
            own.append(read_cirun(text, path))
    return RunnerFiles(tuple(own), shared, access)


def lint_files(files: RunnerFiles, site: Site | None = None) -> list[Finding]:
    """Return all findings, sorted by file, line and severity."""
    cirun = [*files.own, *([files.shared] if files.shared else [])]
    findings = [finding for file in cirun for finding in file.findings]
    if files.access is not None:
        findings += files.access.findings
        findings += _together(files.shared, files.access, site)
        findings += [_unused(runner, files.access) for file in files.own for runner in file.runners if runner.ours]
    for file in cirun:
        for runner in (runner for runner in file.runners if runner.ours):
            findings += _explained(runner, site) if _usable(runner, file is files.shared, files.access) else ()
    if site is not None:
        findings += [
            finding for file in cirun for runner in file.runners if runner.ours for finding in _on(runner, site)
        ]
    return sorted(
        findings,
        key=lambda finding: (str(finding.payload["file"]), int(finding.payload["line"]), finding.severity.rank),
    )


def _usable(runner: CirunRunner, shared: bool, access: AccessFile | None) -> bool:
    """Return whether anybody may use a runner, as far as policies go."""
    if access is None:
        return True
    policies = {policy.id for policy in access.policies}
    granted = any(grant.resource == runner.name and policies & {*grant.policies} for grant in access.grants)
    return shared and access.readable and granted


def _explained(runner: CirunRunner, site: Site | None) -> Iterator[Finding]:
    """Say what jobs get, as far as the file says. A runner whose every way is refused has only findings about what is
    wrong."""
    ways = [way for way in runner.ways if site is None or not problem_of(way, site)[0]]
    if not ways:
        return
    tried = ", or else ".join(
        f"{way.flavor} with {way.image}{' (a booking may end the job)' if way.preemptible else ''}" for way in ways
    )
    labels = [label for label in dict.fromkeys(map(bare, runner.labels)) if label not in GENERAL]
    any_of = "" if len(labels) < 2 else "one or more of "
    reason = f"jobs that ask for {any_of}{', '.join(labels)} get runner {runner.name!r}: {tried}"
    yield finding("runner", runner.file, runner.line, reason if labels else f"no job gets runner {runner.name!r}")


def _unused(runner: CirunRunner, access: AccessFile) -> Finding:
    reason = f"nobody gets runner {runner.name!r}: where there is an {access.file}, only runners of {GLOBAL} are used"
    return finding("runner-unused", runner.file, runner.line, reason, f"move it to {GLOBAL}")


def permission_findings(
    path: str, runners: SiteRunners, granted: Callable[[Enrolment], Mapping[str, str] | None]
) -> list[Finding]:
    """Return findings about permissions that apps of a site lack. `granted` asks GitHub about one enrolment, and may
    raise GpuyardError; `path`: of the site file."""
    findings = []
    for enrolment in runners.enrolments:
        try:
            permissions = granted(enrolment)
        except GpuyardError as error:
            findings.append(finding("permission-unknown", path, 1, f"{enrolment.name}: GitHub was not asked: {error}"))
            continue
        if permissions is None:
            reason = f"{enrolment.name} has a token, and GitHub does not say what that may do"
            findings.append(finding("permission-unknown", path, 1, reason))
        for missing_permission in missing(enrolment, runners, permissions) if permissions is not None else ():
            rule = "permission-missing" if missing_permission.permission.essential else "permission-useful"
            remedy = "grant it in the app's settings, and accept the change where the app is installed"
            findings.append(finding(rule, path, 1, str(missing_permission), remedy))
    return findings


def _together(shared: CirunFile | None, access: AccessFile, site: Site | None) -> Iterator[Finding]:
    """Names that are in one file and not in the other."""
    if shared is None or not shared.readable or not access.readable:
        return
    sets = set(site.runners.sets) if site is not None and site.runners is not None else set()
    runner_names = {runner.name for runner in shared.runners} | sets
    for grant in access.grants:
        if grant.resource not in runner_names:
            reason = f"there is no runner {grant.resource!r} in {shared_name(shared)}"
            remedy = "take the entry out, or give a runner this name"
            yield finding("resource-unknown", access.file, grant.line, reason, remedy)
    granted = {grant.resource for grant in access.grants}
    for runner in shared.runners:
        if runner.ours and runner.name not in granted:
            reason = f"no entry of access_control in {access.file} names the runner {runner.name!r}: nobody may use it"
            yield finding("resource-missing", runner.file, runner.line, reason, f"add 'resource: {runner.name}' there")


def shared_name(shared: CirunFile) -> str:
    return next((runner.file for runner in shared.runners), GLOBAL)


def _on(runner: CirunRunner, site: Site) -> Iterator[Finding]:
    """Yield findings about what this site will not do of a runner."""
    if site.runners is None:
        return
    reasons: set[str] = set()
    for way in runner.ways:
        rule, reason = problem_of(way, site)
        if rule and reason not in reasons:
            reasons.add(reason)
            rest = "" if all(problem_of(way, site)[0] for way in runner.ways) else "; its other ways are tried"
            close = get_close_matches(way.flavor, runner_flavors(site), n=1) if rule == "flavor-unknown" else []
            remedy = f"did you mean {close[0]!r}?" if close else ""
            yield finding(rule, runner.file, runner.line, f"runner {runner.name!r}: {reason}{rest}", remedy)
    idle = runner.idle
    count = idle.count if isinstance(idle, IdleByUse) else max((idle_time.count for idle_time in idle), default=0)
    if count > site.runners.most_idle:
        reason = (
            f"runner {runner.name!r} asks for {count} idle, and the site gives repositories {site.runners.most_idle}"
        )
        remedy = "ask for fewer, or ask the site's admin for 'most_idle'"
        yield finding("too-many-idle", runner.file, runner.line, reason, f"{remedy}")
