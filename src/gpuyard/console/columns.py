"""Selects the columns of a list that the user asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.model.errors import UsageError


def chosen(only: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
    """The columns that were asked for with ``-c``, in that order; all when none was. Raises UsageError."""
    columns_by_name = {column.lower(): column for column in columns}
    for name in only or ():
        if name.lower() not in columns_by_name:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(columns)}")
    return [columns_by_name[name.lower()] for name in only] if only else list(columns)
