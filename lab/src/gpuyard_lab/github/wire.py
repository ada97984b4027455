"""Requests and answers of the stand-in, apart from sockets, so that it works without any."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

LARGEST_BODY = 4 * 1024 * 1024


@dataclass(frozen=True)
class ForgeRequest:
    """One request. Names of headers are in lower case."""

    method: str
    path: str
    """Without the query, as sent."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Values of the names in braces of the route."""
    gone: Callable[[], bool] = lambda: False
    """Whether the client has hung up by now."""

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> ForgeRequest:
        """Make a request from a request line's target (path with query)."""
        split = urlsplit(target)
        lower = {name.lower(): value for name, value in headers.items()}
        return cls(method, split.path, dict(parse_qsl(split.query, keep_blank_values=True)), lower, body)

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises ForgeRefusal (400) when it is none."""
        body = self.value()
        if not isinstance(body, dict):
            raise ForgeRefusal(400, "Body should be a JSON object")
        return body

    def value(self) -> Any:
        """Return the body as JSON, an empty object when there is none. Raises ForgeRefusal (400)."""
        try:
            return json.loads(self.body) if self.body else {}
        except ValueError:
            raise ForgeRefusal(400, "Problems parsing JSON") from None


@dataclass(frozen=True)
class ForgeAnswer:
    """One answer, and the way in which it gets lost."""

    status: int
    body: Any = None
    """JSON; bytes as they are; None for an empty body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Sent only after so long."""
    cut: str = ""
    """``all``: the connection breaks before the answer; ``half``: in the middle of it."""

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class ForgeRefusal(Exception):
    """An answer other than the wanted one, in the shape that GitHub's REST API has for it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.answer = ForgeAnswer(
            status, {"message": message, "documentation_url": "https://docs.github.com/rest", **more}, headers or {}
        )


class ServiceRefusal(ForgeRefusal):
    """A refusal in the shape that the Actions service has."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(status, message)
        body = {
            "$id": "1",
            "innerException": None,
            "message": message,
            "typeName": f"GitHub.Actions.Runtime.WebApi.{kind}, GitHub.Actions.Runtime.WebApi",
            "typeKey": kind,
            "errorCode": 0,
            "eventId": 3000,
        }
        self.answer = ForgeAnswer(status, body)
