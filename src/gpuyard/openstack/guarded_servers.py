"""Limits calls to Nova to a rate that it bears, and pauses them while it is out of order.

Only errors that say nothing about the request (UNKNOWN, UNREAD) count as failures of Nova; a refusal is an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gpuyard.nova.server_states import SeenServer
from gpuyard.openstack.breaker import CircuitBreaker, TokenBucket
from gpuyard.openstack.servers import RunnerServers, ServerError, ServerProblem, ServerWish

RATE, BURST = 10.0, 30.0
"""Calls a second, and at once. Nodepool's default is 2, for clouds of others."""
T = TypeVar("T")


class GuardedServers:
    """`RunnerServers` behind a token bucket and a circuit breaker. Safe to use from several threads."""

    def __init__(
        self,
        servers: RunnerServers,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._servers = servers
        self._sleep = sleep
        self._bucket = TokenBucket(RATE, BURST, steady)
        self._breaker = CircuitBreaker(steady, failures=5, pause=5.0, longest=120.0)

    @property
    def trouble(self) -> str:
        """The reason why nothing is asked at the moment; empty when all is well."""
        return "Nova does not answer as it should; it is tried again in a moment" if self._breaker.is_open() else ""

    def create(self, wish: ServerWish) -> str:
        return self._asked(lambda: self._servers.create(wish))

    def ours(self) -> list[SeenServer]:
        return self._asked(self._servers.ours)

    def all_cells_answer(self) -> bool:
        return self._asked(self._servers.all_cells_answer)

    def get(self, server_id: str) -> SeenServer | None:
        return self._asked(lambda: self._servers.get(server_id))

    def console(self, server_id: str) -> str:
        return self._asked(lambda: self._servers.console(server_id))

    def delete(self, server_id: str) -> None:
        return self._asked(lambda: self._servers.delete(server_id))

    def _asked(self, call: Callable[[], T]) -> T:
        closed = self._breaker.wait()
        if closed:
            raise ServerError(
                f"Nova has failed too often; it is asked again in {closed:.0f} s", None, ServerProblem.LIMITED
            )
        if (pause := self._bucket.take()) > 0:
            self._sleep(pause)
        try:
            answer = call()
        except ServerError as error:
            if error.problem in (ServerProblem.UNKNOWN, ServerProblem.UNREAD):
                self._breaker.failed()
            else:
                self._breaker.worked()
            raise
        self._breaker.worked()
        return answer
