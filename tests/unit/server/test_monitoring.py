"""The rules for Prometheus and the dashboard for Grafana that are shipped: every alert fires when it should and only
then, and no query asks for something that there is not. Whether there is data: tests/integration/test_lab_job.py."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from tools.reference import REFERENCE

from tests.support.prometheus import MISSING, RULES, dashboard, groups, promtool, queries, rules

HOW_TO = REFERENCE.parent / "how-to/monitor-with-prometheus.md"
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in rules() if "record" in rule}
promtool_only = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@dataclass(frozen=True)
class Alarm:
    """When an alert fires. Series are in promtool's notation, in steps of `step`; all of the job ``site``."""

    bad: dict[str, str]
    """Series with which it fires at `at`."""
    good: dict[str, str]
    """Series with which it does not."""
    at: str
    summary: str
    labels: dict[str, str] = field(default_factory=dict)
    """Besides its severity and the job."""
    late: str = ""
    """With `bad` it does not fire yet at this time; empty: it does not wait."""
    step: str = "1m"


GPUS = 'gpuyard_gpus{pool="v100", host="h", model="V100", state="%s"}'
HEALTH = 'gpuyard_gpu_health_state{pool="v100", state="%s"}'
BOOKING_GPUS = 'gpuyard_booking_gpus{pool="v100", kind="booking", state="%s"}'


def calls(outcome: str) -> str:
    return f'gpuyard_openstack_calls_total{{service="compute", outcome="{outcome}"}}'


def took(most: str) -> str:
    return f'gpuyard_openstack_call_seconds_bucket{{service="compute", le="{most}"}}'


def answered(most: str) -> str:
    return f'gpuyard_admission_seconds_bucket{{outcome="taken", le="{most}"}}'


def requests(route: str, status: int) -> str:
    return f'gpuyard_http_requests_total{{route="{route}", status="{status}"}}'


def ends(cause: str) -> str:
    return f'gpuyard_runner_ends_total{{cause="{cause}"}}'


def bad(signal: str, instance: str = "") -> str:
    portal = f', instance="{instance}"' if instance else ""
    return f'gpuyard_gpu_quarantines_total{{signal="{signal}"{portal}}}'


ALARMS = {
    "GpuyardDown": Alarm(
        {"something_else": "1x20"}, {"gpuyard_build_info": "1x20"}, "10m", "No gpuyard is scraped", late="4m"
    ),
    "GpuyardViewOld": Alarm(
        {"gpuyard_view_timestamp_seconds": "0x20", "gpuyard_build_info": "1x20"},
        {"gpuyard_view_timestamp_seconds": "0+60x20", "gpuyard_build_info": "1x20"},
        "10m", "The cloud was not seen for minutes", late="7m",
    ),
    "GpuyardLoopLate": Alarm(
        {'gpuyard_loop_late{instance="a", loop="sync"}': "1x20"},
        {'gpuyard_loop_late{instance="a", loop="sync"}': "0 1 1 0x20"},
        "10m", "Loop sync has had no good run for too long", {"instance": "a", "loop": "sync"}, "4m",
    ),
    "GpuyardNobodyKeeps": Alarm(
        {'gpuyard_turn{instance="a", turn="bookings"}': "1 0x20",
         'gpuyard_turn{instance="b", turn="bookings"}': "0x20",
         'gpuyard_turn{instance="a", turn="runners"}': "0 1x20"},
        {'gpuyard_turn{instance="a", turn="bookings"}': "1 0x20",
         'gpuyard_turn{instance="b", turn="bookings"}': "0 1x20"},
        "10m", "No portal keeps the bookings", {"turn": "bookings"}, "1m",
    ),
    "GpuyardLoopFailing": Alarm(
        {'gpuyard_loop_failures{instance="a", loop="bookings"}': "7x30"},
        {'gpuyard_loop_failures{instance="a", loop="bookings"}': "4x30"},
        "15m", "Loop bookings has failed 7 times in a row", {"instance": "a", "loop": "bookings"}, "9m",
    ),
    "GpuyardOpenstackFailing": Alarm(
        {calls("good"): "0+60x60", calls("failed"): "0+20x60",
         calls("refused"): "0x60"},
        {calls("good"): "0+60x60", calls("unanswered"): "0+6x60",
         calls("refused"): "0+60x60"},
        "30m", "25% of calls to compute fail", {"service": "compute"}, "9m",
    ),
    "GpuyardOpenstackSlow": Alarm(
        {took("10.0"): "0x60",
         took("30.0"): "0+9x60",
         took("+Inf"): "0+9x60"},
        {took("10.0"): "0+9x60",
         took("30.0"): "0+9x60",
         took("+Inf"): "0+9x60"},
        "30m", "Calls to compute take 29s", {"service": "compute"}, "14m",
    ),
    "GpuyardRequestsFailing": Alarm(
        {requests("/", 200): "0+30x60", requests("/v1/gpus", 500): "0+10x60"},
        {requests("/", 200): "0+30x60", requests("/readyz", 503): "0+30x60",
         requests("/", 404): "0+30x60"},
        "30m", "25% of requests to the portal fail", late="9m",
    ),
    "GpuyardManyRefused": Alarm(
        {requests("/login", 429): "0+90x60"}, {requests("/login", 429): "0+30x60"},
        "30m", "Somebody asks /login far too often", {"route": "/login"}, "14m",
    ),
    "GpuyardHistoryBehind": Alarm(
        {"gpuyard_history_seen_timestamp_seconds": "0x20"}, {"gpuyard_history_seen_timestamp_seconds": "0+60x20"},
        "15m", "Who has which GPU is not written down", late="10m",
    ),
    "GpuyardGpusLost": Alarm(
        {GPUS % "lost": "2x30"}, {GPUS % "lost": "0x30", GPUS % "held": "3x30"},
        "15m", "2 of the GPUs of pool v100 are lost", {"pool": "v100"}, "9m",
    ),
    "GpuyardGpusBlocked": Alarm(
        {GPUS % "blocked": "1x160"}, {GPUS % "blocked": "1x100 0x60"},
        "1500m", "1 of the GPUs of pool v100 cannot be passed to servers", {"pool": "v100"}, "1400m", "10m",
    ),
    "GpuyardGpusQuarantined": Alarm(
        {HEALTH % "quarantined": "1x100"}, {HEALTH % "in repair": "1x100", HEALTH % "suspect": "1x100"},
        "70m", "1 of the GPUs of pool v100 are quarantined, and nobody looks after them", {"pool": "v100"}, "55m",
    ),
    "GpuyardGpusUndecided": Alarm(
        {"gpuyard_gpus_undecided": "3x20"}, {"gpuyard_gpus_undecided": "0x20"},
        "10m", "3 GPUs look bad and are still given out", late="4m",
    ),
    "GpuyardManyGpusGoBad": Alarm(
        {bad("fell-off"): "0x10 5x60"},
        {bad("fell-off", "a"): "0x10 2x60", bad("fell-off", "b"): "0x10 2x60", bad(""): "0x10 9x60"},
        "20m", "Several GPUs went bad within an hour: fell-off", {"signal": "fell-off"}, "9m",
    ),
    "GpuyardHostsSilent": Alarm(
        {"gpuyard_gpus_not_heard_from": "8x30"}, {"gpuyard_gpus_not_heard_from": "8x10 0x20"},
        "20m", "Hosts of 8 GPUs do not say how these are", late="14m",
    ),
    "GpuyardMaintenanceOverdue": Alarm(
        {'gpuyard_host_maintenance_end_timestamp_seconds{host="gpu-1"}': "600x60"},
        {'gpuyard_host_maintenance_end_timestamp_seconds{host="gpu-1"}': "3600x60"},
        "50m", "Host gpu-1 should be back from its maintenance", {"host": "gpu-1"}, "39m",
    ),
    "GpuyardGpuHot": Alarm(
        {'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-1", gpu="0000:27:00.0"}': "95x30"},
        {'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-1", gpu="0000:27:00.0"}': "85x30"},
        "15m", "GPU gpu-1/0000:27:00.0 has 95 degrees C", {"Hostname": "gpu-1", "gpu": "0000:27:00.0"}, "9m",
    ),
    "GpuyardReclaimOverdue": Alarm(
        {"gpuyard_reclaim_overdue_seconds": "0+60x60"}, {"gpuyard_reclaim_overdue_seconds": "600x60"},
        "30m", "A server keeps a GPU 30m 0s after it was to give it back", late="20m",
    ),
    "GpuyardReclaimFailing": Alarm(
        {'gpuyard_reclaim_steps_total{step="act", rule="must_book", outcome="failed"}': "0+1x60"},
        {'gpuyard_reclaim_steps_total{step="act", rule="must_book", outcome="failed"}': "0x10 2x50",
         'gpuyard_reclaim_steps_total{step="act", rule="must_book", outcome="done"}': "0+1x60"},
        "30m", "Nova does not let servers without a booking be reclaimed, at the step act", {"step": "act"}, "4m",
    ),
    "GpuyardMessagesGivenUp": Alarm(
        {'gpuyard_deliveries_total{channel="mail", outcome="given_up"}': "0x10 1x50"},
        {'gpuyard_deliveries_total{channel="mail", outcome="given_up"}': "3x60",
         'gpuyard_deliveries_total{channel="mail", outcome="put_off"}': "0+1x60"},
        "20m", "People or programs were not told of something: mail", {"channel": "mail"}, "9m",
    ),
    "GpuyardMessagesLate": Alarm(
        {'gpuyard_deliveries_oldest_seconds{channel="mail"}': "4200x30"},
        {'gpuyard_deliveries_oldest_seconds{channel="mail"}': "1800x30"},
        "10m", "Messages wait for 1h 10m 0s: mail", {"channel": "mail"}, "4m",
    ),
    "GpuyardWaitlistLong": Alarm(
        {GPUS % "claimed": "8x50", BOOKING_GPUS % "waiting": "6x50"},
        {GPUS % "claimed": "8x50", BOOKING_GPUS % "waiting": "3x50", BOOKING_GPUS % "confirmed": "9x50"},
        "370m", "The waitlist of pool v100 wants 75% of it", {"pool": "v100"}, "350m", "10m",
    ),
    "GpuyardBudgetSpent": Alarm(
        {'gpuyard_budgets_reached{percent="100"}': "2x10"},
        {'gpuyard_budgets_reached{percent="100"}': "0x10", 'gpuyard_budgets_reached{percent="80"}': "3x10"},
        "5m", "2 projects have used all of their budget",
    ),
    "GpuyardAdmissionSlow": Alarm(
        {answered("5.0"): "0x60",
         answered("10.0"): "0+2x60",
         answered("+Inf"): "0+2x60"},
        {answered("5.0"): "0+2x60",
         answered("10.0"): "0+2x60",
         answered("+Inf"): "0+2x60"},
        "30m", "Bookings are answered after 9.75s", late="14m",
    ),
    "GpuyardJobsWait": Alarm(
        {"gpuyard_runner_queue_oldest_seconds": "18000x30"}, {"gpuyard_runner_queue_oldest_seconds": "3600x30"},
        "15m", "A GitHub job waits for a runner for 5h 0m 0s", late="9m",
    ),
    "GpuyardRunnersFail": Alarm(
        {ends("boot-timeout"): "0+1x60"},
        {ends("finished"): "0+9x60", ends("booking"): "0+9x60",
         ends("lost"): "0x10 2x50"},
        "30m", "Runners fail: boot-timeout", {"cause": "boot-timeout"}, "4m",
    ),
    "GpuyardGithubLimitLow": Alarm(
        {'github_rate_limit_remaining{enrolment="acme"}': "250x30", 'github_rate_limit{enrolment="acme"}': "5000x30"},
        {'github_rate_limit_remaining{enrolment="acme"}': "2500x30", 'github_rate_limit{enrolment="acme"}': "5000x30"},
        "10m", "GitHub takes only 5% of an hour's calls more", {"enrolment": "acme"}, "4m",
    ),
}  # fmt: skip


def with_job(series: dict[str, str]) -> list[dict[str, str]]:
    named = {
        (name[:-1] + ', job="site"}' if name.endswith("}") else name + '{job="site"}'): x for name, x in series.items()
    }
    return [{"series": name, "values": values} for name, values in named.items()]


def expected(name: str) -> list[dict[str, Any]]:
    alarm, rule = ALARMS[name], ALERTS[name]
    where = {} if name == "GpuyardDown" else {"job": "site"}
    labels = {**rule["labels"], **alarm.labels, **where}
    return [{"exp_labels": labels, "exp_annotations": {**rule["annotations"], "summary": alarm.summary}}]


def cases_of(name: str) -> list[dict[str, Any]]:
    alarm = ALARMS[name]
    fires = [{"eval_time": alarm.at, "alertname": name, "exp_alerts": expected(name)}]
    quiet = {"eval_time": alarm.at, "alertname": name, "exp_alerts": []}
    if alarm.late:
        fires.append({**quiet, "eval_time": alarm.late})
    return [
        {"interval": alarm.step, "input_series": with_job(alarm.bad), "alert_rule_test": fires},
        {"interval": alarm.step, "input_series": with_job(alarm.good), "alert_rule_test": [quiet]},
    ]


def run(folder: Path, *tests: dict[str, Any], step: str = "1m") -> None:
    file = folder / "tests.yaml"
    order = [group["name"] for group in groups()]  # else it is any, and what is recorded may be a step old
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": step, "group_eval_order": order, "tests": tests})
    )
    try:
        promtool("test", "rules", str(file))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stdout + error.stderr)


# Rules


def test_every_alert_is_tried_and_explained() -> None:
    assert set(ALARMS) == set(ALERTS)
    text = HOW_TO.read_text()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/how-to/{HOW_TO.name}#{name.lower()}"
        assert f"\n### {name}\n" in text


@promtool_only
def test_the_rules_are_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


@promtool_only
@pytest.mark.parametrize("step", sorted({alarm.step for alarm in ALARMS.values()}))
def test_every_alert_fires_when_it_should_and_not_before_and_not_else(tmp_path: Path, step: str) -> None:
    names = [name for name, alarm in ALARMS.items() if alarm.step == step]
    run(tmp_path, *(case for name in names for case in cases_of(name)), step=step)


@promtool_only
def test_a_wrong_case_would_be_noticed(tmp_path: Path) -> None:
    bad, good = cases_of("GpuyardGpusLost")
    with pytest.raises(pytest.fail.Exception):
        run(tmp_path, {**good, "input_series": bad["input_series"]})
    with pytest.raises(pytest.fail.Exception):
        run(tmp_path, {**bad, "input_series": good["input_series"]})


@promtool_only
def test_a_cloud_that_was_never_seen_is_an_alert_too(tmp_path: Path) -> None:
    series = with_job({"gpuyard_build_info": "1x20"})
    check = {"eval_time": "10m", "alertname": "GpuyardViewOld", "exp_alerts": expected("GpuyardViewOld")}
    run(tmp_path, {"interval": "1m", "input_series": series, "alert_rule_test": [check]})


@promtool_only
def test_two_portals_count_once(tmp_path: Path) -> None:
    name = 'gpuyard_gpus{job="site", pool="v100", model="V", instance="%s", host="%s", state="%s"}'
    series = [
        {"series": name % (at, host, state), "values": "4x9"}
        for at in "ab" for host in ("h1", "h2") for state in ("free", "claimed")
    ]  # fmt: skip
    checks = [
        {"expr": 'gpuyard:gpus:sum{state="free"}', "eval_time": "5m", "exp_samples": [
            {"labels": 'gpuyard:gpus:sum{job="site", pool="v100", state="free"}', "value": 8}
        ]},
        {"expr": "gpuyard:gpus_claimed:ratio", "eval_time": "5m", "exp_samples": [
            {"labels": 'gpuyard:gpus_claimed:ratio{job="site", pool="v100"}', "value": 0.5}
        ]},
    ]  # fmt: skip
    run(tmp_path, {"interval": "1m", "input_series": series, "promql_expr_test": checks})


# What they ask for


def known() -> dict[str, set[str]]:
    """Name of each series that there can be -> its labels."""
    labels_by_series = {"process_resident_memory_bytes": set[str](), "process_cpu_seconds_total": set[str]()}
    for name, labels in re.findall(
        r"^\| `(\w+)` \| \w+ \| (.*?) \|", (REFERENCE / "metrics.md").read_text(), re.MULTILINE
    ):
        labels_by_series[name] = set(re.findall(r"`(\w+)`", labels))
        if name.endswith("_bucket"):
            labels_by_series[name.removesuffix("bucket") + "count"] = labels_by_series[name] - {"le"}
    return labels_by_series | {name: {"pool", "state", "service"} for name in RECORDED}


def asked() -> list[tuple[str, str]]:
    """(where, PromQL) of everything that is shipped."""
    return [*queries(), *((rule.get("alert") or rule["record"], rule["expr"]) for rule in rules())]


@pytest.mark.parametrize(("where", "query"), asked())
def test_no_query_asks_for_what_there_is_not(where: str, query: str) -> None:
    series = known()
    names = re.findall(
        r"\b((?:gpuyard|gha|github|DCGM|process)[\w:]*)(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', query)
    )
    assert names
    for name, matchers in names:
        assert name in series, f"{where} asks for {name}"
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers)) - {"job", "instance"}
        assert labels <= series[name], f"{where} asks for labels of {name} that it has not"


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """As Grafana exports them; where the data is is a variable."""
    document = dashboard()
    panels = document["panels"]
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "job", "pool"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = re.findall(r'"uid": "(.*?)"', json.dumps(document))
    assert set(sources) == {"gpuyard", "${datasource}"}
    for entry in panels:
        assert entry["type"] in ("row", "stat", "timeseries", "table")
        assert entry["gridPos"]["x"] + entry["gridPos"]["w"] <= 24
        assert entry["title"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert sorted(places, key=lambda place: (place[1], place[0])) == places


NOT_TYPED = {"definition"}
"""Of variables: Grafana writes it besides `query`, and its types do not have it."""


def test_the_dashboard_is_one_by_grafanas_own_types() -> None:
    """What they do not know is lost on the way through them, and so is what stands in the wrong place."""
    document = dashboard()
    assert lost(document) == set()
    document["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "percent"
    document["panels"][1]["targets"][0]["expression"] = "1"
    document["templating"]["lists"] = []
    assert lost(document) == {
        ".panels.1.fieldConfig.defaults.unitt", ".panels.1.targets.0.expression", ".templating.lists",
    }  # fmt: skip


def lost(document: dict[str, Any]) -> set[str]:
    register_default_plugins()  # or panels and queries would be any JSON
    typed = Dashboard.from_json(deepcopy(document))
    return set(_missing(document, json.loads(JSONEncoder(sort_keys=True).encode(typed)), ""))


def _missing(original: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(original, dict) and isinstance(other, dict):
        for key in original.keys() - NOT_TYPED:
            yield from _missing(original[key], other.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(original, list) and isinstance(other, list) and len(original) == len(other):
        for number, pair in enumerate(zip(original, other, strict=True)):
            yield from _missing(*pair, f"{path}.{number}")
    elif original != other:
        yield path


ABSENT = object()
