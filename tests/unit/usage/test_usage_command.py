"""``gpuyard usage`` against a real portal; only Keystone is not there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.model.errors import UsageError
from tests.support.ledgers import ADA, ROOT
from tests.support.openstack_commands import take
from tests.support.people import token_of
from tests.support.served import serving, write_clouds
from tests.unit.usage.test_usage_api import budgets

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
DAY = ("--from", "2026-11-24", "--to", "2026-11-25")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    for name in ("GPUYARD_URL", "OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    with serving(budgets(tmp_path).portal.app) as url:
        path = write_clouds(tmp_path, url, (ADA, ROOT), lambda person: token_of(person)["X-Auth-Token"])
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        yield url


def output(*words: str, who: str = "root") -> str:
    result = CliRunner().invoke(app, ["usage", *words, "--os-cloud", who])
    if result.exception:
        raise result.exception
    return result.stdout


def data(*words: str, who: str = "root") -> Any:
    return json.loads(output(*words, "-f", "json", who=who))


def test_a_report_an_export_and_what_is_left(url: str) -> None:
    table = output("report", *DAY)
    assert "| physics " in table
    assert table.splitlines()[-2].startswith("| All ")
    rows = data("report", *DAY, "--by", "tariff", "--by", "pool", "--project", "physics", "-c", "Tariff", "-c", "Cost")
    assert rows == [{"Tariff": "night", "Cost": "0.40"}, {"Tariff": "standard", "Cost": "3.99"}]
    by_month = data("report", "--month", "2026-11", "--by", "month")
    assert [(row["Month"], row["Total"], row["Used"]) for row in by_month] == [("2026-11", "48.00", "24.56")]
    exported = list(csv.DictReader(io.StringIO(output("export", *DAY))))
    assert sum(int(row["Seconds"]) for row in exported) == 2 * 24 * 3600
    assert {row["Use"] for row in exported} >= {"booked use", "runner use", "unbooked use", "idle", "unseen"}
    assert [row["Repository"] for row in data("export", *DAY, "--repository", "acme/solver")] == ["acme/solver"]
    # Of this month until tomorrow, as the site's clocks say: in Rome it is the 25th.
    assert sum(row["Seconds"] for row in data("export")) == 2 * 24 * 3600
    (mine,) = data("budget", who="ada")
    assert (mine["Project"], mine["Limit"], mine["Used"], mine["Left"]) == ("physics", "20.00", "11.97", "8.03")


def test_a_line_of_nobody_is_empty_but_in_a_table(url: str) -> None:
    assert "| -  " in output("report", *DAY)
    assert "" in {row["Project"] for row in csv.DictReader(io.StringIO(output("report", *DAY, "-f", "csv")))}


def test_a_name_that_nothing_is_known_of_is_told(url: str) -> None:
    command = ["usage", "report", *DAY, "--project", "physic", "--os-cloud", "root"]
    assert CliRunner().invoke(app, command).stderr == (
        "nothing is on record of project physic from 2026-11-24 to 2026-11-25\n"
    )


def test_openstack_says_the_same(url: str) -> None:
    for name, words in (
        ("report", (*DAY, "--by", "tariff", "--by", "user", "--project", "physics")),
        ("report", ("--month", "2026-11")),
        ("export", DAY),
        ("export", ("--pool", "t4")),
        ("budget", ()),
    ):
        columns, rows = take("root", f"gpu usage {name}", *words)
        assert [dict(zip(columns, row, strict=True)) for row in rows] == data(name, *words)
        assert rows
    assert [row[0] for row in take("ada", "gpu usage budget")[1]] == ["physics"]
    with pytest.raises(UsageError, match="--month"):
        take("root", "gpu usage report", "--month", "November")


def test_what_cannot_be_is_said(url: str) -> None:
    for words in (("report", "--month", "November"), ("export", "--from", "2026-11-24", "--month", "2026-11")):
        with pytest.raises(UsageError, match="--"):
            output(*words)
    with pytest.raises(UsageError, match="is not after"):
        output("report", "--from", "2026-11-24", "--to", "2026-11-24")
