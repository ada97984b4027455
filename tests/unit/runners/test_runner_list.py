"""``gpuyard runner list``, ``jobs`` and ``show`` against a real portal; only Keystone is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.client.errors import ApiRefusedError, PortalError
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.runners.cli.job_lookup import ADDRESS, names_a_job
from gpuyard.runners.records import JobState
from tests.support import openstack_commands
from tests.support.ledgers import ADA, NOON, ROOT
from tests.support.people import token_of
from tests.support.runner_portals import (
    BUSY,
    COMING,
    ENDED,
    IDLE,
    LOG,
    NASTY_JOB,
    OVER,
    REFUSED,
    RUNNING,
    WAITING,
    RunnerPortal,
    fill,
    runner_portal,
)
from tests.support.served import serving, write_clouds
from tests.unit.runners.test_runner_webhook import EXAMPLES

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
FORMATS = ("table", "value", "csv", "yaml", "json")


@pytest.fixture(params=[False])
def portal(tmp_path: Path, request: pytest.FixtureRequest) -> RunnerPortal:
    made = runner_portal(tmp_path, public=request.param)
    fill(made)
    return made


PUBLIC = pytest.mark.parametrize("portal", [True], indirect=True)


@pytest.fixture
def url(portal: RunnerPortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    for name in ("GPUYARD_URL", "OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    with serving(portal.app) as base_url:
        path = write_clouds(tmp_path, base_url, (ADA, ROOT), lambda person: token_of(person)["X-Auth-Token"])
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        yield base_url


def invoke(who: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["runner", *words, *(("--os-cloud", who) if who else ())])


def data(who: str, *words: str) -> Any:
    result = invoke(who, *words, "-f", "json")
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def test_runners(url: str) -> None:
    rows = data("ada", "list")
    assert [row["Name"] for row in rows] == [BUSY.name, IDLE.name, COMING.name]
    assert rows[0] == {
        "Name": BUSY.name, "State": "busy", "Repository": "acme/solver", "Job": RUNNING.id, "Pool": "v100", "GPUs": 1,
        "Since": "2026-11-23T10:27:00Z", "Cause": "",
    }  # fmt: skip
    assert rows[2]["Since"] == "2026-11-23T11:59:00Z", "when it was asked for: it is not online yet"
    ended = data("ada", "list", "--all")[3:]
    assert {(row["Name"], row["Cause"]) for row in ended} == {(runner.name, runner.cause) for runner in ENDED}
    assert {row["Since"] for row in ended} == {"2026-11-23T09:00:00Z"}


def test_what_is_wrong_with_github_is_told_to_admins_beside_the_list(url: str) -> None:
    result = invoke("root", "list", "-f", "value", "-c", "Name")
    assert result.stdout.splitlines() == [BUSY.name, IDLE.name, COMING.name]
    assert result.stderr == "scale set gpuyard-v100 of acme: GitHub: 503\n"
    assert invoke("ada", "list").stderr == ""


def test_jobs_run_and_then_wait_in_the_order_of_their_turns(url: str) -> None:
    rows = data("ada", "jobs")
    assert [row["ID"] for row in rows] == [RUNNING.id, WAITING.id, NASTY_JOB.id]
    shown = [(row["State"], row["Position"], row["Start"], row["Reason"]) for row in rows]
    assert shown == [
        ("running", "", "2026-11-23T10:27:00Z", ""),
        ("queued", "", "", "its runner gpuyard-v100-b00t boots"),
        ("queued", 1, "2026-11-23T16:27:00Z", "all 6 GPUs of v100 are taken"),
    ]
    assert rows[0]["Runner"] == BUSY.name


def test_jobs_of_before_and_of_one_repository(url: str) -> None:
    rows = data("ada", "jobs", "--all")
    assert [row["ID"] for row in rows[3:]] == [REFUSED.id, *(job.id for job in OVER)]
    assert [row["Reason"] for row in rows[3:]] == [REFUSED.reason, "success", "failure", "cancelled"]
    assert [row["ID"] for row in data("ada", "jobs", "--all", "--repository", "acme/x")] == [NASTY_JOB.id]
    assert data("ada", "jobs", "--repository", "acme/none") == []


def test_a_job_that_is_held_at_github_is_not_in_the_queue_but_in_the_list(url: str, portal: RunnerPortal) -> None:
    held = replace(WAITING, id="github.com/900", state=JobState.HELD, queued=NOON)
    portal.runners.put([held])
    assert [row["ID"] for row in data("ada", "jobs")] == [RUNNING.id, WAITING.id, NASTY_JOB.id, held.id]


def test_a_job_is_found_by_what_github_shows_of_it(url: str, portal: RunnerPortal) -> None:
    """The addresses are those of GitHub's pages; job/N ends in the job's id, jobs/N does not (cli/cli#6663)."""
    page = "https://github.com/acme/solver/actions/runs/7"
    for words in (
        "101",
        f"{page}/job/101",
        f"{page}/attempts/2/job/101",
        f"{page}/job/101".replace("github", "GitHub"),
        f"{page}/job/101?pr=12#step:3:4",
        "https://github.com/acme/solver/runs/101?check_suite_focus=true",
    ):
        assert data("ada", "show", words)["id"] == WAITING.id, words
    assert openstack_commands.one("ada", "gpu runner job show", f"{page}/job/101")["id"] == WAITING.id
    for wrong in (page.replace("solver", "other"), page.replace("/7", "/70")):  # ids are of all of GitHub
        assert isinstance(invoke("ada", "show", f"{wrong}/job/101").exception, BlockedError), wrong
    own = "https://github.com/acme/solver/actions/runs/8"
    in_set = replace(RUNNING, id="github.com/set/7/105", run_id=8, html_url=own)  # GitHub counts these apart
    portal.runners.put([in_set])
    for words in (own, f"{own}/", "8", "105", f"{own}/job/999"):
        assert data("ada", "show", words)["id"] == in_set.id, words
    several = str(invoke("ada", "show", page).exception)
    assert "run 7 has " in several
    assert f"{RUNNING.id} (train)" in several
    elsewhere = page.replace("github.com", "ghe.example.org")
    for words in ("123456", "https://github.com/acme/solver/actions/runs/9", elsewhere):
        missing = invoke("ada", "show", words).exception
        assert isinstance(missing, BlockedError)
        assert "gpuyard has no job that is" in str(missing)


def test_the_address_that_github_gave_of_a_job_finds_it(url: str, portal: RunnerPortal) -> None:
    """Of the payloads of octokit/webhooks (tests/support/octokit): 12877621891 is at .../jobs/8433573014."""
    payload = next(row for row in EXAMPLES["workflow_job"] if row["workflow_job"]["id"] == 12877621891)["workflow_job"]
    page, number = payload["html_url"], payload["html_url"].rpartition("/")[2]
    assert number != str(payload["id"])
    recorded = replace(WAITING, id=f"github.com/{payload['id']}", run_id=payload["run_id"], html_url=page)
    beside = replace(recorded, id="github.com/12877621892", html_url=f"{page}0")
    stranger = replace(
        WAITING, id=f"github.com/{number}", html_url="https://github.com/acme/solver/actions/runs/1/job/2"
    )
    where = "/".join(page.split("/")[3:5])
    portal.runners.put_visibility("acme", where, False, NOON)
    portal.runners.put([replace(job, repository=where) for job in (recorded, beside)] + [stranger])
    assert data("ada", "show", page)["id"] == recorded.id
    assert data("ada", "show", str(payload["id"]))["id"] == recorded.id
    assert "has 2 jobs here" in str(invoke("ada", "show", page.partition("/jobs/")[0]).exception)


@given(st.text() | st.from_regex(r"\Ahttps?://[a-z./0-9]{0,60}/actions/runs/[0-9]{0,30}[/a-z0-9?#]{0,40}\Z"))
def test_any_text_is_about_a_job_or_not(text: str) -> None:
    assert names_a_job(text) in (True, False)
    if match := ADDRESS.fullmatch(text):
        assert (match["run"] or match["check"]).isdigit()


def test_a_job_by_itself(url: str) -> None:
    job = data("ada", "show", RUNNING.id)
    assert (job["id"], job["state"], job["started"]) == (RUNNING.id, "running", "2026-11-23T10:27:00Z")
    assert job["runners"] == f"gpuyard-v100-bad {BUSY.name}"
    assert [event["text"] for event in job["events"]][2:] == ["online at GitHub", "GitHub gave it the job"]
    waits = data("ada", "show", NASTY_JOB.id)
    assert (waits["pool"], waits["position"], waits["starts_by"]) == ("v100", 1, "2026-11-23T16:27:00Z")
    output = invoke("ada", "show", RUNNING.id).stdout
    assert "| conclusion" in output
    assert "GitHub gave it the job" in output
    assert invoke("ada", "show", RUNNING.id, "-f", "value", "-c", "state").stdout == "running\n"
    assert isinstance(invoke("ada", "show", RUNNING.id, "-c", "nonsense").exception, UsageError)


def test_a_runner_by_itself(url: str) -> None:
    runner = data("ada", "show", BUSY.name)
    assert (runner["name"], runner["job"], runner["hosts"]) == (BUSY.name, RUNNING.id, "gpu-1/0000:a3:00.0")
    assert [event["runner"] for event in runner["events"]] == [BUSY.name] * 3, "nothing of the job's other runners"
    assert data("ada", "show", IDLE.name)["events"] == []
    assert data("ada", "show", "gpuyard-v100-bad")["cause"] == "gpu-check"


def test_a_log_cannot_steer_a_terminal(url: str, portal: RunnerPortal) -> None:
    for words in ((RUNNING.id,), (BUSY.name,)):
        output = invoke("ada", "show", *words, "--log").stdout
        assert output.splitlines()[0] == "Running job: test"
        assert output.splitlines()[-1] == "Job test completed with result: Failed"
        assert len(output.splitlines()) == len(LOG.splitlines())
        assert "\\u202egnp.exe" in output
        assert not set(output) & {"\x1b", "\u202e"}
    portal.runners.put_log(BUSY.name, '{"\x9b2J": ["\x1b[2J"]}\rgone\n\tdone', NOON)
    output = invoke("ada", "show", RUNNING.id, "--log").stdout
    assert output == '{"\\x9b2J": ["\\x1b[2J"]}\ngone\n        done\n'


def test_no_log(url: str) -> None:
    for name, why in (
        (WAITING.id, "there is no log"),
        (IDLE.name, "no job whose log is its own"),
        ("gpuyard-v100-bad", "no job whose log is its own"),
    ):
        result = invoke("ada", "show", name, "--log")
        assert isinstance(result.exception, BlockedError)
        assert why in str(result.exception)
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("github.com/1", BlockedError, "There is no job 'github.com/1'"),
        ("gpuyard-v100-none", BlockedError, "there is no runner 'gpuyard-v100-none'"),
        (f"{RUNNING.id}/log", UsageError, "is no id of a job"),
        ("../v1/gpus/1", UsageError, "is no id of a job"),
    ],
)
def test_no_such_job_or_runner(url: str, name: str, error: type[Exception], words: str) -> None:
    result = invoke("ada", "show", name)
    assert isinstance(result.exception, error), result.output
    assert words in str(result.exception)


@pytest.mark.parametrize("words", [("list", "--all"), ("jobs", "--all"), ("show", NASTY_JOB.id), ("show", BUSY.name)])
def test_nothing_printed_steers_a_terminal(url: str, words: tuple[str, ...]) -> None:
    for format_ in FORMATS:
        result = invoke("ada", *words, "-f", format_)
        assert result.exception is None
        assert not set(result.stdout) & {"\x1b", "\u202e"}


@PUBLIC
def test_where_runners_are_public_an_address_is_enough(url: str) -> None:
    assert len(data("", "list", "--url", url)) == 3
    assert len(data("", "jobs", "--url", url)) == 3
    job = data("", "show", RUNNING.id, "--url", url)
    assert [event["text"] for event in job["events"]] == ["queued at GitHub"]
    refused = invoke("", "show", RUNNING.id, "--log", "--url", url).exception
    assert isinstance(refused, UsageError)
    assert "only to who is logged in, and no cloud is named" in str(refused)
    assert isinstance(invoke("", "list").exception, UsageError), "nobody has said where"


def test_elsewhere_it_is_not(url: str) -> None:
    refused = invoke("", "jobs", "--url", url).exception
    assert isinstance(refused, UsageError)
    assert "--os-cloud" in str(refused)
    assert isinstance(invoke("nobody", "jobs", "--url", url).exception, UsageError), "a cloud that is not there"


def test_before_the_first_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.client.client.PAUSES", ())
    with serving(runner_portal(tmp_path, public=True).app) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "none.yaml"))
        monkeypatch.chdir(tmp_path)
        assert data("", "list", "--url", url) == []
        assert isinstance(invoke("", "jobs", "--url", url).exception, PortalError)


@pytest.mark.usefixtures("url")
def test_openstack_has_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, command in (
        (("list",), ("gpu runner list",)),
        (("list", "--all"), ("gpu runner list", "--all")),
        (("jobs",), ("gpu runner job list",)),
        (("jobs", "--all", "--repository", "acme/solver"),
         ("gpu runner job list", "--all", "--repository", "acme/solver")),
    ):  # fmt: skip
        rows = data("ada", *words)
        columns, values = openstack_commands.take("ada", *command)
        assert rows, words
        assert [dict(zip(columns, row, strict=True)) for row in values] == rows
    shown, job = data("ada", "show", RUNNING.id), openstack_commands.one("ada", "gpu runner job show", RUNNING.id)
    events = shown.pop("events")
    assert events
    assert job.pop("events").splitlines() == ["  ".join(word for word in event.values() if word) for event in events]
    assert {name: str(value) for name, value in job.items()} == {name: str(value) for name, value in shown.items()}
    with pytest.raises(ApiRefusedError):
        openstack_commands.take("ada", "gpu runner job show", "github.com/0")
