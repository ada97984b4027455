"""Who keeps something in the database."""

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
    """As the last step leaves them; a test holds both together."""
    version_table: str
    """Where the database says which step its tables are at."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns that refer to others, as in ``table.column``, where no constraint says so."""
