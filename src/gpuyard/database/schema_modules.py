"""Schema module: the tables of one part of gpuyard, with their migrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import MetaData


@dataclass(frozen=True)
class SchemaModule:
    """A part of gpuyard that has tables of its own, and a chain of migrations that makes them."""

    name: str
    steps: Path
    """The folder of the migrations, one file each."""
    tables: MetaData
    """The tables as the last step leaves them; a test holds both together."""
    version_table: str
    """The table that has the step of the other tables."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns that refer to others, as in ``table.column``, where no constraint says so."""
