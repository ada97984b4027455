"""Errors of the store."""

from __future__ import annotations

from gpuyard.model.errors import GpuyardError


class StoreError(GpuyardError):
    """Raised when the database cannot be used, or refused something; the message says what to do and has no password
    in it."""


class OverlapError(StoreError):
    """Raised when a lane would be taken twice at a time. The transaction is undone. Admission should have seen it
    before."""


class ConflictError(StoreError):
    """Raised when a booking is not in the version that the change was made from, or its id or key is there already. The
    transaction is undone."""
