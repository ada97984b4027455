"""Builds JSON as GitHub has it, for webhooks and for the REST API. A test compares its shapes with octokit's
schemas."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from typing import Any

from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import (
    COMPLETED,
    WAITING,
    ForgeAccount,
    ForgeJob,
    ForgePull,
    ForgeRepository,
    ForgeRun,
    ForgeRunner,
    HookSending,
)

Json = dict[str, Any]

# What a repository has a link for, after its own address.
REPOSITORY_LINKS = {
    "forks": "/forks", "keys": "/keys{/key_id}", "collaborators": "/collaborators{/collaborator}", "teams": "/teams",
    "hooks": "/hooks", "issue_events": "/issues/events{/number}", "events": "/events", "assignees": "/assignees{/user}",
    "branches": "/branches{/branch}", "tags": "/tags", "blobs": "/git/blobs{/sha}", "git_tags": "/git/tags{/sha}",
    "git_refs": "/git/refs{/sha}", "trees": "/git/trees{/sha}", "statuses": "/statuses/{sha}",
    "languages": "/languages", "stargazers": "/stargazers", "contributors": "/contributors",
    "subscribers": "/subscribers", "subscription": "/subscription", "commits": "/commits{/sha}",
    "git_commits": "/git/commits{/sha}", "comments": "/comments{/number}", "issue_comment": "/issues/comments{/number}",
    "contents": "/contents/{+path}", "compare": "/compare/{base}...{head}", "merges": "/merges",
    "archive": "/{archive_format}{/ref}", "downloads": "/downloads", "issues": "/issues{/number}",
    "pulls": "/pulls{/number}", "milestones": "/milestones{/number}",
    "notifications": "/notifications{?since,all,participating}", "labels": "/labels{/name}",
    "releases": "/releases{/id}", "deployments": "/deployments",
}  # fmt: skip
USER_LINKS = {
    "followers": "/followers", "following": "/following{/other_user}", "gists": "/gists{/gist_id}",
    "starred": "/starred{/owner}{/repo}", "subscriptions": "/subscriptions", "organizations": "/orgs",
    "repos": "/repos", "events": "/events{/privacy}", "received_events": "/received_events",
}  # fmt: skip


def stamp(at: datetime | None) -> str | None:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if at else None


def node_id(kind: str, id: int) -> str:
    return b64encode(f"0{len(kind)}:{kind}{id}".encode()).decode()


def api(forge: Forge, path: str) -> str:
    return f"{forge.url}/api/v3{path}"


def user(forge: Forge, login: str) -> Json:
    account = forge.accounts.get(login.lower())
    kind = "Organization" if account and account.organization else "User"
    id = account.id if account else sum(login.encode()) + 100_000
    own = api(forge, f"/users/{login}")
    return {
        "login": login,
        "id": id,
        "node_id": node_id(kind, id),
        "avatar_url": f"{forge.url}/avatars/u/{id}",
        "gravatar_id": "",
        "url": own,
        "html_url": f"{forge.url}/{login}",
        **{f"{name}_url": own + path for name, path in USER_LINKS.items()},
        "type": kind,
        "site_admin": False,
    }


def organization(forge: Forge, account: ForgeAccount) -> Json:
    own = api(forge, f"/orgs/{account.login}")
    links = {name: f"{own}/{name}" for name in ("repos", "events", "hooks", "issues")}
    return {
        "login": account.login,
        "id": account.id,
        "node_id": node_id("Organization", account.id),
        "url": own,
        **{f"{name}_url": path for name, path in links.items()},
        "members_url": f"{own}/members{{/member}}",
        "public_members_url": f"{own}/public_members{{/member}}",
        "avatar_url": f"{forge.url}/avatars/u/{account.id}",
        "description": "",
    }


def repository(forge: Forge, one: ForgeRepository) -> Json:
    own, page = api(forge, f"/repos/{one.full_name}"), f"{forge.url}/{one.full_name}"
    born = "2024-01-01T00:00:00Z"
    return {
        "id": one.id,
        "node_id": node_id("Repository", one.id),
        "name": one.name,
        "full_name": one.full_name,
        "private": one.private,
        "owner": user(forge, one.owner),
        "html_url": page,
        "description": None,
        "fork": False,
        "url": own,
        **{f"{name}_url": own + path for name, path in REPOSITORY_LINKS.items()},
        "created_at": born,
        "updated_at": born,
        "pushed_at": stamp(one.pushed) if one.pushed else born,
        "git_url": page.replace("http", "git", 1) + ".git",
        "ssh_url": f"git@github.test:{one.full_name}.git",
        "clone_url": f"{page}.git",
        "svn_url": page,
        "homepage": None,
        "size": 1,
        **{f"{name}_count": 0 for name in ("stargazers", "watchers", "forks", "open_issues")},
        **{f"has_{name}": True for name in ("issues", "projects", "downloads", "wiki")},
        "has_pages": False,
        "language": None,
        "mirror_url": None,
        "archived": False,
        "disabled": False,
        "license": None,
        "forks": 0,
        "open_issues": 0,
        "watchers": 0,
        "default_branch": one.default_branch,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "visibility": "private" if one.private else "public",
        "custom_properties": {},
    }


def job(forge: Forge, one: ForgeJob, *, bare: bool = False) -> Json:
    """Return a job, as in `workflow_job`; ``bare``: without labels and runner."""
    run = forge.runs[one.run]
    own = api(forge, f"/repos/{one.repository}")
    runner = one.started is not None and not bare
    group = forge.accounts[one.repository.partition("/")[0].lower()].groups.get(one.group)
    return {
        "id": one.id,
        "run_id": one.run,
        "run_url": f"{own}/actions/runs/{one.run}",
        "run_attempt": one.attempt,
        "node_id": node_id("CheckRun", one.id),
        "head_sha": run.head_sha,
        "url": f"{own}/actions/jobs/{one.id}",
        "html_url": f"{forge.url}/{one.repository}/actions/runs/{one.run}/job/{one.id}",
        "status": one.status,
        "conclusion": one.conclusion or None,
        "created_at": stamp(one.created),
        "started_at": stamp(one.started or one.queued or one.created),
        "completed_at": stamp(one.completed),
        "name": one.order.name,
        "steps": _steps(one),
        "check_run_url": f"{own}/check-runs/{one.id}",
        "labels": [] if bare else list(one.order.labels),
        "runner_id": one.runner if runner else None,
        "runner_name": one.runner_name if runner else None,
        "runner_group_id": one.group if runner else None,
        "runner_group_name": group.name if runner and group else None,
        "workflow_name": run.workflow,
        "head_branch": run.head_branch,
    }


def _steps(one: ForgeJob) -> list[Json]:
    if one.started is None:
        return []
    return [
        {
            "name": "Set up job",
            "status": "completed" if one.status == COMPLETED else "in_progress",
            "conclusion": one.conclusion or None,
            "number": 1,
            "started_at": stamp(one.started),
            "completed_at": stamp(one.completed),
        }
    ]


def workflow_job(forge: Forge, one: ForgeJob, action: str, *, bare: bool = False) -> Json:
    """Return the body of a webhook."""
    repo = forge.repositories[one.repository.lower()]
    account = forge.accounts[repo.owner.lower()]
    body: Json = {
        "action": action,
        "workflow_job": job(forge, one, bare=bare),
        "repository": repository(forge, repo),
        "sender": user(forge, forge.runs[one.run].actor),
    }
    if action != COMPLETED:
        # The record may have moved on before the event is sent: an event says what was true when it happened.
        body["workflow_job"]["status"] = WAITING if action == WAITING else action
    if account.organization:
        body["organization"] = organization(forge, account)
    if account.installation:
        body["installation"] = {"id": account.installation, "node_id": node_id("Integration", account.installation)}
    return body


def run(forge: Forge, one: ForgeRun) -> Json:
    """Return a run, as the REST API has it; of its repositories only what tells where its code is from."""
    repo = forge.repositories[one.repository.lower()]
    own = api(forge, f"/repos/{one.repository}/actions/runs/{one.id}")
    states = [forge.jobs[id] for id in one.jobs if forge.jobs[id].attempt == one.attempt]
    return {
        "id": one.id,
        "name": one.workflow,
        "node_id": node_id("WorkflowRun", one.id),
        "head_branch": one.head_branch,
        "head_sha": one.head_sha,
        "path": ".github/workflows/ci.yml",
        "display_title": one.workflow,
        "run_number": one.id,
        "run_attempt": one.attempt,
        "event": one.event,
        "status": run_status(states),
        "conclusion": run_conclusion(states),
        "workflow_id": 1,
        "url": own,
        "html_url": f"{forge.url}/{one.repository}/actions/runs/{one.id}",
        "jobs_url": f"{own}/jobs",
        "cancel_url": f"{own}/cancel",
        "created_at": stamp(one.created),
        "updated_at": stamp(one.created),
        "run_started_at": stamp(one.created),
        "actor": user(forge, one.actor),
        "triggering_actor": user(forge, one.triggering_actor or one.actor),
        # GitHub leaves this empty for pull requests from forks.
        "pull_requests": [{"number": one.pull}] if one.pull and one.head_repository == one.repository else [],
        "repository": repository(forge, repo),
        "head_repository": {"full_name": one.head_repository, "fork": one.head_repository != one.repository},
    }


def run_status(jobs: list[ForgeJob]) -> str:
    states = {job.status for job in jobs}
    if states <= {COMPLETED}:
        return COMPLETED
    for state in ("in_progress", "queued", "waiting"):
        if state in states:
            return state
    return "queued"


def run_conclusion(jobs: list[ForgeJob]) -> str | None:
    if run_status(jobs) != COMPLETED:
        return None
    conclusions = {job.conclusion for job in jobs}
    return next((one for one in ("failure", "cancelled") if one in conclusions), "success")


def runner(one: ForgeRunner) -> Json:
    return {
        "id": one.id,
        "name": one.name,
        "os": "linux" if one.connected else "unknown",
        "status": "online" if one.online else "offline",
        "busy": bool(one.job),
        "ephemeral": True,
        "runner_group_id": one.group,
        "labels": [{"id": number, "name": label, "type": "custom"} for number, label in enumerate(one.labels, 1)],
    }


def pull(forge: Forge, repo: ForgeRepository, one: ForgePull) -> Json:
    return {
        "id": repo.id * 1000 + one.number,
        "number": one.number,
        "state": "open",
        "html_url": f"{forge.url}/{repo.full_name}/pull/{one.number}",
        "user": user(forge, one.author),
        "author_association": one.association,
        "head": {
            "ref": one.head_branch,
            "sha": one.head_sha,
            "repo": {"full_name": one.head_repository, "fork": one.head_repository != repo.full_name},
        },
        "base": {"ref": repo.default_branch, "repo": {"full_name": repo.full_name, "fork": False}},
    }


def sending(one: HookSending) -> Json:
    """Return a delivery, as in the list of a hook's deliveries."""
    return {
        "id": one.id,
        "guid": one.guid,
        "delivered_at": stamp(one.sent or one.due),
        "redelivery": one.redelivery,
        "duration": 0.1,
        "status": "OK" if 200 <= one.status_code < 300 else "failed to connect to host",
        "status_code": one.status_code,
        "event": one.event,
        "action": one.action,
        "installation_id": one.installation_id or None,
        "repository_id": one.repository_id or None,
        "throttled_at": None,
    }
