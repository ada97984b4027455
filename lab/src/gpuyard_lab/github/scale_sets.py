"""Answers the Actions service's protocol of runner scale sets, as https://github.com/actions/scaleset defines it.

A job whose labels a scale set has goes to it: the set's listener hears that it could have the job (JobAvailable), takes
it (acquirejobs), and is told that it has it (JobAssigned). With ``ForgeSettings.offers`` off it is told at once. A set
never has more jobs than the ``X-ScaleSetMaxCapacity`` of its last poll, except those that it had before that fell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

from gpuyard_lab.github.auth import ForgeAuthentication, TokenKind
from gpuyard_lab.github.forge import NAMESPACE, Forge
from gpuyard_lab.github.records import (
    COMPLETED,
    DEFAULT_GROUP,
    IN_PROGRESS,
    QUEUED,
    ForgeJob,
    ForgeRunner,
    ForgeSet,
    QueuedMessage,
)
from gpuyard_lab.github.rest import jit_config, new_runner
from gpuyard_lab.github.routing import Routes
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest, ServiceRefusal

Json = dict[str, Any]
PREFIX = "/_services/pipelines"
REGISTRATION = "/actions/runner-registration"
MOST_IN_MESSAGE = 50
OFFER_AGAIN = timedelta(seconds=60)
"""A job that was available and that nobody took is offered again after this time."""
NEVER = "0001-01-01T00:00:00Z"
RESULTS = {"success": "succeeded", "failure": "failed", "cancelled": "canceled"}
SETS = "/_apis/runtime/runnerscalesets"
AGENTS = "/_apis/distributedtask/pools/0/agents"


class ScaleSets:
    """Answers listeners of scale sets, and gives sets their jobs."""

    def __init__(
        self, forge: Forge, gate: ForgeAuthentication, wait: Callable[[Callable[[], bool], float], bool]
    ) -> None:
        self.forge, self.gate, self.wait = forge, gate, wait
        self._tenants: dict[str, str] = {}
        """Key of an address of the service -> the ``owner`` or ``owner/name`` that it is for."""
        self._routes = Routes(
            [
                ("GET", "/_apis/runtime/runnergroups", self._groups),
                ("GET", SETS, self._list),
                ("POST", SETS, self._create),
                ("GET", SETS + "/{id}", self._get),
                ("PATCH", SETS + "/{id}", self._update),
                ("DELETE", SETS + "/{id}", self._delete),
                ("POST", SETS + "/{id}/sessions", self._open),
                ("PATCH", SETS + "/{id}/sessions/{session}", self._refresh),
                ("DELETE", SETS + "/{id}/sessions/{session}", self._close),
                ("POST", SETS + "/{id}/generatejitconfig", self._jit),
                ("GET", AGENTS, self._agents),
                ("GET", AGENTS + "/{agent}", self._agent),
                ("DELETE", AGENTS + "/{agent}", self._remove_agent),
            ]
        )
        self._queue_routes = Routes(
            [
                ("GET", SETS + "/{id}/messages", self._poll),
                ("DELETE", SETS + "/{id}/messages/{message}", self._acknowledge),
                ("POST", SETS + "/{id}/acquirejobs", self._acquire),
            ]
        )
        forge.listeners.append(self._happened)

    # -- the way in

    def register(self, request: ForgeRequest) -> ForgeAnswer:
        """Answer ``POST /actions/runner-registration``: the service's address and a token for it. Raises
        ForgeRefusal."""
        principal = self.gate.require_service(request, "RemoteAuth", TokenKind.REGISTRATION)
        wanted = str(request.json().get("url", "")).removeprefix(self.forge.url).strip("/")
        if wanted.lower() != principal.subject.lower():
            raise ForgeRefusal(404, "Not Found")
        tenant = uuid5(NAMESPACE, principal.subject).hex
        self._tenants[tenant] = principal.subject
        token, _ = self.gate.make(TokenKind.ADMIN, principal.subject)
        url = f"{self.forge.url}{PREFIX}/{tenant}/"
        return ForgeAnswer(200, {"url": url, "token_schema": "OAuthAccessToken", "token": token})

    def answer(self, request: ForgeRequest) -> ForgeAnswer:
        """Answer a request. Raises ForgeRefusal."""
        tenant, _, path = request.path.removeprefix(PREFIX + "/").partition("/")
        place = self._tenants.get(tenant)
        if place is None:  # nobody was let in here, so the token that came is none of ours
            raise ServiceRefusal(401, "VssUnauthorizedException", "The user is not authorized.")
        if found := self._queue_routes.find(request.method, path):
            handler, parts = found
            return handler(request, self._set_of_session(request, place, parts), parts)
        principal = self.gate.require_service(request, "Bearer", TokenKind.ADMIN)
        found_admin = self._routes.find(request.method, path)
        if principal.subject != place or found_admin is None:
            raise ServiceRefusal(404, "VssResourceNotFoundException", "there is nothing here")
        admin, parts = found_admin
        return admin(request, place, parts)

    def _set(self, place: str, id: str) -> ForgeSet:
        found = self.forge.sets.get(int(id)) if id.isdecimal() and len(id) < 18 else None
        if found is None or (found.repository or found.owner) != place:
            raise ServiceRefusal(
                404, "RunnerScaleSetNotFoundException", f"No runner scale set found with id {id[:20]}."
            )
        return found

    def _set_of_session(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeSet:
        """The scale set whose queue's token came with a request. Raises ServiceRefusal: 401 when it is over."""
        one, now = self._set(place, parts["id"]), self.forge.now()
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.forge.faults.strikes("session_lost", f"set {one.name}", now):
            one.session = ""
        if self.forge.faults.strikes("session_expired", f"set {one.name}", now):
            one.token = ""
        if not one.token or given != one.token or one.token_until is None or one.token_until <= now:
            raise ServiceRefusal(401, "VssUnauthorizedException", "The message queue token is expired.")
        if not one.session or request.query.get("sessionId", one.session) != one.session:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return one

    # -- scale sets

    def _groups(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        wanted = request.query.get("groupName", "").lower()
        groups = self.forge.accounts[place.partition("/")[0].lower()].groups.values()
        rows = [
            {"id": group.id, "name": group.name, "size": 0, "isDefaultGroup": group.id == DEFAULT_GROUP}
            for group in groups
            if wanted in ("", group.name.lower())
        ]
        return ForgeAnswer(200, {"count": len(rows), "value": rows})

    def _list(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        name, group = request.query.get("name", ""), request.query.get("runnerGroupId", "")
        rows = [
            self._shown(scale_set)
            for scale_set in self.forge.sets.values()
            if (scale_set.repository or scale_set.owner) == place
            and name.lower() in ("", scale_set.name.lower())
            and group in ("", str(scale_set.group))
        ]
        return ForgeAnswer(200, {"count": len(rows), "value": rows})

    def _create(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        body = request.json()
        owner, _, name = place.partition("/")
        wanted, group = str(body.get("name") or ""), body.get("runnerGroupId", DEFAULT_GROUP)
        if not wanted or group not in self.forge.accounts[owner.lower()].groups:
            raise ServiceRefusal(400, "ArgumentException", "a scale set needs a name, and a runner group that exists")
        same = [
            scale_set for scale_set in self.forge.sets.values() if (scale_set.repository or scale_set.owner) == place
        ]
        if any(one.name.lower() == wanted.lower() and one.group == group for one in same):
            raise ServiceRefusal(409, "RunnerScaleSetExistsException", f"Runner scale set {wanted} exists already.")
        one = ForgeSet(
            self.forge.next_id("set"), wanted, owner, place if name else "", group, labels_of(body) or (wanted,),
            self.forge.now(),
        )  # fmt: skip
        self.forge.sets[one.id] = one
        self.forge.wake()
        return ForgeAnswer(200, self._shown(one))

    def _get(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        return ForgeAnswer(200, self._shown(self._set(place, parts["id"])))

    def _update(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one, body = self._set(place, parts["id"]), request.json()
        one.name = str(body.get("name") or one.name)
        one.group = body.get("runnerGroupId") or one.group
        one.labels = labels_of(body) or one.labels
        return ForgeAnswer(200, self._shown(one))

    def _delete(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one = self._set(place, parts["id"])
        del self.forge.sets[one.id]
        for job in self.forge.unfinished.values():
            if job.scale_set == one.id and job.status == QUEUED:
                job.scale_set = job.request = 0
                job.assigned = job.available = None
        return ForgeAnswer(204)

    def _shown(self, one: ForgeSet) -> Json:
        group = self.forge.accounts[one.owner.lower()].groups.get(one.group)
        return {
            "id": one.id,
            "name": one.name,
            "runnerGroupId": one.group,
            "runnerGroupName": group.name if group else "",
            "labels": [{"id": number, "name": name, "type": "System"} for number, name in enumerate(one.labels, 1)],
            "RunnerSetting": {"ephemeral": True, "isElastic": True, "disableUpdate": True},
            "createdOn": service_time(one.created),
            "runnerJitConfigUrl": f"{self._base(one)}{SETS}/{one.id}/generatejitconfig",
            "statistics": self.statistics(one),
        }

    def _base(self, one: ForgeSet) -> str:
        return f"{self.forge.url}{PREFIX}/{uuid5(NAMESPACE, one.repository or one.owner).hex}"

    def statistics(self, one: ForgeSet) -> Json:
        """Return the statistics, as with every message: what is true now."""
        mine = [job for job in self.forge.unfinished.values() if job.scale_set == one.id]
        waiting = sum(1 for job in mine if job.status == QUEUED and job.assigned is None)
        runners = [runner for runner in self.forge.runners.values() if runner.scale_set == one.id]
        return {
            "totalAvailableJobs": waiting,
            "totalAcquiredJobs": 0,
            "totalAssignedJobs": self.assigned(one),
            "totalRunningJobs": sum(1 for job in mine if job.status == IN_PROGRESS),
            "totalRegisteredRunners": len(runners),
            "totalBusyRunners": sum(1 for runner in runners if runner.job),
            "totalIdleRunners": sum(1 for runner in runners if runner.online and not runner.job),
        }

    def assigned(self, one: ForgeSet) -> int:
        """Count the jobs that it has, those that run included."""
        return sum(1 for job in self.forge.unfinished.values() if job.scale_set == one.id and job.assigned)

    # -- sessions and messages

    def _open(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one = self._set(place, parts["id"])
        if one.session:
            raise ServiceRefusal(
                409, "RunnerScaleSetSessionConflictException",
                f"The actions runner scale set {one.name} already has an active session for owner {one.session_owner}.",
            )  # fmt: skip
        one.session, one.session_owner = self.forge.guid("session"), str(request.json().get("ownerName", ""))
        return self._session(one)

    def _refresh(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one = self._set(place, parts["id"])
        if not one.session or one.session != parts["session"]:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return self._session(one)

    def _session(self, one: ForgeSet) -> ForgeAnswer:
        now = self.forge.now()
        one.token, one.token_until = self.forge.guid("queue token"), now + self.forge.settings.token
        one.polled = now
        self._link()
        body = {
            "sessionId": one.session,
            "ownerName": one.session_owner,
            "runnerScaleSet": self._shown(one),
            "messageQueueUrl": f"{self._base(one)}{SETS}/{one.id}/messages?sessionId={one.session}",
            "messageQueueAccessToken": one.token,
            "statistics": self.statistics(one),
        }
        return ForgeAnswer(200, body)

    def _close(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one = self._set(place, parts["id"])
        if one.session == parts["session"]:
            one.session = ""
        self.forge.wake()
        return ForgeAnswer(204)

    def _poll(self, request: ForgeRequest, one: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        faults, session = self.forge.faults, one.session
        last, capacity = (
            numeral(text)
            for text in (request.query.get("lastMessageId", "0"), request.headers.get("x-scalesetmaxcapacity", "0"))
        )
        one.polled, one.capacity = self.forge.now(), capacity
        if faults.strikes("poll_broken", f"set {one.name}", self.forge.now()):
            return ForgeAnswer(202, cut="all")
        if one.messages and faults.strikes("message_again", f"set {one.name}", self.forge.now()):
            return self._message(one, one.messages[-1])
        found: list[QueuedMessage] = []

        def something() -> bool:
            if request.gone():  # what there is to say waits for the next poll
                return True
            self.give(one)
            unread = (each for each in one.messages if each.id > last and not each.acknowledged)
            message = next(unread, None) or self._make_message(one)
            if message:
                found.append(message)
            return bool(found) or one.session != session

        self.wait(something, self.forge.settings.poll_s)
        if request.gone():
            return ForgeAnswer(202, cut="all")
        one.polled = self.forge.now()
        if one.session != session:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return self._message(one, found[0]) if found else ForgeAnswer(202)

    def _make_message(self, one: ForgeSet) -> QueuedMessage | None:
        """Make a message of what is pending, unless it gets lost."""
        while message := self.forge.make_message(one, MOST_IN_MESSAGE):
            if not self.forge.faults.strikes("message_lost", f"set {one.name}", self.forge.now()):
                return message
            message.acknowledged = True
        return None

    def _message(self, one: ForgeSet, message: QueuedMessage) -> ForgeAnswer:
        body = {
            "messageId": message.id,
            "messageType": "RunnerScaleSetJobMessages",
            "body": json.dumps(message.events),
            "statistics": self.statistics(one),
        }
        return ForgeAnswer(200, body)

    def _acknowledge(self, request: ForgeRequest, one: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        wanted = numeral(parts["message"])
        for message in one.messages:
            if message.id == wanted:
                message.acknowledged = True
        return ForgeAnswer(204)

    def _acquire(self, request: ForgeRequest, one: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        wanted = request.value()
        if not isinstance(wanted, list):
            raise ServiceRefusal(400, "ArgumentException", "send a list of runner request ids")
        taken = []
        for job in self.forge.unfinished.values():
            if job.request in wanted and job.scale_set == one.id and job.status == QUEUED and job.available:
                if not job.assigned and self.assigned(one) < one.capacity:
                    self._assign(one, job)
                if job.assigned:
                    taken.append(job.request)
        self.forge.wake()
        return ForgeAnswer(200, {"count": len(taken), "value": taken})

    # -- jobs

    def _link(self) -> None:
        """Give each waiting job to the scale set that its labels name."""
        for job in self.forge.unfinished.values():
            if job.status == QUEUED and not job.scale_set and not job.offered and (found := self.forge.set_of(job)):
                job.scale_set, job.request = found.id, self.forge.next_id("request")

    def give(self, one: ForgeSet) -> None:
        """Give a set as many waiting jobs as its capacity allows, the oldest first."""
        self._link()
        now, offers = self.forge.now(), self.forge.settings.offers
        mine = [job for job in self.forge.unfinished.values() if job.scale_set == one.id and job.status == QUEUED]
        known = sum(1 for job in mine if job.available and not job.assigned) if offers else 0
        room = one.capacity - self.assigned(one) - known
        for job in mine:
            if job.assigned or (job.not_before and job.not_before > now):
                continue
            if job.available and now - job.available >= OFFER_AGAIN and offers:
                self._offer(one, job)
            elif not job.available and room > 0:
                room -= 1
                if offers:
                    self._offer(one, job)
                else:
                    self._assign(one, job)

    def _offer(self, one: ForgeSet, job: ForgeJob) -> None:
        job.available = self.forge.now()
        url = f"{self._base(one)}{SETS}/{one.id}/acquirejobs"
        self.forge.add_message(one, self._event(job, "JobAvailable", acquireJobUrl=url))

    def _assign(self, one: ForgeSet, job: ForgeJob) -> None:
        now, faults = self.forge.now(), self.forge.faults
        job.assigned, job.assignments = now, job.assignments + 1
        job.assigned_until = now + self.forge.settings.assignment
        if faults.strikes("assignment_lost", f"job {job.id}", now):
            job.assigned_until = now + timedelta(seconds=faults.cancel_s * faults.draw("assigned for", f"job {job.id}"))
        self.forge.add_message(one, self._event(job, "JobAssigned"))

    def tick(self) -> None:
        """End sessions that nobody polls, and take back assignments that no runner took up."""
        now, settings = self.forge.now(), self.forge.settings
        for scale_set in self.forge.sets.values():
            if scale_set.session and scale_set.polled and now - scale_set.polled >= settings.session_idle:
                scale_set.session = ""
        for job in list(self.forge.unfinished.values()):
            if job.assigned_until and job.assigned_until <= now and job.status == QUEUED and not job.offered:
                self._take_back(job)

    def _take_back(self, job: ForgeJob) -> None:
        """No runner has come for it: JobCompleted, canceled; and it is given again, later each time."""
        now, one = self.forge.now(), self.forge.sets.get(job.scale_set)
        if one:
            self.forge.add_message(one, self._event(job, "JobCompleted", result="canceled", runnerId=0, runnerName=""))
        times = min(job.assignments, self.forge.settings.reassignments)
        job.assigned = job.available = job.assigned_until = None
        job.not_before = now + timedelta(seconds=10 * times)
        job.request = self.forge.next_id("request")

    def _happened(self, job: ForgeJob, action: str) -> None:
        one = self.forge.sets.get(job.scale_set)
        if one is None or not job.assigned:
            return
        runner = {"runnerId": job.runner if job.started else 0, "runnerName": job.runner_name}
        if action == IN_PROGRESS:
            self.forge.add_message(one, self._event(job, "JobStarted", **runner))
        elif action == COMPLETED:
            self.forge.add_message(one, self._event(job, "JobCompleted", result=RESULTS[job.conclusion], **runner))

    def _event(self, job: ForgeJob, kind: str, **more: object) -> dict[str, object]:
        run = self.forge.runs[job.run]
        owner, _, name = job.repository.partition("/")
        return {
            "messageType": kind,
            "runnerRequestId": job.request,
            "repositoryName": name,
            "ownerName": owner,
            "jobId": str(uuid5(NAMESPACE, f"job {job.id}")),
            "jobWorkflowRef": f"{job.repository}/.github/workflows/ci.yml@{self.forge.ref(run)}",
            "jobDisplayName": job.order.name,
            "workflowRunId": job.run,
            "eventName": run.event,
            "requestLabels": list(job.order.labels),
            "queueTime": service_time(job.queued),
            "scaleSetAssignTime": service_time(job.assigned),
            "runnerAssignTime": service_time(job.started),
            "finishTime": service_time(job.completed),
            **more,
        }

    # -- runners

    def _jit(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        one, name = self._set(place, parts["id"]), request.json().get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 64:
            raise ServiceRefusal(400, "ArgumentException", "a runner needs a name of at most 64 characters")
        try:
            runner = new_runner(self.forge, name, one.owner, one.repository, one.labels, one.group, one.id)
        except ForgeRefusal as refusal:
            if refusal.answer.status == 409:
                raise ServiceRefusal(409, "AgentExistsException", f"Agent {name} already exists.") from None
            raise ServiceRefusal(refusal.answer.status, "ArgumentException", str(refusal)) from None
        return ForgeAnswer(200, {"runner": reference(runner), "encodedJITConfig": jit_config(self.forge, runner)})

    def _agents_at(self, place: str) -> list[ForgeRunner]:
        return [runner for runner in self.forge.runners.values() if (runner.repository or runner.owner) == place]

    def _agents(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        wanted = request.query.get("agentName", "").lower()
        rows = [reference(one) for one in self._agents_at(place) if wanted in ("", one.name.lower())]
        return ForgeAnswer(200, {"count": len(rows), "value": rows})

    def _agent_of(self, place: str, id: str) -> ForgeRunner:
        found = next((one for one in self._agents_at(place) if str(one.id) == id), None)
        if found is None or self.forge.faults.strikes("missing", f"runner {found.id}", self.forge.now()):
            raise ServiceRefusal(404, "AgentNotFoundException", f"Agent {id[:20]} does not exist.")
        return found

    def _agent(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        return ForgeAnswer(200, reference(self._agent_of(place, parts["agent"])))

    def _remove_agent(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        runner = self._agent_of(place, parts["agent"])
        job = self.forge.jobs.get(runner.job)
        if job and job.status == IN_PROGRESS:
            raise ServiceRefusal(400, "JobStillRunningException", f"Agent {runner.name} is still running a job.")
        self.forge.remove_runner(runner)
        return ForgeAnswer(204)


def reference(one: ForgeRunner) -> Json:
    return {"id": one.id, "name": one.name, "runnerScaleSetId": one.scale_set}


def labels_of(body: Json) -> tuple[str, ...]:
    """Return the labels in the body of a scale set. Raises ServiceRefusal (400)."""
    rows = body.get("labels") or []
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise ServiceRefusal(400, "ArgumentException", "labels are a list of objects with a name")
    return tuple(row["name"] for row in rows)


def numeral(text: str) -> int:
    """Return a number. Raises ServiceRefusal (400) for anything else."""
    if not text.isdecimal() or len(text) > 18:
        raise ServiceRefusal(400, "ArgumentException", f"{text[:20]!r} is no number")
    return int(text)


def service_time(at: datetime | None) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at else NEVER
