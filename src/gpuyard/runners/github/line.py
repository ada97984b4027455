"""Sends calls to one host: repeats them where that is safe, stops while the host does not answer, and counts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.model.text import printable
from gpuyard.openstack.breaker import CircuitBreaker
from gpuyard.runners import fields
from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble, PollEndedError
from gpuyard.runtime.http import MOST_BYTES, READ, TOTAL, HttpClient, HttpClientError, WireAnswer, WireStop

Now = Callable[[], datetime]
Sleep = Callable[[float], None]
PAUSES = (0.5, 2.0)
"""Seconds before the second and the third try."""


class CallCounter:
    """Counts the calls of several lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = CallCount()

    def now(self) -> CallCount:
        with self._lock:
            return self._count

    def add(self, **more: int) -> None:
        with self._lock:
            self._count = replace(self._count, **{key: getattr(self._count, key) + n for key, n in more.items()})

    def note(self, limit: int, remaining: int, reset: datetime) -> None:
        with self._lock:
            self._count = replace(self._count, limit=limit, remaining=remaining, reset=reset)


class HostLine:
    """A connection to one host, with retries, a circuit breaker and a counter of calls."""

    def __init__(self, wire: HttpClient, breaker: CircuitBreaker, counter: CallCounter, now: Now, sleep: Sleep) -> None:
        self._wire = wire
        self._breaker = breaker
        self._counter = counter
        self._now = now
        self._sleep = sleep

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        what: str,
        safe: bool,
        read: float = READ,
        total: float = TOTAL,
        most: int = MOST_BYTES,
        stop: WireStop | None = None,
    ) -> WireAnswer:
        """Return an answer below 500. `safe`: the call may be sent twice; one that has certainly not arrived always
        may. `what` names the call in errors. Raises GitHubError, and PollEndedError after `stop`."""
        for pause in (*PAUSES, None):
            self._pass(what)
            self._counter.add(calls=1)
            try:
                answer = self._wire.exchange(method, url, headers, body, read=read, total=total, most=most, stop=stop)
            except HttpClientError as error:
                if stop and stop.stopped:
                    raise PollEndedError(f"{what}: called off") from None
                trouble, again = self._broken(what, error), safe or not error.sent
            else:
                if answer.status < 500:
                    self._breaker.worked()
                    return answer
                self._breaker.failed()
                words = f"{what}: the answer is {answer.status}{said(answer)}"
                trouble, again = GitHubError(words, status=answer.status), safe
            self._counter.add(failed=1)
            if pause is None or not again or trouble.kind is not GitHubTrouble.RETRY:
                break
            self._sleep(pause)
        raise trouble

    def _pass(self, what: str) -> None:
        wait = self._breaker.wait()
        if wait > 0:
            at = self._now() + timedelta(seconds=wait)
            raise GitHubError(f"{what}: not asked, since GitHub did not answer several times", retry_at=at)

    def _broken(self, what: str, error: HttpClientError) -> GitHubError:
        if error.too_big:
            self._breaker.worked()
            return GitHubError(f"{what}: {error}", GitHubTrouble.REFUSED)
        self._breaker.failed()
        return GitHubError(f"{what}: {error}")


def said(answer: WireAnswer) -> str:
    """Return ``: `` and GitHub's own words about an error; empty when there are none."""
    try:
        data = fields.row(fields.document(answer.body))
    except ValueError:
        return ""
    errors = data.get("errors")
    words = [fields.text(data, "message", 300)]
    words += [
        printable(error[:200]) if isinstance(error, str) else fields.text(fields.row(error), "message", 200)
        for error in (errors[:3] if isinstance(errors, list) else [errors])
    ]
    return "".join(f": {word}" for word in words if word)
