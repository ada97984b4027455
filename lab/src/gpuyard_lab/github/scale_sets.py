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
        place = str(request.json().get("url", "")).removeprefix(self.forge.url).strip("/")
        if place.lower() != principal.subject.lower():
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
        if queue_route := self._queue_routes.find(request.method, path):
            handler, parts = queue_route
            return handler(request, self._set_of_session(request, place, parts), parts)
        principal = self.gate.require_service(request, "Bearer", TokenKind.ADMIN)
        found_admin = self._routes.find(request.method, path)
        if principal.subject != place or found_admin is None:
            raise ServiceRefusal(404, "VssResourceNotFoundException", "there is nothing here")
        admin, parts = found_admin
        return admin(request, place, parts)

    def _set(self, place: str, id: str) -> ForgeSet:
        scale_set = self.forge.sets.get(int(id)) if id.isdecimal() and len(id) < 18 else None
        if scale_set is None or (scale_set.repository or scale_set.owner) != place:
            raise ServiceRefusal(
                404, "RunnerScaleSetNotFoundException", f"No runner scale set found with id {id[:20]}."
            )
        return scale_set

    def _set_of_session(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeSet:
        """The scale set whose queue's token came with a request. Raises ServiceRefusal: 401 when it is over."""
        scale_set, now = self._set(place, parts["id"]), self.forge.now()
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.forge.faults.strikes("session_lost", f"set {scale_set.name}", now):
            scale_set.session = ""
        if self.forge.faults.strikes("session_expired", f"set {scale_set.name}", now):
            scale_set.token = ""
        if (
            not scale_set.token
            or token != scale_set.token
            or scale_set.token_until is None
            or scale_set.token_until <= now
        ):
            raise ServiceRefusal(401, "VssUnauthorizedException", "The message queue token is expired.")
        if not scale_set.session or request.query.get("sessionId", scale_set.session) != scale_set.session:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return scale_set

    # -- scale sets

    def _groups(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        group_name = request.query.get("groupName", "").lower()
        groups = self.forge.accounts[place.partition("/")[0].lower()].groups.values()
        rows = [
            {"id": group.id, "name": group.name, "size": 0, "isDefaultGroup": group.id == DEFAULT_GROUP}
            for group in groups
            if group_name in ("", group.name.lower())
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
        set_name, group = str(body.get("name") or ""), body.get("runnerGroupId", DEFAULT_GROUP)
        if not set_name or group not in self.forge.accounts[owner.lower()].groups:
            raise ServiceRefusal(400, "ArgumentException", "a scale set needs a name, and a runner group that exists")
        same = [
            scale_set for scale_set in self.forge.sets.values() if (scale_set.repository or scale_set.owner) == place
        ]
        if any(scale_set.name.lower() == set_name.lower() and scale_set.group == group for scale_set in same):
            raise ServiceRefusal(409, "RunnerScaleSetExistsException", f"Runner scale set {set_name} exists already.")
        scale_set = ForgeSet(
            self.forge.next_id("set"), set_name, owner, place if name else "", group, labels_of(body) or (set_name,),
            self.forge.now(),
        )  # fmt: skip
        self.forge.sets[scale_set.id] = scale_set
        self.forge.wake()
        return ForgeAnswer(200, self._shown(scale_set))

    def _get(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        return ForgeAnswer(200, self._shown(self._set(place, parts["id"])))

    def _update(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        scale_set, body = self._set(place, parts["id"]), request.json()
        scale_set.name = str(body.get("name") or scale_set.name)
        scale_set.group = body.get("runnerGroupId") or scale_set.group
        scale_set.labels = labels_of(body) or scale_set.labels
        return ForgeAnswer(200, self._shown(scale_set))

    def _delete(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        scale_set = self._set(place, parts["id"])
        del self.forge.sets[scale_set.id]
        for job in self.forge.unfinished.values():
            if job.scale_set == scale_set.id and job.status == QUEUED:
                job.scale_set = job.request = 0
                job.assigned = job.available = None
        return ForgeAnswer(204)

    def _shown(self, scale_set: ForgeSet) -> Json:
        group = self.forge.accounts[scale_set.owner.lower()].groups.get(scale_set.group)
        return {
            "id": scale_set.id,
            "name": scale_set.name,
            "runnerGroupId": scale_set.group,
            "runnerGroupName": group.name if group else "",
            "labels": [
                {"id": number, "name": name, "type": "System"} for number, name in enumerate(scale_set.labels, 1)
            ],
            "RunnerSetting": {"ephemeral": True, "isElastic": True, "disableUpdate": True},
            "createdOn": service_time(scale_set.created),
            "runnerJitConfigUrl": f"{self._base(scale_set)}{SETS}/{scale_set.id}/generatejitconfig",
            "statistics": self.statistics(scale_set),
        }

    def _base(self, scale_set: ForgeSet) -> str:
        return f"{self.forge.url}{PREFIX}/{uuid5(NAMESPACE, scale_set.repository or scale_set.owner).hex}"

    def statistics(self, scale_set: ForgeSet) -> Json:
        """Return the statistics, as with every message: what is true now."""
        mine = [job for job in self.forge.unfinished.values() if job.scale_set == scale_set.id]
        waiting = sum(1 for job in mine if job.status == QUEUED and job.assigned is None)
        runners = [runner for runner in self.forge.runners.values() if runner.scale_set == scale_set.id]
        return {
            "totalAvailableJobs": waiting,
            "totalAcquiredJobs": 0,
            "totalAssignedJobs": self.assigned(scale_set),
            "totalRunningJobs": sum(1 for job in mine if job.status == IN_PROGRESS),
            "totalRegisteredRunners": len(runners),
            "totalBusyRunners": sum(1 for runner in runners if runner.job),
            "totalIdleRunners": sum(1 for runner in runners if runner.online and not runner.job),
        }

    def assigned(self, scale_set: ForgeSet) -> int:
        """Count the jobs that it has, those that run included."""
        return sum(1 for job in self.forge.unfinished.values() if job.scale_set == scale_set.id and job.assigned)

    # -- sessions and messages

    def _open(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        scale_set = self._set(place, parts["id"])
        if scale_set.session:
            raise ServiceRefusal(
                409, "RunnerScaleSetSessionConflictException",
                f"The actions runner scale set {scale_set.name} already has an active session for owner "
                f"{scale_set.session_owner}.",
            )  # fmt: skip
        scale_set.session, scale_set.session_owner = (
            self.forge.guid("session"),
            str(request.json().get("ownerName", "")),
        )
        return self._session(scale_set)

    def _refresh(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        scale_set = self._set(place, parts["id"])
        if not scale_set.session or scale_set.session != parts["session"]:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return self._session(scale_set)

    def _session(self, scale_set: ForgeSet) -> ForgeAnswer:
        now = self.forge.now()
        scale_set.token, scale_set.token_until = self.forge.guid("queue token"), now + self.forge.settings.token
        scale_set.polled = now
        self._link()
        body = {
            "sessionId": scale_set.session,
            "ownerName": scale_set.session_owner,
            "runnerScaleSet": self._shown(scale_set),
            "messageQueueUrl": f"{self._base(scale_set)}{SETS}/{scale_set.id}/messages?sessionId={scale_set.session}",
            "messageQueueAccessToken": scale_set.token,
            "statistics": self.statistics(scale_set),
        }
        return ForgeAnswer(200, body)

    def _close(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        scale_set = self._set(place, parts["id"])
        if scale_set.session == parts["session"]:
            scale_set.session = ""
        self.forge.wake()
        return ForgeAnswer(204)

    def _poll(self, request: ForgeRequest, scale_set: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        faults, session = self.forge.faults, scale_set.session
        last, capacity = (
            numeral(text)
            for text in (request.query.get("lastMessageId", "0"), request.headers.get("x-scalesetmaxcapacity", "0"))
        )
        scale_set.polled, scale_set.capacity = self.forge.now(), capacity
        if faults.strikes("poll_broken", f"set {scale_set.name}", self.forge.now()):
            return ForgeAnswer(202, cut="all")
        if scale_set.messages and faults.strikes("message_again", f"set {scale_set.name}", self.forge.now()):
            return self._message(scale_set, scale_set.messages[-1])
        messages: list[QueuedMessage] = []

        def something() -> bool:
            if request.gone():  # what there is to say waits for the next poll
                return True
            self.give(scale_set)
            unread = (queued for queued in scale_set.messages if queued.id > last and not queued.acknowledged)
            message = next(unread, None) or self._make_message(scale_set)
            if message:
                messages.append(message)
            return bool(messages) or scale_set.session != session

        self.wait(something, self.forge.settings.poll_s)
        if request.gone():
            return ForgeAnswer(202, cut="all")
        scale_set.polled = self.forge.now()
        if scale_set.session != session:
            raise ServiceRefusal(404, "RunnerScaleSetSessionNotFoundException", "The session is gone.")
        return self._message(scale_set, messages[0]) if messages else ForgeAnswer(202)

    def _make_message(self, scale_set: ForgeSet) -> QueuedMessage | None:
        """Make a message of what is pending, unless it gets lost."""
        while message := self.forge.make_message(scale_set, MOST_IN_MESSAGE):
            if not self.forge.faults.strikes("message_lost", f"set {scale_set.name}", self.forge.now()):
                return message
            message.acknowledged = True
        return None

    def _message(self, scale_set: ForgeSet, message: QueuedMessage) -> ForgeAnswer:
        body = {
            "messageId": message.id,
            "messageType": "RunnerScaleSetJobMessages",
            "body": json.dumps(message.events),
            "statistics": self.statistics(scale_set),
        }
        return ForgeAnswer(200, body)

    def _acknowledge(self, request: ForgeRequest, scale_set: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        message_id = numeral(parts["message"])
        for message in scale_set.messages:
            if message.id == message_id:
                message.acknowledged = True
        return ForgeAnswer(204)

    def _acquire(self, request: ForgeRequest, scale_set: ForgeSet, parts: dict[str, str]) -> ForgeAnswer:
        request_ids = request.value()
        if not isinstance(request_ids, list):
            raise ServiceRefusal(400, "ArgumentException", "send a list of runner request ids")
        taken = []
        for job in self.forge.unfinished.values():
            if job.request in request_ids and job.scale_set == scale_set.id and job.status == QUEUED and job.available:
                if not job.assigned and self.assigned(scale_set) < scale_set.capacity:
                    self._assign(scale_set, job)
                if job.assigned:
                    taken.append(job.request)
        self.forge.wake()
        return ForgeAnswer(200, {"count": len(taken), "value": taken})

    # -- jobs

    def _link(self) -> None:
        """Give each waiting job to the scale set that its labels name."""
        for job in self.forge.unfinished.values():
            if job.status == QUEUED and not job.scale_set and not job.offered and (scale_set := self.forge.set_of(job)):
                job.scale_set, job.request = scale_set.id, self.forge.next_id("request")

    def give(self, scale_set: ForgeSet) -> None:
        """Give a set as many waiting jobs as its capacity allows, the oldest first."""
        self._link()
        now, offers = self.forge.now(), self.forge.settings.offers
        mine = [job for job in self.forge.unfinished.values() if job.scale_set == scale_set.id and job.status == QUEUED]
        offered = sum(1 for job in mine if job.available and not job.assigned) if offers else 0
        room = scale_set.capacity - self.assigned(scale_set) - offered
        for job in mine:
            if job.assigned or (job.not_before and job.not_before > now):
                continue
            if job.available and now - job.available >= OFFER_AGAIN and offers:
                self._offer(scale_set, job)
            elif not job.available and room > 0:
                room -= 1
                if offers:
                    self._offer(scale_set, job)
                else:
                    self._assign(scale_set, job)

    def _offer(self, scale_set: ForgeSet, job: ForgeJob) -> None:
        job.available = self.forge.now()
        url = f"{self._base(scale_set)}{SETS}/{scale_set.id}/acquirejobs"
        self.forge.add_message(scale_set, self._event(job, "JobAvailable", acquireJobUrl=url))

    def _assign(self, scale_set: ForgeSet, job: ForgeJob) -> None:
        now, faults = self.forge.now(), self.forge.faults
        job.assigned, job.assignments = now, job.assignments + 1
        job.assigned_until = now + self.forge.settings.assignment
        if faults.strikes("assignment_lost", f"job {job.id}", now):
            job.assigned_until = now + timedelta(seconds=faults.cancel_s * faults.draw("assigned for", f"job {job.id}"))
        self.forge.add_message(scale_set, self._event(job, "JobAssigned"))

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
        now, scale_set = self.forge.now(), self.forge.sets.get(job.scale_set)
        if scale_set:
            self.forge.add_message(
                scale_set, self._event(job, "JobCompleted", result="canceled", runnerId=0, runnerName="")
            )
        times = min(job.assignments, self.forge.settings.reassignments)
        job.assigned = job.available = job.assigned_until = None
        job.not_before = now + timedelta(seconds=10 * times)
        job.request = self.forge.next_id("request")

    def _happened(self, job: ForgeJob, action: str) -> None:
        scale_set = self.forge.sets.get(job.scale_set)
        if scale_set is None or not job.assigned:
            return
        runner = {"runnerId": job.runner if job.started else 0, "runnerName": job.runner_name}
        if action == IN_PROGRESS:
            self.forge.add_message(scale_set, self._event(job, "JobStarted", **runner))
        elif action == COMPLETED:
            self.forge.add_message(
                scale_set, self._event(job, "JobCompleted", result=RESULTS[job.conclusion], **runner)
            )

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
        scale_set, name = self._set(place, parts["id"]), request.json().get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 64:
            raise ServiceRefusal(400, "ArgumentException", "a runner needs a name of at most 64 characters")
        try:
            runner = new_runner(
                self.forge, name, scale_set.owner, scale_set.repository, scale_set.labels, scale_set.group, scale_set.id
            )
        except ForgeRefusal as refusal:
            if refusal.answer.status == 409:
                raise ServiceRefusal(409, "AgentExistsException", f"Agent {name} already exists.") from None
            raise ServiceRefusal(refusal.answer.status, "ArgumentException", str(refusal)) from None
        return ForgeAnswer(200, {"runner": reference(runner), "encodedJITConfig": jit_config(self.forge, runner)})

    def _agents_at(self, place: str) -> list[ForgeRunner]:
        return [runner for runner in self.forge.runners.values() if (runner.repository or runner.owner) == place]

    def _agents(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        agent_name = request.query.get("agentName", "").lower()
        rows = [reference(runner) for runner in self._agents_at(place) if agent_name in ("", runner.name.lower())]
        return ForgeAnswer(200, {"count": len(rows), "value": rows})

    def _agent_of(self, place: str, id: str) -> ForgeRunner:
        runner = next((runner for runner in self._agents_at(place) if str(runner.id) == id), None)
        if runner is None or self.forge.faults.strikes("missing", f"runner {runner.id}", self.forge.now()):
            raise ServiceRefusal(404, "AgentNotFoundException", f"Agent {id[:20]} does not exist.")
        return runner

    def _agent(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        return ForgeAnswer(200, reference(self._agent_of(place, parts["agent"])))

    def _remove_agent(self, request: ForgeRequest, place: str, parts: dict[str, str]) -> ForgeAnswer:
        runner = self._agent_of(place, parts["agent"])
        job = self.forge.jobs.get(runner.job)
        if job and job.status == IN_PROGRESS:
            raise ServiceRefusal(400, "JobStillRunningException", f"Agent {runner.name} is still running a job.")
        self.forge.remove_runner(runner)
        return ForgeAnswer(204)


def reference(runner: ForgeRunner) -> Json:
    return {"id": runner.id, "name": runner.name, "runnerScaleSetId": runner.scale_set}


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
