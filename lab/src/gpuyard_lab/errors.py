"""Errors of the lab."""

from __future__ import annotations

from gpuyard.model.errors import GpuyardError, UsageError


class LabError(GpuyardError):
    """The lab could not do what was asked; the message says what to look at or to set."""


class LabSettingsError(UsageError):
    """The lab's settings contradict each other or the machine; nothing was started."""
