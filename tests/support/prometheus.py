"""Prometheus of Debian's package `prometheus`, and what this repository ships for it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from ruamel.yaml import YAML

import gpuyard
from tests.support.ports import free_port_base

SHIPPED = Path(gpuyard.__file__).parent / "monitoring"
RULES, DASHBOARD = SHIPPED / "prometheus-rules.yaml", SHIPPED / "grafana-dashboard.json"
HERE = shutil.which("prometheus") and shutil.which("promtool")
MISSING = "" if HERE or os.environ.get("CI") == "true" else "Prometheus is not there; install prometheus"
"""Why its tests are skipped. In CI none is: there they fail without it."""
PATIENCE_S = 60.0
JOB = "gpuyard"


def groups() -> list[dict[str, Any]]:
    rule_groups: list[dict[str, Any]] = YAML(typ="safe").load(RULES.read_text(encoding="utf-8"))["groups"]
    return rule_groups


def rules() -> list[dict[str, Any]]:
    """Recording rules have ``record``, the others ``alert``."""
    return [rule for group in groups() for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def queries() -> list[tuple[str, str]]:
    """(title of the panel, PromQL) with the dashboard's variables as Grafana would fill them in."""
    return [
        (
            f"{panel['title']}: {target['legendFormat']}",
            target["expr"].replace("$job", JOB).replace("$pool", ".*").replace("$__rate_interval", "1m"),
        )
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def promtool(*words: str) -> str:
    """What it says. Raises CalledProcessError, with what it said, when something is wrong."""
    return subprocess.run(["promtool", *words], check=True, text=True, capture_output=True).stdout


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query has now. Raises HTTPError for one that is wrong."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
            series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return series

    def has_data(self, query: str) -> bool:
        """Whether there is a series, and a number in it: a quantile of nothing is none."""
        return any(not math.isnan(float(series["value"][1])) for series in self.ask(query))

    def number(self, query: str) -> float:
        """Of the one series that there is; -1: there is none."""
        series = self.ask(query)
        return float(series[0]["value"][1]) if series else -1.0


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """One that scrapes ``host:port`` each second and has the rules that are shipped."""
    port = free_port_base()
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(configuration))  # which is YAML, too
    command = ["prometheus", "--config.file", str(folder / "prometheus.yaml"), "--web.listen-address"]
    command += [f"127.0.0.1:{port}", "--storage.tsdb.path", str(folder / "data"), "--log.level", "warn"]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
            while not _ready(url):
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < deadline, "Prometheus does not start"
                time.sleep(0.1)
            yield Prometheus(url)
        finally:
            process.terminate()
            process.wait(20)


def _ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
