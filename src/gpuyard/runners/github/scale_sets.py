"""Client of runner scale sets: jobs by long poll, without an inbound port. The protocol is that of
github.com/actions/scaleset.

Every method raises GitHubError. A poll carries the number of jobs that the set can have; GitHub answers with a message,
or with nothing after about 50 s, and sends a message again until it is acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gpuyard.runners import fields
from gpuyard.runners.github.answers import JitRunner, RegisteredRunner, RunnerSet, Statistics
from gpuyard.runners.github.api import AGENT, listed
from gpuyard.runners.github.client import GitHubClient, jit_runner
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.messages import (
    JobNotice,
    NoticeKind,
    SessionFacts,
    SetMessage,
    job_updates,
    read_message,
    read_session,
    runner_of_set,
    runner_set,
)
from gpuyard.runners.github.set_service import API_VERSION, SetService
from gpuyard.runtime.http import WireAnswer, WireStop

__all__ = ["JobNotice", "NoticeKind", "ScaleSetClient", "SetMessage", "SetSession", "job_updates"]

SETS = "_apis/runtime/runnerscalesets"
GROUPS = "_apis/runtime/runnergroups/"
AGENTS = "_apis/distributedtask/pools/0/agents"
DEFAULT_GROUP = 1
CAPACITY = "X-ScaleSetMaxCapacity"
POLL_READ = 70.0
POLL_TOTAL = 90.0
"""Seconds that a poll may take. GitHub holds it for 50."""
Done = TypeVar("Done")


class ScaleSetClient:
    """The scale sets of one enrolment. Safe to use from several threads."""

    def __init__(self, github: GitHubClient) -> None:
        self._github = github
        self._service = SetService(github.api, github.enrolment, github.registration_token)

    def ensure(self, name: str, group: str, labels: tuple[str, ...] = ()) -> RunnerSet:
        """Return the scale set of a name in a runner group (by name), made or with its labels mended where that is
        needed. Without `labels` its label is its name. A GitHub that knows one label only leaves out the others."""
        number = self._group(group)
        desired = labels or (name,)
        scale_set = self._named(name, number)
        if scale_set is None:
            body = _body(name, number, desired)
            try:
                answer = self._service.ask("POST", SETS, body=body)
            except GitHubError as error:
                # Made by a call whose answer was lost, or by somebody else at the same time.
                scale_set = (
                    self._named(name, number) if error.kind in {GitHubTrouble.CONFLICT, GitHubTrouble.RETRY} else None
                )
                if scale_set is None:
                    raise
            else:
                return runner_set(_row(answer))
        if {label.lower() for label in scale_set.labels} != {label.lower() for label in desired}:
            answer = self._service.ask("PATCH", f"{SETS}/{scale_set.id}", body=_body(name, number, desired))
            return runner_set(_row(answer))
        return scale_set

    def set_of(self, id: int) -> RunnerSet:
        """Return a scale set with its statistics now."""
        return runner_set(_row(self._service.ask("GET", f"{SETS}/{id}")))

    def delete(self, id: int) -> None:
        """Delete a scale set. Does nothing when it is gone already."""
        _deleted(lambda: self._service.ask("DELETE", f"{SETS}/{id}"))

    def open(self, id: int, owner: str) -> SetSession:
        """Open a session, of which a scale set has one at a time: CONFLICT while another one is open. `owner` names us.
        GitHub ends one that nobody polls after some minutes; `end_session` does at once, with its id."""
        answer = self._service.ask("POST", f"{SETS}/{id}/sessions", body={"ownerName": owner})
        return SetSession(self._service, id, read_session(answer.body))

    def end_session(self, id: int, session: str) -> None:
        """End a session of a scale set that a process before this one has left open. Does nothing when it is over."""
        _deleted(lambda: self._service.ask("DELETE", f"{SETS}/{id}/sessions/{quote(session, safe='')}"))

    def jit(self, id: int, name: str) -> JitRunner:
        """Register a runner of a scale set; as `GitHubClient.jit`."""
        body = {"name": name, "workFolder": "_work"}
        answer = self._service.ask("POST", f"{SETS}/{id}/generatejitconfig", body=body)
        return jit_runner(_row(answer), "encodedJITConfig")

    def runner_named(self, name: str) -> RegisteredRunner | None:
        """Return the registration with a name, or None; this answer has neither `online` and `busy` nor labels."""
        data = _row(self._service.ask("GET", AGENTS, query={"agentName": name}))
        runners = (runner_of_set(row) for row in listed(data, "value", f"GET {AGENTS}"))
        return next((runner for runner in runners if runner.name == name), None)

    def delete_runner(self, id: int) -> bool:
        """Delete a registration. Returns False when it was gone already. CONFLICT while it has a job."""
        return _deleted(lambda: self._service.ask("DELETE", f"{AGENTS}/{id}"))

    def _named(self, name: str, group: int) -> RunnerSet | None:
        data = _row(self._service.ask("GET", SETS, query={"runnerGroupId": group, "name": name}))
        sets = (runner_set(row) for row in listed(data, "value", f"GET {SETS}"))
        return next((scale_set for scale_set in sets if scale_set.name.lower() == name.lower()), None)

    def _group(self, name: str) -> int:
        if name.lower() == "default" or self._github.enrolment.repository:
            return DEFAULT_GROUP
        groups = listed(_row(self._service.ask("GET", GROUPS, query={"groupName": name})), "value", f"GET {GROUPS}")
        number = fields.whole(groups[0], "id") if groups else 0
        if not number:
            raise GitHubError(
                f"{self._github.enrolment.name} has no runner group {name!r}, or the app or token may not see it",
                GitHubTrouble.MISSING,
            )
        return number


class SetSession:
    """A session of one scale set, by which one polls for messages. One thread polls; others may `interrupt` or `stop`
    it."""

    def __init__(self, service: SetService, set_id: int, facts: SessionFacts) -> None:
        self._service = service
        self._set_id = set_id
        self._line = service.line()
        self._stop = WireStop()
        """Of the poll that is under way, or of the next one."""
        self._stopped = False
        self._stopping = threading.Lock()
        self._lock = threading.Lock()
        self._facts = facts
        service.checked(facts.queue_url)

    @property
    def id(self) -> str:
        """The session's id, to be kept for `ScaleSetClient.end_session`, should the process end without `close`."""
        return self._facts.id

    @property
    def statistics(self) -> Statistics:
        """The statistics as of when the session was opened or its token renewed."""
        return self._facts.statistics

    def poll(self, last_message: int, capacity: int) -> SetMessage | None:
        """Return the next message after `last_message`; None when there was none in about 50 s. `capacity`: runners
        that may be had in all, those included that there are. Raises PollEndedError after `interrupt` or `stop`;
        MISSING: open another session."""
        try:
            answer = self._with_token(lambda facts: self._get(facts, last_message, capacity))
        finally:
            with self._stopping:
                if not self._stopped:
                    self._stop = WireStop()
        if answer.status == 202 or (answer.status == 200 and not answer.body):
            return None
        return read_message(answer.body)

    def acknowledge(self, message: int) -> None:
        """Have GitHub forget a message; do so only when its content is stored. Does nothing when it is forgotten
        already."""
        _deleted(lambda: self._with_token(lambda facts: self._delete(facts, message)))

    def acquire(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        """Acquire jobs that are available. Returns the requests that were acquired."""
        if not requests:
            return ()
        answer = self._with_token(
            lambda facts: self._service.ask(
                "POST", f"{SETS}/{self._set_id}/acquirejobs", body=list(requests), bearer=facts.queue_token
            )
        )
        got = _row(answer).get("value")
        return tuple(request for request in requests if request in got) if isinstance(got, list) else ()

    def interrupt(self) -> None:
        """End the poll that is under way, or else the next one as it begins, from another thread. The session goes on,
        and GitHub sends again what it was about to send."""
        with self._stopping:
            self._stop.stop()

    def stop(self) -> None:
        """End the poll that is under way and all that follow, from another thread."""
        with self._stopping:
            self._stopped = True
            self._stop.stop()

    def close(self) -> None:
        """End the session at GitHub, so that another one may be opened at once."""
        self.stop()
        path = f"{SETS}/{self._set_id}/sessions/{quote(self._facts.id, safe='')}"
        _deleted(lambda: self._service.ask("DELETE", path))

    def _get(self, facts: SessionFacts, last_message: int, capacity: int) -> WireAnswer:
        url = _with(facts.queue_url, "", {"lastMessageId": last_message} if last_message > 0 else {})
        headers = {
            "accept": f"application/json; api-version={API_VERSION}",
            "authorization": f"Bearer {facts.queue_token}",
            "user-agent": AGENT,
            CAPACITY: str(max(0, capacity)),
        }
        return self._queue("GET", url, headers, read=POLL_READ, total=POLL_TOTAL, stop=self._stop)

    def _delete(self, facts: SessionFacts, message: int) -> WireAnswer:
        headers = {
            "authorization": f"Bearer {facts.queue_token}",
            "content-type": "application/json",
            "user-agent": AGENT,
        }
        return self._queue("DELETE", _with(facts.queue_url, f"/{message}", {}), headers)

    def _queue(self, method: str, url: str, headers: dict[str, str], **how: Any) -> WireAnswer:
        what = f"{method} of messages of scale set {self._set_id}"
        answer = self._line.ask(method, url, headers, what=what, safe=method == "DELETE", **how)
        if answer.status >= 300:
            raise self._service.trouble(what, answer)
        return answer

    def _with_token(self, call: Callable[[SessionFacts], Done]) -> Done:
        """The token of a session ends before the session does."""
        facts = self._facts
        try:
            return call(facts)
        except GitHubError as error:
            if error.kind is not GitHubTrouble.UNAUTHORIZED:
                raise
        self._renew(facts)
        return call(self._facts)

    def _renew(self, old: SessionFacts) -> None:
        with self._lock:
            if self._facts is old:
                path = f"{SETS}/{self._set_id}/sessions/{quote(old.id, safe='')}"
                facts = read_session(self._service.ask("PATCH", path).body)
                self._service.checked(facts.queue_url)
                self._facts = facts


def _body(name: str, group: int, labels: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "runnerGroupId": group,
        "labels": [{"type": "System", "name": label} for label in labels],
        "RunnerSetting": {"disableUpdate": True},  # it lives for one job: a new image brings a new runner
    }


def _row(answer: WireAnswer) -> Mapping[str, Any]:
    try:
        return fields.row(fields.document(answer.body))
    except ValueError:
        raise GitHubError("the service of scale sets answered with what is no JSON", status=answer.status) from None


def _with(url: str, path: str, query: Mapping[str, object]) -> str:
    parts = urlsplit(url)
    parameters = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in query]
    return urlunsplit((parts.scheme, parts.netloc, parts.path + path, urlencode([*parameters, *query.items()]), ""))


def _deleted(call: Callable[[], object]) -> bool:
    try:
        call()
    except GitHubError as error:
        if error.kind is GitHubTrouble.MISSING:
            return False
        raise
    return True
