"""Findings, the way every command prints them."""

from __future__ import annotations

import json

import pytest

from gpuyard.console.findings import FindingFormat, counts, metrics, print_findings
from gpuyard.model.errors import UsageError
from gpuyard.model.finding import Finding, Severity, worst

BROKEN = Finding("broken", Severity.ERROR, "a.conf:2", "it is broken", "mend it", {"line": 2, "means": "no GPU"})
FINE = Finding("fine", Severity.OK, "", "all is well")


def printed(capsys: pytest.CaptureFixture[str], format_: str, *columns: str) -> str:
    print_findings([BROKEN, FINE], "test", FindingFormat(format_), columns, payload=("line",), text_payload=("means",))
    return capsys.readouterr().out


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "text").splitlines() == [
        "a.conf:2: error: it is broken [broken]",
        "    means: no GPU",
        "    -> mend it",
        "ok       fine              all is well",
    ]


def test_json_is_what_a_finding_is_made_of_again(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(printed(capsys, "json"))
    assert set(data[0]) == {"code", "severity", "object", "reason", "remedy", "payload"}
    assert [Finding.from_dict(row) for row in data] == [BROKEN, FINE]


def test_lists_have_the_payload_as_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "value", "code", "line").splitlines() == ["broken 2", "fine "]
    assert "| Line |" in printed(capsys, "table")
    with pytest.raises(UsageError, match="no column 'means'"):
        printed(capsys, "text", "means")


def test_metrics_count_by_severity_and_code() -> None:
    assert list(metrics([FINE, BROKEN, BROKEN], "test"))[2:] == [
        'gpuyard_findings{source="test",severity="error",code="broken"} 2',
        'gpuyard_findings{source="test",severity="ok",code="fine"} 1',
    ]


def test_the_worst_counts() -> None:
    assert worst([]) is Severity.OK
    assert worst([FINE, BROKEN]) is Severity.ERROR
    assert counts([BROKEN], Severity.ERROR, Severity.WARNING) == "1 error, 0 warnings"
