"""Request context: the request to the portal, or the run of a loop, that a log line and a call to OpenStack belong to.

Each has an id in the form of OpenStack's, which goes with its calls, so that lines of Nova's log are found by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import ParamSpec, TypeVar
from uuid import UUID, uuid4

HEADER = "X-Openstack-Request-Id"
"""Header of requests, which carry the id on, and of answers."""
ID = re.compile(r"(?:req-)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32})")
Given = ParamSpec("Given")
Something = TypeVar("Something")


@dataclass(frozen=True)
class RequestContext:
    request_id: str = ""
    """The id: ``req-`` and a UUID; empty outside of requests and loops."""
    loop: str = ""
    """Name of the loop; empty in a request."""


NOTHING = RequestContext()
_NOW: ContextVar[RequestContext] = ContextVar("errand", default=NOTHING)


def current() -> RequestContext:
    return _NOW.get()


@contextmanager
def working_for(errand: RequestContext) -> Iterator[None]:
    """Set the context of this task, or this thread, for the block."""
    token = _NOW.set(errand)
    try:
        yield
    finally:
        _NOW.reset(token)


def work_for(errand: RequestContext) -> None:
    """Set the context for the rest of this task, also for the log lines about its failure."""
    _NOW.set(errand)


def carried(call: Callable[Given, Something]) -> Callable[Given, Something]:
    """Return the call, to be made by other threads, with the context of this one."""
    context = copy_context()

    def in_context(*given: Given.args, **named: Given.kwargs) -> Something:
        return context.copy().run(call, *given, **named)  # no context can be entered by two threads at once

    return in_context


def new_request_id() -> str:
    return f"req-{uuid4()}"


def request_id_of(sent: str) -> str:
    """Return the id that a client or a gateway has sent, in OpenStack's form; empty when it is no UUID, with ``req-``
    or without: then it may be anything and is not taken."""
    match = ID.fullmatch(sent)
    return f"req-{UUID(match[1])}" if match else ""
