"""Assembles the whole stand-in, without a socket: a request in, an answer out, and what time does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from gpuyard_lab.github import control, permissions, rest, rest_hooks, runner_sessions, scale_sets
from gpuyard_lab.github.auth import ForgeAuthentication, Principal
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.forge import Forge, ForgeSettings
from gpuyard_lab.github.routing import Routes
from gpuyard_lab.github.webhooks import Webhooks
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest

API = "/api/v3"
ROUTES = Routes([*rest.ROUTES, *rest_hooks.ROUTES])
LONGEST_WAIT_S = 1.0
"""Seconds after which a long poll checks again, for what time alone brings about."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class StandIn:
    """A GitHub. ``handle`` answers one request; ``tick`` does what time does. Both may be called by many threads."""

    def __init__(
        self,
        now: Callable[[], datetime] = utc_now,
        faults: Faults | None = None,
        settings: ForgeSettings | None = None,
        url: str = "http://github.test",
        runner_url: str = "",
    ) -> None:
        self.forge = Forge(now, faults, settings, url, runner_url)
        self.gate = ForgeAuthentication(self.forge)
        self.hooks = Webhooks(self.forge)
        self.control = control.Control(self.forge)
        self._rest = rest.Rest(self.forge, self.gate, self.hooks)
        self.sets = scale_sets.ScaleSets(self.forge, self.gate, self.wait)
        self._runners = runner_sessions.RunnerSide(self.forge, self.wait)
        self.closed = False

    def handle(self, request: ForgeRequest) -> ForgeAnswer:
        """Return the answer to a request, however it goes wrong. Waits when it is a long poll."""
        with self.forge.lock:
            try:
                if request.path.startswith(control.PREFIX + "/"):
                    return self.control.answer(request)
                return self._faulty(request)
            except ForgeRefusal as refusal:
                return refusal.answer

    def tick(self) -> None:
        with self.forge.lock:
            self.forge.tick()
            self.sets.tick()

    def close(self) -> None:
        """Release those who wait in a long poll."""
        with self.forge.lock:
            self.closed = True
            self.forge.wake()

    def wait(self, condition: Callable[[], bool], longest_s: float) -> bool:
        """Wait until something is true, at most so long; returns whether it is. Others work meanwhile."""
        deadline = time.monotonic() + longest_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or self.closed:
                return False
            self.forge.changed.wait(min(left, LONGEST_WAIT_S))
        return True

    # -- requests, and what goes wrong with them

    def _faulty(self, request: ForgeRequest) -> ForgeAnswer:
        faults, now = self.forge.faults, self.forge.now()
        subject = f"{request.method} {request.path}"
        if faults.strikes("broken", subject, now):
            status = (500, 502, 503)[int(3 * faults.draw("broken with", subject))]
            return ForgeAnswer(status, b"<html><body>Unicorn!</body></html>", {"content-type": "text/html"})
        answer = self._answer(request, subject)
        if faults.strikes("slow", subject, now):
            answer = replace(answer, delay_s=faults.slow_s * faults.draw("slow by", subject))
        if faults.strikes("reply_lost", subject, now):
            return replace(answer, cut="all")
        if faults.strikes("reply_half", subject, now):
            return replace(answer, cut="half")
        return answer

    def _answer(self, request: ForgeRequest, subject: str) -> ForgeAnswer:
        try:
            if request.path.startswith(runner_sessions.PREFIX + "/"):
                return self._runners.answer(request)
            if request.path.startswith(scale_sets.PREFIX + "/"):
                self._refuse_at_random(subject)
                return self.sets.answer(request)
            if request.path.removeprefix(API) == scale_sets.REGISTRATION and request.method == "POST":
                return self.sets.register(request)
            return self._answer_rest(request, subject)
        except ForgeRefusal as refusal:
            return refusal.answer

    def _answer_rest(self, request: ForgeRequest, subject: str) -> ForgeAnswer:
        path = request.path.removeprefix(API) or "/"
        self._refuse_at_random(subject)
        principal = self.gate.require(request)
        headers = self.gate.limit(principal.subject)
        route = ROUTES.find(request.method, path)
        self._rest.principal = principal
        try:
            if route is None:
                raise ForgeRefusal(404, "Not Found")
            handler, parts = route
            self._permitted(principal, request.method, path, parts)
            answer = handler(self._rest, replace(request, parts=parts))
        except ForgeRefusal as refusal:
            answer = refusal.answer
        if answer.status == 304:
            self.gate.unlimit(principal.subject)
        return replace(answer, headers={**headers, **answer.headers})

    def _permitted(self, principal: Principal, method: str, path: str, parts: Mapping[str, str]) -> None:
        """Raises ForgeRefusal."""
        repository = self.forge.repositories.get(f"{parts.get('owner', '')}/{parts.get('repo', '')}".lower())
        public = repository is not None and not repository.private
        permissions.require(principal, self.forge.permissions, method, path, public)

    def _refuse_at_random(self, subject: str) -> None:
        """Faults of which a request is refused before anything is done."""
        faults, now = self.forge.faults, self.forge.now()
        if faults.strikes("unauthorized", subject, now):
            raise ForgeRefusal(401, "Bad credentials")
        if faults.strikes("forbidden", subject, now):
            raise ForgeRefusal(403, "Resource not accessible by integration")
        if faults.strikes("limited", subject, now):
            status = 403 if faults.draw("limited with", subject) < 0.5 else 429
            raise ForgeRefusal(
                status, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
                {"retry-after": "1"},
            )  # fmt: skip
