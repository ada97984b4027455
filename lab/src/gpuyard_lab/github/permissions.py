"""Permissions that each call to GitHub needs, as a table, and the check of a call against them.

The table is that of https://docs.github.com/rest/authentication/permissions-required-for-github-apps: its rows are from
the data behind that page (github/docs 058fa63b, src/github-apps/data/fpt-2022-11-28/server-to-server-permissions.json);
statuses and memberships are from @octokit/app-permissions 2.1.0. A call without its permission is answered with 403,
but for reading what is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.runners.permissions import ACCESS
from gpuyard_lab.github.auth import Principal, TokenKind
from gpuyard_lab.github.routing import Routes
from gpuyard_lab.github.wire import ForgeRefusal

REPOSITORY = "/repos/{owner}/{repo}"
INTEGRATION = "Resource not accessible by integration"
PERSONAL = "Resource not accessible by personal access token"


@dataclass(frozen=True)
class Need:
    permission: str
    access: str
    public: bool = False
    """Anybody may do it where the repository is public."""


READ_ACTIONS, WRITE_ACTIONS = Need("actions", "read", public=True), Need("actions", "write")
READ_RUNNERS, WRITE_RUNNERS = Need("administration", "read"), Need("administration", "write")
READ_ORG_RUNNERS = Need("organization_self_hosted_runners", "read")
WRITE_ORG_RUNNERS = Need("organization_self_hosted_runners", "write")
MEMBERS = Need("members", "read")
PULLS = Need("pull_requests", "read", public=True)
NEEDS: Routes[Need] = Routes(
    [
        ("GET", f"{REPOSITORY}/actions/jobs/{{id}}", READ_ACTIONS),
        ("GET", f"{REPOSITORY}/actions/runs", READ_ACTIONS),
        ("GET", f"{REPOSITORY}/actions/runs/{{id}}", READ_ACTIONS),
        ("GET", f"{REPOSITORY}/actions/runs/{{id}}/jobs", READ_ACTIONS),
        ("GET", f"{REPOSITORY}/actions/runs/{{id}}/attempts/{{attempt}}/jobs", READ_ACTIONS),
        ("POST", f"{REPOSITORY}/actions/runs/{{id}}/cancel", WRITE_ACTIONS),
        ("POST", f"{REPOSITORY}/actions/runs/{{id}}/force-cancel", WRITE_ACTIONS),
        ("POST", f"{REPOSITORY}/actions/runs/{{id}}/rerun", WRITE_ACTIONS),
        ("POST", f"{REPOSITORY}/actions/runs/{{id}}/rerun-failed-jobs", WRITE_ACTIONS),
        ("GET", f"{REPOSITORY}/actions/runners", READ_RUNNERS),
        ("GET", f"{REPOSITORY}/actions/runners/{{id}}", READ_RUNNERS),
        ("DELETE", f"{REPOSITORY}/actions/runners/{{id}}", WRITE_RUNNERS),
        ("POST", f"{REPOSITORY}/actions/runners/{{what}}", WRITE_RUNNERS),
        ("GET", "/orgs/{org}/actions/runners", READ_ORG_RUNNERS),
        ("GET", "/orgs/{org}/actions/runners/{id}", READ_ORG_RUNNERS),
        ("DELETE", "/orgs/{org}/actions/runners/{id}", WRITE_ORG_RUNNERS),
        ("POST", "/orgs/{org}/actions/runners/{what}", WRITE_ORG_RUNNERS),
        ("GET", "/orgs/{org}/actions/runner-groups", READ_ORG_RUNNERS),
        ("GET", f"{REPOSITORY}/contents/{{path...}}", Need("contents", "read", public=True)),
        ("GET", f"{REPOSITORY}/pulls", PULLS),
        ("GET", f"{REPOSITORY}/pulls/{{number}}", PULLS),
        ("POST", f"{REPOSITORY}/statuses/{{sha}}", Need("statuses", "write")),
        ("GET", "/orgs/{org}/teams", MEMBERS),
        ("GET", "/orgs/{org}/teams/{slug}/members", MEMBERS),
        ("GET", "/orgs/{org}/teams/{slug}/memberships/{login}", MEMBERS),
        ("GET", "/orgs/{org}/memberships/{login}", MEMBERS),
    ]
)


def require(principal: Principal, granted: Mapping[str, str], method: str, path: str, public: bool) -> None:
    """Check that an installation or a token with these permissions may make a call; `public`: the repository is. Raises
    ForgeRefusal (403)."""
    route = NEEDS.find(method, path)
    if route is None or principal.kind not in (TokenKind.INSTALLATION, TokenKind.PERSON):
        return
    need = route[0]
    if (need.public and public) or ACCESS[granted.get(need.permission, "")] >= ACCESS[need.access]:
        return
    words = INTEGRATION if principal.kind is TokenKind.INSTALLATION else PERSONAL
    raise ForgeRefusal(403, words, {"x-accepted-github-permissions": f"{need.permission}={need.access}"})
