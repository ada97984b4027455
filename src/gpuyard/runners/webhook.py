"""Webhooks of GitHub as they come in: whose they are, and what they say. Everything in them may be anybody's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuyard.model.errors import UsageError
from gpuyard.runners.jobs import JobUpdate

MOST_BYTES = 1 << 20
"""Of a body. GitHub sends up to 25 MB, of a `workflow_job` some 30 KB."""


class HookRefusedError(UsageError):
    """A webhook that is not taken. `status` is the HTTP answer, the message its plain text."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def signed_by(body: bytes, signature: str, secrets: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Names of those whose secret signed a body: `signature` is the header ``X-Hub-Signature-256``, `secrets` has by
    enrolment's name those that are right now."""
    raise NotImplementedError


def secrets_of(text: str) -> tuple[bytes, ...]:
    """Secrets of a file: one per line; empty lines and those that begin with # are none."""
    raise NotImplementedError


def delivery_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """GUID and event of a delivery; names of `headers` in lower case. Raises HookRefusedError."""
    raise NotImplementedError


def job_update(event: str, body: bytes, scope: str, host: str = "github.com") -> JobUpdate | None:
    """What a delivery says of a job; None when it is about something else. Raises HookRefusedError when it cannot be
    read. `scope` is its enrolment's name."""
    raise NotImplementedError
