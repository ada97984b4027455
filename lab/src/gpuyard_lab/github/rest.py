"""Answers GitHub's REST API, as far as runners need it: https://docs.github.com/rest."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from gpuyard_lab.github import payloads
from gpuyard_lab.github.auth import ForgeAuthentication, Principal, TokenKind, token_answer
from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import (
    COMPLETED,
    DEFAULT_GROUP,
    ForgeAccount,
    ForgeJob,
    ForgeRepository,
    ForgeRun,
    ForgeRunner,
)
from gpuyard_lab.github.webhooks import Webhooks
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest

Handler = Callable[["Rest", ForgeRequest], ForgeAnswer]
ROUTES: list[tuple[str, str, Handler]] = []
PER_PAGE = 30
MOST_PER_PAGE = 100
PERMISSIONS = {"read": "read", "triage": "read", "write": "write", "maintain": "write", "admin": "admin"}


def route(method: str, path: str, routes: list[tuple[str, str, Handler]] = ROUTES) -> Callable[[Handler], Handler]:
    def known(handler: Handler) -> Handler:
        routes.append((method, path, handler))
        return handler

    return known


def jit_config(forge: Forge, runner: ForgeRunner) -> str:
    """Return the files of a runner, in the form of ``encoded_jit_config``: base64 of JSON, of base64 for each file.
    Only ``runner_standin.py`` can read what is in them."""
    scope = runner.repository or runner.owner
    settings = {
        "agentId": runner.id,
        "agentName": runner.name,
        "poolId": runner.group,
        "poolName": "Default",
        "serverUrl": f"{forge.runner_url}/_services/runner",
        "gitHubUrl": f"{forge.runner_url}/{scope}",
        "workFolder": "_work",
        "ephemeral": True,
        "disableUpdate": True,
    }
    credentials = {"scheme": "OAuth", "data": {"clientId": str(runner.id), "token": runner.secret}}
    files = {".runner": settings, ".credentials": credentials}
    encoded = {name: b64encode(json.dumps(value).encode()).decode() for name, value in files.items()}
    return b64encode(json.dumps(encoded).encode()).decode()


class Rest:
    """Answers requests. Handlers are below, by the path that they answer."""

    def __init__(self, forge: Forge, gate: ForgeAuthentication, hooks: Webhooks) -> None:
        self.forge, self.gate, self.hooks = forge, gate, hooks
        self.principal = Principal(TokenKind.APP, "")

    # -- rights and names

    def account(self, login: str) -> ForgeAccount:
        """Return an account that the caller may see. Raises ForgeRefusal (404)."""
        account = self.forge.accounts.get(login.lower())
        if account is None or not self._sees(account.login):
            raise ForgeRefusal(404, "Not Found")
        return account

    def repository(self, request: ForgeRequest) -> ForgeRepository:
        name = f"{request.parts['owner']}/{request.parts['repo']}"
        repository = self.forge.repositories.get(name.lower())
        if repository is None or not self._sees(repository.owner):
            raise ForgeRefusal(404, "Not Found")
        return repository

    def _sees(self, owner: str) -> bool:
        if self.principal.kind is TokenKind.INSTALLATION:
            return owner.lower() == self.principal.subject.lower()
        return self.principal.kind in (TokenKind.PERSON, TokenKind.APP)

    def require_app(self) -> None:
        if self.principal.kind is not TokenKind.APP:
            raise ForgeRefusal(401, "A JSON web token could not be decoded")

    def place(self, request: ForgeRequest) -> tuple[str, str]:
        """Return owner and repository (full name, empty at an organisation) of a path of either."""
        if "org" in request.parts:
            account = self.account(request.parts["org"])
            if not account.organization:
                raise ForgeRefusal(404, "Not Found")
            return account.login, ""
        repository = self.repository(request)
        return repository.owner, repository.full_name

    def runners_at(self, request: ForgeRequest) -> list[ForgeRunner]:
        owner, repository = self.place(request)
        return [
            runner for runner in self.forge.runners.values() if (runner.owner, runner.repository) == (owner, repository)
        ]

    def runner(self, request: ForgeRequest) -> ForgeRunner:
        runner = next((runner for runner in self.runners_at(request) if runner.id == number(request, "id")), None)
        if runner is None or self.forge.faults.strikes("missing", f"runner {runner.id}", self.forge.now()):
            raise ForgeRefusal(404, "Not Found")
        return runner

    def run(self, request: ForgeRequest) -> ForgeRun:
        repository, run = self.repository(request), self.forge.runs.get(number(request, "id"))
        if run is None or run.repository != repository.full_name:
            raise ForgeRefusal(404, "Not Found")
        return run

    def pages(
        self,
        request: ForgeRequest,
        key: str,
        rows: Iterable[Any],
        shown: Callable[[Any], Any] = lambda row: row,
        **more: Any,
    ) -> ForgeAnswer:
        """Return one page of a list: of objects with a count and ``more`` when ``key`` is given, else a bare list.
        ``shown`` turns a row into what is answered."""
        rows = list(rows)
        per_page = min(number(request, "per_page", PER_PAGE), MOST_PER_PAGE) or PER_PAGE
        page = max(1, number(request, "page", 1))
        page_rows = rows[(page - 1) * per_page : page * per_page]
        last = max(1, -(-len(rows) // per_page))
        ways = {"prev": page - 1, "next": page + 1, "last": last, "first": 1}
        if page >= last:
            del ways["next"], ways["last"]
        if page == 1:
            del ways["prev"], ways["first"]
        address = f"{self.forge.url}{request.path}?"
        links = (f'<{address}{urlencode({**request.query, "page": to})}>; rel="{way}"' for way, to in ways.items())
        headers = {"link": ", ".join(links)} if ways else {}
        page_rows = [shown(row) for row in page_rows]
        return ForgeAnswer(200, {"total_count": len(rows), key: page_rows, **more} if key else page_rows, headers)


def number(request: ForgeRequest, name: str, default: int = 0) -> int:
    """Return a number of the path or the query. Raises ForgeRefusal (404) for anything else."""
    text = request.parts.get(name) or request.query.get(name) or str(default)
    if not text.isdecimal() or len(text) > 18:
        raise ForgeRefusal(404, "Not Found")
    return int(text)


# -- the app and its installations


@route("GET", "/app")
def get_app(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.require_app()
    app = rest.forge.app
    assert app is not None
    return ForgeAnswer(200, {"id": app.id, "slug": app.slug, "name": app.slug, "client_id": f"Iv23{app.id}"})


def installation(rest: Rest, account: ForgeAccount) -> dict[str, Any]:
    app = rest.forge.app
    return {
        "id": account.installation,
        "account": payloads.user(rest.forge, account.login),
        "app_id": app.id if app else 0,
        "target_type": "Organization" if account.organization else "User",
        "repository_selection": "all",
        "permissions": dict(rest.forge.permissions),
        "access_tokens_url": payloads.api(rest.forge, f"/app/installations/{account.installation}/access_tokens"),
        "suspended_at": None,
    }


@route("GET", "/app/installations")
def list_installations(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.require_app()
    return rest.pages(
        request, "", (installation(rest, account) for account in rest.forge.accounts.values() if account.installation)
    )


@route("GET", "/orgs/{org}/installation")
@route("GET", "/users/{org}/installation")
@route("GET", "/repos/{org}/{repo}/installation")
def get_installation(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.require_app()
    account = rest.account(request.parts["org"])
    repo = request.parts.get("repo")
    if not account.installation or (repo and f"{account.login}/{repo}".lower() not in rest.forge.repositories):
        raise ForgeRefusal(404, "Not Found")
    return ForgeAnswer(200, installation(rest, account))


@route("POST", "/app/installations/{id}/access_tokens")
def make_installation_token(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.require_app()
    installation_id = number(request, "id")
    account = next(
        (account for account in rest.forge.accounts.values() if account.installation == installation_id), None
    )
    if account is None or not installation_id:
        raise ForgeRefusal(404, "Not Found")
    token, until = rest.gate.make(TokenKind.INSTALLATION, account.login)
    granted = dict(rest.forge.permissions)
    return ForgeAnswer(201, token_answer(token, until, permissions=granted, repository_selection="all"))


@route("GET", "/user")
def get_user(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    if rest.principal.kind is not TokenKind.PERSON:
        raise ForgeRefusal(403, "Resource not accessible by integration")
    return ForgeAnswer(200, payloads.user(rest.forge, rest.principal.subject))


@route("GET", "/rate_limit")
def get_rate_limit(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    most = rest.forge.settings.requests_an_hour
    used = rest.gate.budgets[rest.principal.subject].used if rest.principal.subject in rest.gate.budgets else 0
    core = {"limit": most, "used": used, "remaining": max(0, most - used), "reset": 0}
    return ForgeAnswer(200, {"resources": {"core": core}, "rate": core})


# -- repositories and who may do what there


@route("GET", "/installation/repositories")
def list_installation_repositories(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    if rest.principal.kind is not TokenKind.INSTALLATION:
        raise ForgeRefusal(
            403, "You must authenticate with an installation access token in order to list repositories."
        )
    mine = (repository for repository in rest.forge.repositories.values() if repository.owner == rest.principal.subject)
    shown = partial(payloads.repository, rest.forge)
    return rest.pages(request, "repositories", mine, shown, repository_selection="all")


@route("GET", "/orgs/{org}/repos")
@route("GET", "/users/{org}/repos")
def list_repositories(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    owner = rest.account(request.parts["org"]).login
    mine = [repository for repository in rest.forge.repositories.values() if repository.owner == owner]
    sort = request.query.get("sort", "created")
    long_ago = datetime.min.replace(tzinfo=UTC)
    keys: dict[str, Callable[[ForgeRepository], Any]] = {
        "created": lambda repository: repository.id,
        "updated": lambda repository: (repository.pushed or long_ago, repository.id),
        "pushed": lambda repository: (repository.pushed or long_ago, repository.id),
        "full_name": lambda repository: repository.full_name.lower(),
    }
    direction = request.query.get("direction") or ("asc" if sort == "full_name" else "desc")
    mine.sort(key=keys.get(sort, keys["created"]), reverse=direction == "desc")
    kind = request.query.get("type", "all")
    if kind in ("public", "private"):
        mine = [repository for repository in mine if repository.private is (kind == "private")]
    return rest.pages(request, "", mine, partial(payloads.repository, rest.forge))


@route("GET", "/repos/{owner}/{repo}")
def get_repository(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    return ForgeAnswer(200, payloads.repository(rest.forge, rest.repository(request)))


@route("GET", "/repos/{owner}/{repo}/contents/{path...}")
def get_contents(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, path = rest.repository(request), request.parts["path"]
    text = repository.files.get(path)
    if text is None or request.query.get("ref", repository.default_branch) != repository.default_branch:
        raise ForgeRefusal(404, "Not Found")
    data = text.encode()
    etag = f'"{sha256(data).hexdigest()}"'
    if request.headers.get("if-none-match", "").removeprefix("W/") == etag:
        return ForgeAnswer(304, None, {"etag": etag})
    if "raw" in request.headers.get("accept", ""):
        return ForgeAnswer(200, data, {"etag": etag, "content-type": "application/vnd.github.raw+json"})
    body = {
        "type": "file",
        "encoding": "base64",
        "size": len(data),
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": sha256(data).hexdigest()[:40],
        "content": b64encode(data).decode(),
    }
    return ForgeAnswer(200, body, {"etag": etag})


@route("GET", "/repos/{owner}/{repo}/collaborators/{login}/permission")
def get_permission(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, login = rest.repository(request), request.parts["login"]
    role = repository.permissions.get(login, "none" if repository.private else "read")
    return ForgeAnswer(
        200,
        {
            "permission": PERMISSIONS.get(role, "none"),
            "role_name": role,
            "user": payloads.user(rest.forge, login),
        },
    )


@route("GET", "/orgs/{org}/memberships/{login}")
def get_membership(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    role = rest.account(request.parts["org"]).members.get(request.parts["login"])
    if role is None:
        raise ForgeRefusal(404, "Not Found")
    return ForgeAnswer(200, {"state": "active", "role": role})


@route("GET", "/orgs/{org}/members")
def list_members(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    members = rest.account(request.parts["org"]).members
    return rest.pages(request, "", (payloads.user(rest.forge, login) for login in members))


@route("GET", "/orgs/{org}/teams")
def list_teams(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    teams = rest.account(request.parts["org"]).teams
    return rest.pages(request, "", ({"id": n, "slug": slug, "name": slug} for n, slug in enumerate(teams, 1)))


@route("GET", "/orgs/{org}/teams/{slug}/members")
def list_team_members(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    team = rest.account(request.parts["org"]).teams.get(request.parts["slug"])
    if team is None:
        raise ForgeRefusal(404, "Not Found")
    return rest.pages(request, "", (payloads.user(rest.forge, login) for login in sorted(team)))


@route("GET", "/orgs/{org}/teams/{slug}/memberships/{login}")
def get_team_membership(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    team = rest.account(request.parts["org"]).teams.get(request.parts["slug"], set())
    if request.parts["login"] not in team:
        raise ForgeRefusal(404, "Not Found")
    return ForgeAnswer(200, {"state": "active", "role": "member"})


@route("GET", "/repos/{owner}/{repo}/pulls/{number}")
def get_pull(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository = rest.repository(request)
    pull = repository.pulls.get(number(request, "number"))
    if pull is None:
        raise ForgeRefusal(404, "Not Found")
    return ForgeAnswer(200, payloads.pull(rest.forge, repository, pull))


@route("GET", "/repos/{owner}/{repo}/pulls")
def list_pulls(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, head = rest.repository(request), request.query.get("head", "")
    pulls = [
        pull
        for pull in repository.pulls.values()
        if not head or head == f"{pull.head_repository.partition('/')[0]}:{pull.head_branch}"
    ]
    return rest.pages(request, "", (payloads.pull(rest.forge, repository, pull) for pull in pulls))


@route("GET", "/repos/{owner}/{repo}/commits/{sha}/pulls")
def list_commit_pulls(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository = rest.repository(request)
    pulls = (pull for pull in repository.pulls.values() if pull.head_sha == request.parts["sha"])
    return rest.pages(request, "", (payloads.pull(rest.forge, repository, pull) for pull in pulls))


@route("POST", "/repos/{owner}/{repo}/statuses/{sha}")
def set_status(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, body = rest.repository(request), request.json()
    if body.get("state") not in ("error", "failure", "pending", "success"):
        raise ForgeRefusal(
            422, "Validation Failed", errors=[{"resource": "Status", "field": "state", "code": "invalid"}]
        )
    if len(str(body.get("description") or "")) > 140:
        raise ForgeRefusal(422, "Validation Failed", errors=["description is too long (maximum is 140 characters)"])
    status: dict[str, object] = {
        "id": rest.forge.next_id("status"),
        "state": body["state"],
        "context": body.get("context", "default"),
        "description": body.get("description"),
        "target_url": body.get("target_url"),
    }
    repository.statuses.setdefault(request.parts["sha"], []).append(status)
    return ForgeAnswer(201, status)


@route("GET", "/repos/{owner}/{repo}/commits/{sha}/statuses")
def list_statuses(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    return rest.pages(request, "", reversed(rest.repository(request).statuses.get(request.parts["sha"], [])))


@route("POST", "/repos/{owner}/{repo}/check-runs")
def create_check(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, body = rest.repository(request), request.json()
    if rest.principal.kind is not TokenKind.INSTALLATION:
        raise ForgeRefusal(403, "You must authenticate via a GitHub App.")
    if not body.get("name") or not body.get("head_sha"):
        raise ForgeRefusal(422, "Invalid request.")
    check = {"status": "queued", "conclusion": None, **body, "id": rest.forge.next_id("check")}
    repository.checks[check["id"]] = check
    return ForgeAnswer(201, check)


@route("PATCH", "/repos/{owner}/{repo}/check-runs/{id}")
def update_check(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    check = rest.repository(request).checks.get(number(request, "id"))
    if check is None:
        raise ForgeRefusal(404, "Not Found")
    check.update({key: value for key, value in request.json().items() if key != "id"})
    return ForgeAnswer(200, check)


# -- runners


@route("GET", "/orgs/{org}/actions/runner-groups")
def list_groups(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    groups = rest.account(request.parts["org"]).groups.values()
    rows = (
        {
            "id": group.id,
            "name": group.name,
            "default": group.id == DEFAULT_GROUP,
            "visibility": "all" if group.repositories is None else "selected",
            "allows_public_repositories": True,
        }
        for group in groups
    )
    return rest.pages(request, "runner_groups", rows)


@route("POST", "/repos/{owner}/{repo}/actions/runners/registration-token")
@route("POST", "/orgs/{org}/actions/runners/registration-token")
def make_registration_token(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    owner, repository = rest.place(request)
    return ForgeAnswer(201, token_answer(*rest.gate.make(TokenKind.REGISTRATION, repository or owner)))


@route("POST", "/repos/{owner}/{repo}/actions/runners/remove-token")
@route("POST", "/orgs/{org}/actions/runners/remove-token")
def make_remove_token(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    owner, repository = rest.place(request)
    return ForgeAnswer(201, token_answer(*rest.gate.make(TokenKind.REGISTRATION, repository or owner)))


@route("GET", "/repos/{owner}/{repo}/actions/runners")
@route("GET", "/orgs/{org}/actions/runners")
def list_runners(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    runners = rest.runners_at(request)
    if name := request.query.get("name"):
        runners = [runner for runner in runners if runner.name == name]
    return rest.pages(request, "runners", (payloads.runner(runner) for runner in runners))


@route("GET", "/repos/{owner}/{repo}/actions/runners/{id}")
@route("GET", "/orgs/{org}/actions/runners/{id}")
def get_runner(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    return ForgeAnswer(200, payloads.runner(rest.runner(request)))


@route("DELETE", "/repos/{owner}/{repo}/actions/runners/{id}")
@route("DELETE", "/orgs/{org}/actions/runners/{id}")
def delete_runner(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    runner = rest.runner(request)
    job = rest.forge.jobs.get(runner.job)
    if job and job.status != COMPLETED:
        raise ForgeRefusal(
            422,
            f'Bad request - Runner "{runner.name}" is still running a job"',
            documentation_url="https://docs.github.com/rest/actions/self-hosted-runners",
        )
    rest.forge.remove_runner(runner)
    return ForgeAnswer(204)


@route("POST", "/repos/{owner}/{repo}/actions/runners/generate-jitconfig")
@route("POST", "/orgs/{org}/actions/runners/generate-jitconfig")
def make_jit(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    forge, body = rest.forge, request.json()
    owner, repository = rest.place(request)
    name, labels, group = body.get("name"), body.get("labels"), body.get("runner_group_id")
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        raise ForgeRefusal(422, 'Invalid request.\n\n"name" wasn\'t supplied.' if not name else "name is too long")
    if (
        not isinstance(labels, list)
        or not 1 <= len(labels) <= 100
        or not all(isinstance(label, str) for label in labels)
    ):
        raise ForgeRefusal(422, "Invalid request.\n\nlabels must be an array of 1 to 100 strings")
    if not isinstance(group, int):
        raise ForgeRefusal(422, 'Invalid request.\n\n"runner_group_id" wasn\'t supplied.')
    if repository and not forge.repository_runners:
        raise ForgeRefusal(403, "")
    runner_group = forge.accounts[owner.lower()].groups.get(group)
    if runner_group is None:
        raise ForgeRefusal(404, "Not Found")
    if repository and runner_group.repositories is not None and repository not in runner_group.repositories:
        raise ForgeRefusal(403, "The runner group cannot be used by this repository")
    runner = new_runner(forge, name, owner, repository, tuple(labels), group)
    return ForgeAnswer(201, {"runner": payloads.runner(runner), "encoded_jit_config": jit_config(forge, runner)})


def new_runner(
    forge: Forge, name: str, owner: str, repository: str, labels: tuple[str, ...], group: int, scale_set: int = 0
) -> ForgeRunner:
    """Register a runner. Raises ForgeRefusal: 409 for a name that is taken, 422 for a group that is full."""
    now, place = forge.now(), (owner, repository)
    registered = [runner for runner in forge.runners.values() if (runner.owner, runner.repository) == place]
    if any(runner.name.lower() == name.lower() for runner in registered) or forge.faults.strikes("conflict", name, now):
        raise ForgeRefusal(409, f"Already exists - A runner with the name *** already exists: {name}")
    in_group = sum(1 for runner in registered if runner.group == group)
    if in_group >= forge.settings.runners_in_group or forge.faults.strikes("unprocessable", name, now):
        most = forge.settings.runners_in_group
        raise ForgeRefusal(422, f"Runner group {group} has reached max limit of {most} runners")
    secret = forge.guid("secret").replace("-", "")
    runner = ForgeRunner(
        forge.next_id("runner"), name, owner, repository, labels, group, secret, now, scale_set=scale_set
    )
    forge.register(runner)
    return runner


# -- jobs and runs


@route("GET", "/repos/{owner}/{repo}/actions/jobs/{id}")
def get_job(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository = rest.repository(request)
    job = rest.forge.jobs.get(number(request, "id"))
    if (
        job is None
        or job.repository != repository.full_name
        or rest.forge.faults.strikes("missing", f"job {job.id}", rest.forge.now())
    ):
        raise ForgeRefusal(404, "Not Found")
    return ForgeAnswer(200, payloads.job(rest.forge, job))


@route("GET", "/repos/{owner}/{repo}/actions/runs")
def list_runs(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    repository, status = rest.repository(request), request.query.get("status", "")
    rows = []
    for run in reversed(rest.forge.runs.values()):
        if run.repository == repository.full_name:
            row = payloads.run(rest.forge, run)
            if not status or status in (row["status"], row["conclusion"]):
                rows.append(row)
    filters = {"actor", "branch", "check_suite_id", "created", "event", "head_sha", "status"} & {*request.query}
    return rest.pages(request, "workflow_runs", rows[: rest.forge.settings.filtered_runs] if filters else rows)


@route("GET", "/repos/{owner}/{repo}/actions/runs/{id}")
def get_run(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    return ForgeAnswer(200, payloads.run(rest.forge, rest.run(request)))


def jobs_of(rest: Rest, run: ForgeRun, attempt: int) -> list[ForgeJob]:
    """Return the jobs of one attempt; all when it is 0."""
    return [job for job in map(rest.forge.jobs.__getitem__, run.jobs) if attempt in (0, job.attempt)]


@route("GET", "/repos/{owner}/{repo}/actions/runs/{id}/jobs")
@route("GET", "/repos/{owner}/{repo}/actions/runs/{id}/attempts/{attempt}/jobs")
def list_jobs(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    run = rest.run(request)
    latest = 0 if request.query.get("filter") == "all" else run.attempt
    jobs = jobs_of(rest, run, number(request, "attempt", latest))
    return rest.pages(request, "jobs", (payloads.job(rest.forge, job) for job in jobs))


@route("POST", "/repos/{owner}/{repo}/actions/runs/{id}/cancel")
@route("POST", "/repos/{owner}/{repo}/actions/runs/{id}/force-cancel")
def cancel_run(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    run = rest.run(request)
    unfinished = [job for job in jobs_of(rest, run, run.attempt) if job.status != COMPLETED]
    if not unfinished:
        raise ForgeRefusal(409, "Cannot cancel a workflow run that is completed.")
    for job in unfinished:
        rest.forge.cancel(job)
    return ForgeAnswer(202, {})


@route("POST", "/repos/{owner}/{repo}/actions/runs/{id}/rerun")
@route("POST", "/repos/{owner}/{repo}/actions/runs/{id}/rerun-failed-jobs")
def rerun(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    run = rest.run(request)
    if any(job.status != COMPLETED for job in jobs_of(rest, run, run.attempt)):
        raise ForgeRefusal(403, "This workflow is already running")
    person = rest.principal.subject if rest.principal.kind is TokenKind.PERSON else ""
    rest.forge.rerun(run, failed_only=request.path.endswith("failed-jobs"), actor=person)
    return ForgeAnswer(201, {})
