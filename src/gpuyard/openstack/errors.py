"""What can go wrong with a cloud. Apart from api.py, so that naming it does not load the OpenStack client."""

from __future__ import annotations

from gpuyard.model.errors import GpuyardError


class CloudError(GpuyardError):
    """The cloud did not do what it was asked; the message says which cloud, what was asked, and what it answered."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
