"""Prints lists the way `openstack` does: ``-f table|json|yaml|csv|value`` and ``-c COLUMN``."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from gpuyard.console.columns import chosen
from gpuyard.model.text import cell, printable


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    VALUE = "value"


FormatOption = Annotated[Format, typer.Option("-f", "--format", help="Output format.")]
ColumnOption = Annotated[
    list[str] | None, typer.Option("-c", "--column", metavar="COLUMN", help="Show only this column; repeatable.")
]


def print_list(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    format_: Format = Format.TABLE,
    only: Sequence[str] | None = None,
) -> None:
    """Print rows with the given columns, or `only` some of them. Raises UsageError for an unknown column."""
    shown = chosen(only, columns)
    table = [{name: row[name] for name in shown} for row in rows]
    if format_ is Format.JSON:
        print(json.dumps(table, indent=2, default=str))
    elif format_ is Format.YAML:
        print_yaml(table)
    elif format_ is Format.CSV:
        writer = csv.DictWriter(sys.stdout, shown, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(_text(value)) for name, value in row.items()} for row in table)
    elif format_ is Format.VALUE:
        for row in table:
            print(" ".join(_text(value) for value in row.values()))
    else:
        _print_table(table, shown)


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))


def print_yaml(value: object) -> None:
    """Print a value as YAML in block style, as `openstack -f yaml` does."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(json.loads(json.dumps(value, default=str)), sys.stdout)


def _print_table(table: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """The frame that `openstack` draws; nothing is cut, so that a copied id is a whole one."""
    cells = [[_text(row[name]) for name in columns] for row in table]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(columns)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    print(line)
    for row in [list(columns), None, *cells]:
        if row is None:
            print(line)
        else:
            print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
    print(line)
