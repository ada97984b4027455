"""Prints findings: as text, as a list, as JSON, or as metrics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from gpuyard.console.output import Format, print_list, print_yaml
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.text import printable

COLUMNS = ("Severity", "Code", "Object", "Reason", "Remedy")
METRIC = "gpuyard_findings"


class FindingFormat(StrEnum):
    """Text, the formats of lists, or metrics for the textfile collector of Prometheus's node_exporter."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    VALUE = "value"
    METRICS = "metrics"


FindingFormatOption = Annotated[FindingFormat, typer.Option("-f", "--format", help="Output format.")]


def print_findings(
    findings: Sequence[Finding],
    source: str,
    format_: FindingFormat,
    columns: Sequence[str] | None = None,
    payload: Sequence[str] = (),
    text_payload: Sequence[str] = (),
) -> None:
    """Print findings of a command, `source`. Lists have the entries of the `payload` as columns too; text has those
    that are `text_payload`.

    Raises UsageError for an unknown column.
    """
    if columns or format_ in (FindingFormat.TABLE, FindingFormat.CSV, FindingFormat.VALUE):
        as_list = Format.TABLE if format_ in (FindingFormat.TEXT, FindingFormat.METRICS) else Format(format_.value)
        print_list([_row(item, payload) for item in findings], (*COLUMNS, *map(_title, payload)), as_list, columns)
    elif format_ is FindingFormat.JSON:
        print(json.dumps([item.as_dict() for item in findings], indent=2, default=str))
    elif format_ is FindingFormat.YAML:
        print_yaml([item.as_dict() for item in findings])
    elif format_ is FindingFormat.METRICS:
        print("\n".join(metrics(findings, source)))
    else:
        for item in findings:
            print("\n".join(map(printable, item.lines(text_payload))))


def metrics(findings: Iterable[Finding], source: str) -> Iterable[str]:
    """How many findings there are, in Prometheus's text format."""
    yield f"# HELP {METRIC} Findings of a gpuyard command, by severity and code."
    yield f"# TYPE {METRIC} gauge"
    counted = Counter((item.severity, item.code) for item in findings)
    for (severity, code), number in sorted(counted.items(), key=lambda entry: (entry[0][0].rank, entry[0][1])):
        yield f'{METRIC}{{source="{source}",severity="{severity}",code="{code}"}} {number}'


def counts(findings: Sequence[Finding], *severities: Severity) -> str:
    """``2 errors, 0 warnings``."""
    numbers = [(severity, sum(item.severity is severity for item in findings)) for severity in severities]
    return ", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in numbers)


def _row(item: Finding, payload: Sequence[str]) -> dict[str, object]:
    values = (item.severity.value, item.code, item.object, item.reason, item.remedy)
    return {
        **dict(zip(COLUMNS, values, strict=True)),
        **{_title(name): item.payload.get(name) for name in payload},
    }


def _title(name: str) -> str:
    return name[:1].upper() + name[1:]
