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


def repository(forge: Forge, repo: ForgeRepository) -> Json:
    own, page = api(forge, f"/repos/{repo.full_name}"), f"{forge.url}/{repo.full_name}"
    born = "2024-01-01T00:00:00Z"
    return {
        "id": repo.id,
        "node_id": node_id("Repository", repo.id),
        "name": repo.name,
        "full_name": repo.full_name,
        "private": repo.private,
        "owner": user(forge, repo.owner),
        "html_url": page,
        "description": None,
        "fork": False,
        "url": own,
        **{f"{name}_url": own + path for name, path in REPOSITORY_LINKS.items()},
        "created_at": born,
        "updated_at": born,
        "pushed_at": stamp(repo.pushed) if repo.pushed else born,
        "git_url": page.replace("http", "git", 1) + ".git",
        "ssh_url": f"git@github.test:{repo.full_name}.git",
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
        "default_branch": repo.default_branch,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "visibility": "private" if repo.private else "public",
        "custom_properties": {},
    }


def job(forge: Forge, job: ForgeJob, *, bare: bool = False) -> Json:
    """Return a job, as in `workflow_job`; ``bare``: without labels and runner."""
    run = forge.runs[job.run]
    own = api(forge, f"/repos/{job.repository}")
    runner = job.started is not None and not bare
    group = forge.accounts[job.repository.partition("/")[0].lower()].groups.get(job.group)
    return {
        "id": job.id,
        "run_id": job.run,
        "run_url": f"{own}/actions/runs/{job.run}",
        "run_attempt": job.attempt,
        "node_id": node_id("CheckRun", job.id),
        "head_sha": run.head_sha,
        "url": f"{own}/actions/jobs/{job.id}",
        "html_url": f"{forge.url}/{job.repository}/actions/runs/{job.run}/job/{job.id}",
        "status": job.status,
        "conclusion": job.conclusion or None,
        "created_at": stamp(job.created),
        "started_at": stamp(job.started or job.queued or job.created),
        "completed_at": stamp(job.completed),
        "name": job.order.name,
        "steps": _steps(job),
        "check_run_url": f"{own}/check-runs/{job.id}",
        "labels": [] if bare else list(job.order.labels),
        "runner_id": job.runner if runner else None,
        "runner_name": job.runner_name if runner else None,
        "runner_group_id": job.group if runner else None,
        "runner_group_name": group.name if runner and group else None,
        "workflow_name": run.workflow,
        "head_branch": run.head_branch,
    }


def _steps(job: ForgeJob) -> list[Json]:
    if job.started is None:
        return []
    return [
        {
            "name": "Set up job",
            "status": "completed" if job.status == COMPLETED else "in_progress",
            "conclusion": job.conclusion or None,
            "number": 1,
            "started_at": stamp(job.started),
            "completed_at": stamp(job.completed),
        }
    ]


def workflow_job(forge: Forge, forge_job: ForgeJob, action: str, *, bare: bool = False) -> Json:
    """Return the body of a webhook."""
    repo = forge.repositories[forge_job.repository.lower()]
    account = forge.accounts[repo.owner.lower()]
    body: Json = {
        "action": action,
        "workflow_job": job(forge, forge_job, bare=bare),
        "repository": repository(forge, repo),
        "sender": user(forge, forge.runs[forge_job.run].actor),
    }
    if action != COMPLETED:
        # The record may have moved on before the event is sent: an event says what was true when it happened.
        body["workflow_job"]["status"] = WAITING if action == WAITING else action
    if account.organization:
        body["organization"] = organization(forge, account)
    if account.installation:
        body["installation"] = {"id": account.installation, "node_id": node_id("Integration", account.installation)}
    return body


def run(forge: Forge, run: ForgeRun) -> Json:
    """Return a run, as the REST API has it; of its repositories only what tells where its code is from."""
    repo = forge.repositories[run.repository.lower()]
    own = api(forge, f"/repos/{run.repository}/actions/runs/{run.id}")
    states = [forge.jobs[id] for id in run.jobs if forge.jobs[id].attempt == run.attempt]
    return {
        "id": run.id,
        "name": run.workflow,
        "node_id": node_id("WorkflowRun", run.id),
        "head_branch": run.head_branch,
        "head_sha": run.head_sha,
        "path": ".github/workflows/ci.yml",
        "display_title": run.workflow,
        "run_number": run.id,
        "run_attempt": run.attempt,
        "event": run.event,
        "status": run_status(states),
        "conclusion": run_conclusion(states),
        "workflow_id": 1,
        "url": own,
        "html_url": f"{forge.url}/{run.repository}/actions/runs/{run.id}",
        "jobs_url": f"{own}/jobs",
        "cancel_url": f"{own}/cancel",
        "created_at": stamp(run.created),
        "updated_at": stamp(run.created),
        "run_started_at": stamp(run.created),
        "actor": user(forge, run.actor),
        "triggering_actor": user(forge, run.triggering_actor or run.actor),
        # GitHub leaves this empty for pull requests from forks.
        "pull_requests": [{"number": run.pull}] if run.pull and run.head_repository == run.repository else [],
        "repository": repository(forge, repo),
        "head_repository": {"full_name": run.head_repository, "fork": run.head_repository != run.repository},
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
    return next((conclusion for conclusion in ("failure", "cancelled") if conclusion in conclusions), "success")


def runner(runner: ForgeRunner) -> Json:
    return {
        "id": runner.id,
        "name": runner.name,
        "os": "linux" if runner.connected else "unknown",
        "status": "online" if runner.online else "offline",
        "busy": bool(runner.job),
        "ephemeral": True,
        "runner_group_id": runner.group,
        "labels": [{"id": number, "name": label, "type": "custom"} for number, label in enumerate(runner.labels, 1)],
    }


def pull(forge: Forge, repo: ForgeRepository, pull: ForgePull) -> Json:
    return {
        "id": repo.id * 1000 + pull.number,
        "number": pull.number,
        "state": "open",
        "html_url": f"{forge.url}/{repo.full_name}/pull/{pull.number}",
        "user": user(forge, pull.author),
        "author_association": pull.association,
        "head": {
            "ref": pull.head_branch,
            "sha": pull.head_sha,
            "repo": {"full_name": pull.head_repository, "fork": pull.head_repository != repo.full_name},
        },
        "base": {"ref": repo.default_branch, "repo": {"full_name": repo.full_name, "fork": False}},
    }


def sending(delivery: HookSending) -> Json:
    """Return a delivery, as in the list of a hook's deliveries."""
    return {
        "id": delivery.id,
        "guid": delivery.guid,
        "delivered_at": stamp(delivery.sent or delivery.due),
        "redelivery": delivery.redelivery,
        "duration": 0.1,
        "status": "OK" if 200 <= delivery.status_code < 300 else "failed to connect to host",
        "status_code": delivery.status_code,
        "event": delivery.event,
        "action": delivery.action,
        "installation_id": delivery.installation_id or None,
        "repository_id": delivery.repository_id or None,
        "throttled_at": None,
    }
