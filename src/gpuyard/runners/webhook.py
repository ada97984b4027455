"""Parses GitHub's webhooks: checks signatures against the enrolments' secrets and reads the job. Anybody may have
written what is in them. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuyard.model.errors import UsageError
from gpuyard.runners import fields
from gpuyard.runners.jobs import JobUpdate, workflow_job

MOST_BYTES = 1 << 20
"""Largest body that is taken. GitHub sends up to 25 MB, for a `workflow_job` some 30 KB."""
SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
GUID = re.compile(r"[0-9A-Za-z-]{1,64}")
EVENT = re.compile(r"[a-z_]{1,64}")
JOB_EVENT = "workflow_job"


class HookRefusedError(UsageError):
    """A webhook that is refused. `status` is the HTTP answer, the message its plain text."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def secrets_of(text: str) -> tuple[bytes, ...]:
    """Return the secrets of a file: one per line; empty lines and those that begin with # are none."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line.encode() for line in lines if line and not line.startswith("#"))


def delivery_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return GUID and event of a delivery; names of `headers` in lower case. Raises HookRefusedError."""
    guid, event = headers.get("x-github-delivery", ""), headers.get("x-github-event", "")
    if not GUID.fullmatch(guid) or not EVENT.fullmatch(event):
        raise HookRefusedError("this is not a webhook of GitHub: X-GitHub-Delivery or X-GitHub-Event is missing", 400)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HookRefusedError("choose the content type application/json in the settings of the webhook", 415)
    return guid, event


def signed_by(body: bytes, signature: str, secrets: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Return the names of the enrolments whose secret signed a body: `signature` is the header ``X-Hub-Signature-256``,
    `secrets` has by enrolment's name those that are valid now. Takes as long whichever secret it was."""
    if not SIGNATURE.fullmatch(signature):
        return []
    digest = bytes.fromhex(signature.removeprefix("sha256="))
    return [name for name, own in secrets.items() if _any_signed(body, digest, own)]


def _any_signed(body: bytes, digest: bytes, secrets: Sequence[bytes]) -> bool:
    # All of them are tried, so that the time does not tell which. An empty secret would be everybody's.
    return (
        sum(hmac.compare_digest(hmac.digest(secret, body, hashlib.sha256), digest) for secret in secrets if secret) > 0
    )


def job_update(event: str, body: bytes, scope: str, host: str = "github.com") -> JobUpdate | None:
    """Read a delivery's report of a job; None when it is about something else, or in words that GitHub did not have
    when this was written. `scope` is its enrolment's name; the caller checks whether the job's repository belongs to
    that. Raises HookRefusedError when it cannot be read."""
    if event != JOB_EVENT:
        return None
    try:
        payload = fields.row(fields.document(body))
    except ValueError:
        raise HookRefusedError("the body is not JSON", 400) from None
    job, repository = (
        fields.row(payload, "workflow_job"),
        fields.repository(fields.row(payload, "repository"), "full_name"),
    )
    if not repository or not fields.whole(job, "id"):
        raise HookRefusedError("the body names no repository, or no job with a number", 400)
    update = workflow_job(job, repository, scope, host, action=fields.text(payload, "action", 40))
    private = fields.row(payload, "repository").get("private")
    return replace(update, private=private) if update is not None and isinstance(private, bool) else update
