"""Base class of all parts of the site file's schema."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen, and an unknown key is an error: no wish is silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
