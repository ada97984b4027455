"""Client of GitHub's REST API for one enrolment, with the calls that runners need. Safe to use from several threads.

Every method raises GitHubError. Arguments named `repository` are ``owner/name``; for runners, empty means the
organisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from gpuyard.runners import fields
from gpuyard.runners.github.answers import (
    CallCount,
    Hook,
    HookAttempt,
    HookAttempts,
    JitRunner,
    PullRequest,
    RegisteredRunner,
    RegistrationToken,
    Repository,
    RepositoryFile,
    RepositoryPage,
    WorkflowRun,
)
from gpuyard.runners.github.api import RestApi, listed
from gpuyard.runners.github.credentials import owner_path
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.jobs import JobUpdate, workflow_job
from gpuyard.runners.webhook import JOB_EVENT
from gpuyard.site.runner_rules import Enrolment

RAW = {"accept": "application/vnd.github.raw+json"}
MOST_FILE_BYTES = 1 << 20
MOST_RUNS = 300
"""Runs of a repository that are looked at, of each status."""
MOST_HOOKS = 20
MOST_CURSOR = 500
"""Characters of a cursor."""
REPOSITORY_GROUP = 1
"""The group of a repository's runners, which are in none: GitHub wants a number all the same."""
FORBIDDEN = (
    "; a runner of one repository needs 'Administration: write' there, and an organisation may forbid such runners "
    "(Settings, Actions, General, Runners): a scale set needs neither"
)
DESCRIPTION = 140
"""Characters that GitHub takes in a commit status."""


class GitHubClient:
    """The calls of one enrolment, which says where GitHub is and with which credentials."""

    def __init__(self, enrolment: Enrolment, api: RestApi | None = None) -> None:
        """`api`: one with other clocks or limits than the usual ones."""
        self.enrolment = enrolment
        self.api = api or RestApi(enrolment)
        self.host = enrolment.url.partition("://")[2].lower()
        self._groups: dict[str, int] = {}
        self._all_repositories: bool | None = None

    def repositories(self, page: int = 1) -> RepositoryPage:
        """Return a page of the repositories that are enrolled and that the app or token can see; archived ones are left
        out. The oldest first, so that pages stay as they are when there are more. GitHub's pages have 100, before any
        is left out."""
        if self.enrolment.repository:
            rows, more = [fields.row(self.api.ask("GET", _repository(self.enrolment.repository)).data)], ""
        elif self.enrolment.app:
            rows, more = self.api.page("/installation/repositories", "repositories", query={"page": page})
        else:
            rows, more = self._of_organization(page, "created", "asc")
        return self._enrolled(rows, more)

    def pushed_repositories(self, page: int = 1) -> RepositoryPage:
        """Return a page of the same, those first that were pushed to last; nothing where an app was installed for some
        repositories only: GitHub sorts no list of those."""
        if self.enrolment.repository or (self.enrolment.app and not self._sees_all()):
            return RepositoryPage(())
        return self._enrolled(*self._of_organization(page, "pushed", "desc"))

    def _of_organization(self, page: int, sort: str, direction: str) -> tuple[list[Mapping[str, Any]], str]:
        query = {"type": "all", "sort": sort, "direction": direction, "page": page}
        return self.api.page(f"{owner_path(self.enrolment)}/repos", query=query)

    def _sees_all(self) -> bool:
        """Return whether the app was installed for all repositories. Asked once."""
        if self._all_repositories is None:
            data = fields.row(self.api.ask("GET", "/installation/repositories", query={"per_page": 1}).data)
            self._all_repositories = fields.text(data, "repository_selection", 20) == "all"
        return self._all_repositories

    def _enrolled(self, rows: Sequence[Mapping[str, Any]], more: str) -> RepositoryPage:
        repositories = [_repository_row(row) for row in rows]
        enrolled = [
            repository
            for repository in repositories
            if repository.name and not repository.archived and self.enrolment.includes(repository.name)
        ]
        pushes = [repository.pushed for repository in repositories if repository.pushed]
        return RepositoryPage(tuple(enrolled), bool(more), min(pushes, default=None))

    def repository(self, name: str) -> Repository | None:
        """Return a repository; None when there is none, or none that the app or token may see."""
        data = self._or_none(_repository(name))
        return None if data is None else _repository_row(fields.row(data))

    def granted(self) -> Mapping[str, str] | None:
        """Return the permissions of the app where it is installed, name -> access; None for a token, whose permissions
        GitHub does not report."""
        if self.enrolment.app is None:
            return None
        installation = fields.row(self.api.ask("GET", f"{owner_path(self.enrolment)}/installation", as_app=True).data)
        return {
            name: access for name, access in fields.row(installation, "permissions").items() if isinstance(access, str)
        }

    # Runners

    def jit(self, name: str, labels: tuple[str, ...], repository: str = "") -> JitRunner:
        """Register a runner, in the enrolment's runner group when it is the organisation's. The name must be fresh:
        CONFLICT when it is taken. When the answer is lost (RETRY), the registration may be there all the same: look for
        the name, delete it, and take another name."""
        group = REPOSITORY_GROUP if self._of_repository(repository) else self.group(self.enrolment.runner_group)
        body = {"name": name, "runner_group_id": group, "labels": list(labels), "work_folder": "_work"}
        try:
            data = self.api.ask("POST", f"{self._runners(repository)}/generate-jitconfig", body=body).data
        except GitHubError as error:
            self._groups.clear()
            if error.status == 403 and error.kind is GitHubTrouble.REFUSED and self._of_repository(repository):
                raise GitHubError(f"{error}{FORBIDDEN}", error.kind, status=403) from None
            raise _conflict_when(error, "already exists") from None
        return jit_runner(data, "encoded_jit_config")

    def group(self, name: str) -> int:
        """Return the id of a runner group of the organisation. Asked once for each name."""
        key = name.lower()
        if key not in self._groups:
            rows = self.api.pages(f"{owner_path(self.enrolment)}/actions/runner-groups", "runner_groups")
            self._groups |= {fields.text(row, "name", 256).lower(): fields.whole(row, "id") for row in rows}
        if not self._groups.get(key):
            names = ", ".join(sorted(self._groups)) or "none that the app or token may see"
            raise GitHubError(
                f"{self.enrolment.name} has no runner group {name!r}; it has: {names}", GitHubTrouble.MISSING
            )
        return self._groups[key]

    def runners(self, repository: str = "") -> list[RegisteredRunner]:
        return [_runner(row) for row in self.api.pages(self._runners(repository), "runners")]

    def runner_named(self, name: str, repository: str = "") -> RegisteredRunner | None:
        runners = (_runner(row) for row in self.api.pages(self._runners(repository), "runners", query={"name": name}))
        return next((runner for runner in runners if runner.name == name), None)

    def runner(self, id: int, repository: str = "") -> RegisteredRunner | None:
        data = self._or_none(f"{self._runners(repository)}/{id}")
        return None if data is None else _runner(data)

    def delete_runner(self, id: int, repository: str = "") -> bool:
        """Delete a registration. Returns False when it was gone already. CONFLICT while it has a job."""
        try:
            self.api.ask("DELETE", f"{self._runners(repository)}/{id}")
        except GitHubError as error:
            if error.kind is GitHubTrouble.MISSING:
                return False
            raise _conflict_when(error, "") from None
        return True

    def registration_token(self) -> RegistrationToken:
        """Return a registration token for a scale set's client."""
        data = fields.row(self.api.ask("POST", f"{self._runners('')}/registration-token").data)
        token, expires = fields.text(data, "token"), fields.moment(data, "expires_at")
        if not token or expires is None:
            raise GitHubError("GitHub gave no registration token that can be read")
        return RegistrationToken(token, expires)

    # Files

    def file(self, repository: str, path: str, etag: str = "", ref: str = "") -> RepositoryFile:
        """Return a file of a branch, tag or commit, or of the default branch. `etag` is that of the answer before.
        REFUSED when it is no text or too large."""
        where = f"{_repository(repository)}/contents/{quote(path)}"
        try:
            reply = self.api.ask(
                "GET", where, query={"ref": ref} if ref else None, raw=True, most=MOST_FILE_BYTES,
                headers=RAW | ({"if-none-match": etag} if etag else {}),
            )  # fmt: skip
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            return RepositoryFile(None)
        if reply.status == 304:
            return RepositoryFile(None, etag, same=True)
        now = reply.headers.get("etag", "")[:200]
        if isinstance(reply.data, list):  # a folder
            return RepositoryFile(None, now)
        try:
            return RepositoryFile(reply.body.decode(), now)
        except UnicodeDecodeError:
            raise GitHubError(f"{repository}: {path} is not text in UTF-8", GitHubTrouble.REFUSED) from None

    # Jobs and runs

    def job(self, repository: str, id: int) -> JobUpdate | None:
        """Return a workflow job as it is now; None when GitHub has it no more."""
        data = self._or_none(f"{_repository(repository)}/actions/jobs/{id}")
        return None if data is None else self._job(data, repository)

    def waiting_runs(self, repository: str) -> list[int]:
        """Return the ids of runs that are queued or in progress, the oldest first, at most MOST_RUNS of each: 2 calls
        at least."""
        runs: dict[int, None] = {}
        for status in ("queued", "in_progress"):
            rows = self.api.pages(f"{_repository(repository)}/actions/runs", "workflow_runs", query={"status": status})
            runs |= dict.fromkeys(fields.whole(row, "id") for row in islice(rows, MOST_RUNS))
        return sorted(filter(None, runs))

    def jobs_of(self, repository: str, run: int) -> list[JobUpdate]:
        """Return the jobs of the last attempt of a run."""
        where = f"{_repository(repository)}/actions/runs/{run}/jobs"
        updates = (self._job(row, repository) for row in self.api.pages(where, "jobs", query={"filter": "latest"}))
        return [update for update in updates if update]

    def run(self, repository: str, id: int) -> WorkflowRun:
        data = fields.row(self.api.ask("GET", f"{_repository(repository)}/actions/runs/{id}").data)
        actor = fields.text(fields.row(data, "triggering_actor") or fields.row(data, "actor"), "login", 100)
        return WorkflowRun(
            id=fields.whole(data, "id"),
            attempt=fields.whole(data, "run_attempt") or 1,
            event=fields.text(data, "event", 64),
            actor=actor,
            status=fields.text(data, "status", 40),
            head_repository=fields.repository(fields.row(data, "head_repository"), "full_name"),
            head_branch=fields.text(data, "head_branch", 256),
            head_sha=fields.text(data, "head_sha", 64),
        )

    def cancel_run(self, repository: str, id: int) -> None:
        """Cancel a run. CONFLICT when it is over."""
        self.api.ask("POST", f"{_repository(repository)}/actions/runs/{id}/cancel")

    # People and pull requests

    def pull_requests_of(self, repository: str, owner: str, branch: str) -> list[PullRequest]:
        """Return pull requests whose code is the branch of a repository of `owner`, newest first, at most 100."""
        query = {"head": f"{owner}:{branch}", "state": "all", "per_page": 100}
        path = f"{_repository(repository)}/pulls"
        rows = listed(self.api.ask("GET", path, query=query).data, "", f"GET {path}")
        return [_pull_request(row, repository) for row in rows]

    def role(self, repository: str, user: str) -> str:
        """Return a user's role: ``admin``, ``maintain``, ``write``, ``triage``, ``read``, an organisation's own word,
        or ``none``."""
        permission = self._or_none(f"{_repository(repository)}/collaborators/{quote(user, safe='')}/permission")
        if permission is None:
            return "none"
        return fields.text(permission, "role_name", 100) or fields.text(permission, "permission", 100) or "none"

    def in_team(self, team: str, user: str) -> bool:
        """Return whether a user is an active member of one of the organisation's teams, named by its slug."""
        where = f"/orgs/{quote(self.enrolment.owner, safe='')}/teams/{quote(team, safe='')}/memberships"
        membership = self._or_none(f"{where}/{quote(user, safe='')}")
        return membership is not None and fields.text(membership, "state", 40) == "active"

    # Webhooks

    def hooks(self) -> list[Hook]:
        """Return the webhooks that send jobs: the app's own, or those of the organisation or repository."""
        if self.enrolment.app:
            return [Hook("/app/hook/deliveries")]
        where = f"{owner_path(self.enrolment)}/hooks"
        hooks = [
            Hook(f"{where}/{fields.whole(row, 'id')}/deliveries", fields.text(fields.row(row, "config"), "url"))
            for row in islice(self.api.pages(where), MOST_HOOKS)
            if {JOB_EVENT, "*"} & {*fields.texts(row, "events")} and row.get("active") is not False
        ]
        return hooks

    def deliveries(self, hook: Hook, cursor: str = "") -> HookAttempts:
        """Return a page of what a webhook has sent, the newest first. GitHub's filter by ``status=failure`` is of no
        use here: it leaves out deliveries whose receiver gave no answer at all, which have the status code 0."""
        rows, more = self.api.page(hook.path, query={"cursor": cursor}, as_app=_as_app(hook))
        next_cursor = parse_qs(urlsplit(more).query).get("cursor", [""])[0] if more else ""
        return HookAttempts(tuple(filter(None, map(_attempt, rows))), next_cursor[:MOST_CURSOR])

    def redeliver(self, hook: Hook, delivery: int) -> None:
        """Have GitHub deliver a webhook again, with the same GUID."""
        self.api.ask("POST", f"{hook.path}/{delivery}/attempts", as_app=_as_app(hook))

    # What people see

    def set_status(self, repository: str, sha: str, state: str, description: str, context: str, url: str = "") -> None:
        """Set a commit status. `state`: ``pending``, ``success``, ``failure`` or ``error``; `description` is cut to 140
        characters."""
        body = {"state": state, "description": description[:DESCRIPTION], "context": context}
        path = f"{_repository(repository)}/statuses/{quote(sha, safe='')}"
        self.api.ask("POST", path, body=body | ({"target_url": url} if url else {}))

    def usage(self) -> CallCount:
        return self.api.usage()

    def close(self) -> None:
        """End connections, and calls that are under way."""
        self.api.wire.close()

    def _of_repository(self, repository: str) -> str:
        return repository or self.enrolment.repository or ""

    def _runners(self, repository: str) -> str:
        own = self._of_repository(repository)
        return f"{_repository(own) if own else owner_path(self.enrolment)}/actions/runners"

    def _or_none(self, path: str) -> Mapping[str, Any] | None:
        try:
            return fields.row(self.api.ask("GET", path).data)
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            return None

    def _job(self, row: Mapping[str, Any], repository: str) -> JobUpdate | None:
        return workflow_job(row, repository, self.enrolment.name, self.host)


def jit_runner(data: Any, key: str) -> JitRunner:
    """Read a registration from an answer; `key` is the answer's name for the configuration. Raises GitHubError."""
    row = fields.row(data)
    runner, encoded = fields.row(row, "runner"), fields.text(row, key, 1 << 20)
    if not fields.whole(runner, "id") or not encoded:
        raise GitHubError("GitHub registered a runner and gave no configuration that can be read")
    return JitRunner(fields.whole(runner, "id"), fields.text(runner, "name", 256), encoded)


def _repository_row(row: Mapping[str, Any]) -> Repository:
    return Repository(
        fields.repository(row, "full_name"),
        fields.text(row, "default_branch", 256) or "main",
        row.get("private") is not False,  # what is not said is taken for private
        fields.truth(row, "archived"),
        fields.moment(row, "pushed_at"),
    )


def _repository(name: str) -> str:
    """Raises GitHubError for what is no name of a repository: it may come from a webhook."""
    if not fields.repository({"name": name}, "name"):
        raise GitHubError(f"{name[:200]!r} is no name of a repository", GitHubTrouble.REFUSED)
    return f"/repos/{name}"


def _runner(row: Mapping[str, Any]) -> RegisteredRunner:
    return RegisteredRunner(
        fields.whole(row, "id"),
        fields.text(row, "name", 256),
        fields.text(row, "status", 40) == "online",
        fields.truth(row, "busy"),
        fields.texts(row, "labels"),
    )


def _pull_request(row: Mapping[str, Any], repository: str) -> PullRequest:
    head = fields.row(row, "head")
    source = fields.repository(fields.row(head, "repo"), "full_name")
    return PullRequest(
        fields.whole(row, "number"),
        fields.text(fields.row(row, "user"), "login", 100),
        fields.text(row, "author_association", 40) or "NONE",
        source,
        fields.text(head, "sha", 64),
        source.lower() != repository.lower(),
    )


def _attempt(row: Mapping[str, Any]) -> HookAttempt | None:
    delivered = fields.moment(row, "delivered_at")
    if delivered is None:
        return None
    return HookAttempt(
        fields.whole(row, "id"),
        fields.text(row, "guid", 64),
        fields.text(row, "event", 64),
        delivered,
        200 <= fields.whole(row, "status_code") < 300,
        fields.truth(row, "redelivery"),
        fields.text(row, "action", 40),
    )


def _as_app(hook: Hook) -> bool:
    return hook.path.startswith("/app/")


def _conflict_when(error: GitHubError, words: str) -> GitHubError:
    """GitHub says 422 to a name that is taken and to a runner that has a job."""
    if error.status == 422 and words in str(error):
        return GitHubError(str(error), GitHubTrouble.CONFLICT, status=422)
    return error
