"""Turns a portal's problem documents (RFC 9457) into errors with every reason, and with alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.model.errors import BlockedError, GpuyardError, UsageError

if TYPE_CHECKING:  # portal.py brings OpenStack's client, and commands read this module for their errors only
    from gpuyard.client.portal import Reply


class PortalError(GpuyardError):
    """Raised when the portal did not do it, and asking in another way does not help now."""


class ApiRefusedError(BlockedError):
    """Raised when the portal says no. `reasons` are for people, `codes` for programs; `alternatives` are requests
    that would do."""

    def __init__(
        self,
        message: str,
        reasons: Sequence[str] = (),
        codes: Sequence[str] = (),
        alternatives: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.reasons, self.codes, self.alternatives = tuple(reasons), tuple(codes), tuple(alternatives)


class ChangedError(ApiRefusedError):
    """Raised when somebody else has changed it since it was read."""


def error_of(reply: Reply, url: str) -> GpuyardError:
    """Return the error for an answer from 300 up."""
    problem = reply.body if isinstance(reply.body, dict) else {}
    detail = str(problem.get("detail") or reply.text or f"status {reply.status}").strip()
    all_reasons = (str(reason) for reason in problem.get("reasons") or ())
    reasons = [reason for reason in all_reasons if reason.rstrip(".") != detail.rstrip(".")]
    message = "\n".join([detail, *(f"  - {reason}" for reason in reasons)]) if reasons else detail
    if reply.status < 400:
        return PortalError(f"the portal at {url} sends elsewhere, to {reply.headers.get('location', 'nowhere')}; "
                           "name its own address with --url or GPUYARD_URL")  # fmt: skip
    if reply.status == 401:
        return PortalError(f"the portal at {url} does not accept the token: {message}; is it the portal of this cloud?")
    if reply.status == 404 and not problem:
        return PortalError(f"{url} is no portal of GPU bookings; name it with --url or GPUYARD_URL")
    if reply.status in (412, 428):
        return ChangedError(f"{message}; look at it again, and then change it")
    if reply.status in (400, 422):
        return UsageError(message)
    if reply.status == 429:
        wait = reply.headers.get("retry-after", "")
        return PortalError(message + (f"; try again in {wait} seconds" if wait else ""))
    if reply.status >= 500:
        return PortalError(f"the portal at {url} could not do it: {message}")
    alternatives = [alternative for alternative in problem.get("alternatives") or () if isinstance(alternative, dict)]
    codes = [str(code) for code in problem.get("codes") or (problem.get("code"),) if code]
    return ApiRefusedError(message, reasons or [detail], codes, alternatives)
