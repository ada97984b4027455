"""What an app may do at GitHub: the table of what gpuyard needs, and what becomes of jobs without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.model.errors import GpuyardError
from gpuyard.runners.controllers.github_permissions import PermissionCheck
from gpuyard.runners.lint import permission_findings
from gpuyard.runners.permissions import PERMISSIONS, documented, missing
from gpuyard.site.runner_rules import Enrolment, SiteRunners
from gpuyard_lab.github.auth import Principal, TokenKind
from gpuyard_lab.github.permissions import require
from gpuyard_lab.github.records import COMPLETED, JobOrder
from gpuyard_lab.github.wire import ForgeRefusal
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook

HOW_TO = Path(__file__).parents[3] / "docs/how-to"
APP = {"app": {"id": 7, "key_file": "/key"}}
OWNER = "organization_self_hosted_runners"


def site(enrolment: dict[str, object], **rules: object) -> SiteRunners:
    return SiteRunners.model_validate({"project": "ci", "enrolments": [{**APP, **enrolment}], **rules})


def lacking(runners: SiteRunners, granted: dict[str, str]) -> set[tuple[str, str]]:
    (enrolment,) = runners.enrolments
    return {
        (missing_permission.permission.name, missing_permission.permission.access)
        for missing_permission in missing(enrolment, runners, granted)
    }


def test_what_is_documented_is_all_that_is_needed() -> None:
    for runners in (
        site({"organization": "demo"}, forks="members"),
        site({"repository": "demo/science"}, forks="everybody"),
        site({"organization": "demo", "cirun": False}),
    ):
        assert lacking(runners, documented()) == set()


def test_what_is_needed_depends_on_the_site() -> None:
    always = {("actions", "read"), ("actions", "write"), ("statuses", "write")}
    files = {("administration", "write"), ("contents", "read")}
    organization = {(OWNER, "write"), ("members", "read")}
    assert lacking(site({"organization": "demo"}), {}) == always | files | organization
    assert lacking(site({"repository": "demo/science"}), {}) == always | files
    assert lacking(site({"organization": "demo", "cirun": False}), {}) == always | {(OWNER, "write")}
    less = site({"organization": "demo", "cirun": False, "statuses": False, "cancel_refused": False})
    assert lacking(less, {}) == {("actions", "read"), (OWNER, "write")}
    assert ("pull_requests", "read") in lacking(site({"organization": "demo"}, forks="collaborators"), {})
    assert ("pull_requests", "read") not in lacking(site({"organization": "demo"}, forks="everybody"), {})
    assert lacking(site({"organization": "demo"}), {**documented(), "administration": "read"}) == {
        ("administration", "write")
    }


@pytest.mark.parametrize("page", ["run-jobs.md", "configure-runners.md"])
def test_the_guides_name_every_permission(page: str) -> None:
    text = (HOW_TO / page).read_text()
    for permission in PERMISSIONS:
        assert permission.shown.rpartition(", ")[2].lower() in text.lower(), permission.shown


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        # github/docs 058fa63b, src/github-apps/data/fpt-2022-11-28/server-to-server-permissions.json
        ("GET", "/repos/o/r/actions/runners/5", "administration=read"),
        ("DELETE", "/repos/o/r/actions/runners/5", "administration=write"),
        ("POST", "/repos/o/r/actions/runners/remove-token", "administration=write"),
        ("GET", "/repos/o/r/actions/runs/5", "actions=read"),
        ("GET", "/repos/o/r/actions/runs/5/jobs", "actions=read"),
        ("POST", "/repos/o/r/actions/runs/5/cancel", "actions=write"),
        ("POST", "/repos/o/r/actions/runners/generate-jitconfig", "administration=write"),
        ("POST", "/orgs/o/actions/runners/generate-jitconfig", f"{OWNER}=write"),
        ("POST", "/orgs/o/actions/runners/registration-token", f"{OWNER}=write"),
        ("GET", "/orgs/o/actions/runner-groups", f"{OWNER}=read"),
        ("DELETE", "/orgs/o/actions/runners/5", f"{OWNER}=write"),
        ("POST", "/repos/o/r/actions/runs/5/force-cancel", "actions=write"),
        ("POST", "/repos/o/r/actions/runs/5/rerun-failed-jobs", "actions=write"),
        ("GET", "/orgs/o/teams", "members=read"),
        ("GET", "/repos/o/r/pulls", "pull_requests=read"),
        ("GET", "/repos/o/r/pulls/5", "pull_requests=read"),
        # @octokit/app-permissions 2.1.0, generated/api.github.com.json
        ("POST", "/repos/o/r/statuses/c0ffee", "statuses=write"),
        ("GET", "/orgs/o/memberships/ada", "members=read"),
    ],
)
def test_the_stand_in_asks_for_githubs_permissions(method: str, path: str, needs: str) -> None:
    principal = Principal(TokenKind.INSTALLATION, "o")
    with pytest.raises(ForgeRefusal, match="Resource not accessible by integration") as refused:
        require(principal, {}, method, path, public=False)
    assert refused.value.answer.headers["x-accepted-github-permissions"] == needs
    name, _, access = needs.partition("=")
    require(principal, {name: access}, method, path, public=False)


def test_what_is_public_may_be_read() -> None:
    principal = Principal(TokenKind.INSTALLATION, "o")
    for path in ("/repos/o/r/pulls", "/repos/o/r/contents/.cirun.yml", "/repos/o/r/actions/runs/5"):
        require(principal, {}, "GET", path, public=True)


def world_of(folder: Path) -> SimulatedRunners:
    world = SimulatedRunners(folder, sets=False)
    cirun_repository(world)
    hook(world)
    return world


def test_a_label_of_a_private_repository_gets_its_runner_with_what_is_documented(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.github.forge.repositories["demo/science"].private = True
    (id,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 30)]).jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=1)
    assert world.job(id).conclusion == "success"


@pytest.mark.parametrize("why", ["no permission", "the organisation forbids it"])
def test_a_runner_that_github_does_not_register_says_what_to_do(tmp_path: Path, why: str) -> None:
    world = world_of(tmp_path)
    if why == "no permission":
        world.github.forge.permissions["administration"] = "read"
    else:  # runs-on/runs-on#417: 403, and no word
        world.github.forge.repository_runners = False
    world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 30)])
    world.until(lambda: any("failed" in job.reason for job in world.store.jobs()), hours=1)
    (job,) = world.store.jobs()
    assert "'Administration: write'" in job.reason
    assert "a scale set needs neither" in job.reason
    assert world.nova.posts == []


class App:
    """A client of an app that has been granted this much."""

    def __init__(self, enrolment: Enrolment, granted: dict[str, str] | None) -> None:
        self.enrolment, self._granted = enrolment, granted

    def granted(self) -> dict[str, str] | None:
        return self._granted


def test_serving_says_once_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    runners = site({"organization": "demo"})
    granted = {**documented(), "administration": "read", "statuses": "read"}
    check = PermissionCheck(runners, {"demo": App(runners.enrolments[0], granted)})  # type: ignore[dict-item]
    for _ in range(2):
        check.run()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the app of demo lacks 'Repository permissions, Administration",
        "the app of demo lacks 'Repository permissions, Commit statuses",
    ]
    assert "Administration: write" in check.problems("demo")
    assert "Commit statuses" not in check.problems("demo"), "jobs run without"
    granted.update(documented())
    check.run()
    assert check.problems("demo") == ""


def test_lint_says_what_is_missing_and_what_cannot_be_known() -> None:
    runners = SiteRunners.model_validate(
        {
            "project": "ci",
            "enrolments": [
                {"organization": "demo", **APP},
                {"organization": "offline", **APP},
                {"organization": "token", "token_file": "/token"},
            ],
        }
    )

    def granted(enrolment: Enrolment) -> dict[str, str] | None:
        if enrolment.name == "offline":
            raise GpuyardError("GitHub does not answer")
        return None if enrolment.app is None else {**documented(), "administration": "", "members": ""}

    findings = permission_findings("site.yaml", runners, granted)
    assert [(finding.code, finding.severity.value) for finding in findings] == [
        ("permission-missing", "error"), ("permission-useful", "warning"),
        ("permission-unknown", "note"), ("permission-unknown", "note"),
    ]  # fmt: skip
