"""Errors of a cloud. They are apart from api.py so that naming them does not load the OpenStack client."""

from __future__ import annotations

from gpuyard.model.errors import GpuyardError


class CloudError(GpuyardError):
    """Raised when a cloud did not do what it was asked; the message says which cloud, what was asked, and what it
    answered."""

    def __init__(self, message: str, status: int | None = None, reason: str = "") -> None:
        """`status`: of its answer; None when there was none. `reason`: the service's own words in it."""
        super().__init__(message)
        self.status = status
        self.reason = reason
