"""Refuses unknown columns in commands of the plugin; `openstack` itself silently leaves them out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from gpuyard.console.columns import chosen
from gpuyard.model.text import cell


class KnownColumns:
    """Mixed in before a command that shows a list or one thing."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Raises UsageError for an unknown column."""
        chosen(parsed_args.columns, column_names)
        if parsed_args.formatter == "csv":
            data = [[cell(value) for value in row] for row in data]
        shown: int = super().produce_output(parsed_args, column_names, data)  # type: ignore[misc]
        return shown
