"""The pages and the API of runners: what they say, to whom, and that nothing in it runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from gpuyard.runners.records import Cause, GpuUse, JobState, RunnerState
from gpuyard.runners.web.runner_figures import AGAIN, FigureCache, gpu_hours, percentile, reckon
from gpuyard.web.metric_tallies import LATE, Tally
from tests.support.ledgers import ADA, HOUR, NOON, ROOT
from tests.support.runner_portals import (
    BOARD,
    BUSY,
    EVIL,
    HOOK,
    IDLE,
    LOG,
    MINUTE,
    NASTY_JOB,
    OVER,
    REFUSED,
    RUNNING,
    WAITING,
    RunnerPortal,
    fill,
    job_hook,
    runner_portal,
    signed,
)


@pytest.fixture
def portal(tmp_path: Path) -> RunnerPortal:
    made = runner_portal(tmp_path)
    fill(made)
    return made


@pytest.fixture
def public(tmp_path: Path) -> RunnerPortal:
    made = runner_portal(tmp_path, public=True)
    fill(made)
    return made


def get(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


class Elements(HTMLParser):
    """The elements of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


# What the API says.


def test_the_queue_has_places_reasons_and_times(portal: RunnerPortal) -> None:
    queue = get(portal.browser(ADA).client, "/v1/queue")
    assert [job["id"] for job in queue["jobs"]] == [WAITING.id, NASTY_JOB.id]
    assert queue["jobs"][1]["place"] == {
        "pool": "v100",
        "position": 1,
        "reason": "all 6 GPUs of v100 are taken",
        "start": "2026-11-23T16:27:00Z",
    }
    assert queue["taken_at"] == "2026-11-23T12:00:00Z"


def test_before_the_first_plan_there_is_no_queue(tmp_path: Path) -> None:
    portal = runner_portal(tmp_path)
    ada = portal.browser(ADA).client
    assert ada.get("/v1/queue").status_code == 503
    assert get(ada, "/v1/runners")["runners"] == []
    assert "appears here in some seconds" in ada.get("/runners").text


def test_jobs_can_be_asked_for(portal: RunnerPortal) -> None:
    ada = portal.browser(ADA).client

    def ids(query: str = "") -> list[str]:
        return [job["id"] for job in get(ada, f"/v1/jobs{query}")["jobs"]]

    newest_first = [NASTY_JOB.id, WAITING.id, REFUSED.id, RUNNING.id, *(job.id for job in OVER)]
    assert ids() == newest_first
    assert ids("?state=running&state=refused") == [REFUSED.id, RUNNING.id]
    assert ids("?repository=acme/x") == [NASTY_JOB.id]
    assert ids("?limit=2") == newest_first[:2]
    before = WAITING.queued.isoformat().replace("+00:00", "Z")
    assert ids(f"?limit=2&before={before}") == newest_first[2:4]
    assert ids("?before=") == newest_first
    for wrong in ("?state=nonsense", "?limit=501", "?limit=0", "?colour=red", "?before=yesterday"):
        assert ada.get(f"/v1/jobs{wrong}").status_code == 422, wrong


def test_a_job_has_its_runners_and_its_timeline(portal: RunnerPortal) -> None:
    ada = portal.browser(ADA).client
    job = get(ada, f"/v1/jobs/{RUNNING.id}")
    assert (job["state"], job["runner"], job["place"]) == ("running", BUSY.name, None)
    assert [runner["name"] for runner in job["runners"]] == ["gpuyard-v100-bad", BUSY.name]
    assert [event["text"] for event in job["events"]] == [
        "queued at GitHub",
        f"server made on {EVIL}",
        "online at GitHub",
        "GitHub gave it the job",
    ]
    assert get(ada, f"/v1/jobs/{RUNNING.id.replace('/', '%2F')}") == job
    assert get(ada, f"/v1/jobs/{NASTY_JOB.id}")["url"] == "", "a link that would run something is none"
    for path in ("/v1/jobs/none", "/v1/jobs/none/log", "/job?id=none", f"/v1/jobs/{'x' * 301}"):
        assert ada.get(path).status_code in (404, 422), path


def test_a_log_is_plain_text(portal: RunnerPortal) -> None:
    answer = portal.browser(ADA).client.get(f"/v1/jobs/{RUNNING.id}/log")
    assert (answer.status_code, answer.text) == (200, LOG)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert portal.browser(ADA).client.get(f"/v1/jobs/{WAITING.id}/log").text == "", "its runner has sent none yet"


def test_runners_and_what_is_wrong(portal: RunnerPortal) -> None:
    ada, root = portal.browser(ADA).client, portal.browser(ROOT).client
    answer = get(root, "/v1/runners?ended=10")
    assert [runner["name"] for runner in answer["runners"]][:3] == [BUSY.name, IDLE.name, "gpuyard-v100-b00t"]
    assert [runner["cause"] for runner in answer["runners"]] == [None, None, None, "finished", "gpu-check"]
    assert answer["runners"][0]["hosts"] == ["gpu-1/0000:a3:00.0"]
    assert answer["errors"] == ["scale set gpuyard-v100 of acme: GitHub: 503"]
    assert answer["sets"][0]["error"] == "GitHub: 503"
    mine = get(ada, "/v1/runners")
    assert (len(mine["runners"]), mine["errors"], mine["sets"][0]["error"]) == (3, [], "")
    assert mine["sets"][0]["assigned"] == 2


# What the pages say.


def test_the_page_shows_all_of_it(portal: RunnerPortal) -> None:
    text = Elements(portal.browser(ADA).client.get("/runners").text).text
    for words in (
        "1.", "all 6 GPUs of v100 are taken", "starts in 4 h at the latest", "runs for 1 h", "waited 2 min", IDLE.name,
        "success", "failure", "cancelled", "refused", REFUSED.reason, "gpu check", "acme/solver", "Time to start, p95",
    ):  # fmt: skip
        assert words in text, words
    assert "GitHub: 503" not in text, "what is wrong is for admins"
    assert "GitHub: 503" in portal.browser(ROOT).client.get("/runners").text


@pytest.mark.parametrize("path", ["/runners", f"/job?id={NASTY_JOB.id}", f"/job?id={RUNNING.id}"])
def test_nothing_in_names_reasons_and_logs_runs(portal: RunnerPortal, path: str) -> None:
    answer = portal.browser(ROOT).client.get(path)
    page = Elements(answer.text)
    assert EVIL in page.text
    assert page.tags.count("script") == 1
    assert page.tags.count("img") == 1
    assert not [link for link in page.links if link.startswith("javascript")]
    assert "\u202e" not in page.text.partition("End of the runner's log")[0], "names change no direction of text"
    assert answer.headers["cache-control"] == "no-store"


def test_links_between_pages_work(portal: RunnerPortal) -> None:
    ada = portal.browser(ADA).client
    links = {link for link in Elements(ada.get("/runners").text).links if link.startswith("job?")}
    assert len(links) == 7
    for link in links:
        assert ada.get(f"/{link}").status_code == 200, link
    assert "./runners" in Elements(ada.get("/").text).links


def test_a_page_of_many_jobs_is_bounded(portal: RunnerPortal) -> None:
    jobs = tuple(replace(WAITING, id=f"github.com/{number}", labels=("x" * 250,) * 100) for number in range(2000))
    portal.overview.publish(replace(BOARD, jobs=jobs, queue=()))
    text = portal.browser(ADA).client.get("/runners").text
    assert "And 1800 more" in text
    assert len(text) < 500_000


# Who sees it.


def test_without_login_nothing_is_seen(portal: RunnerPortal) -> None:
    nobody = portal.browser().client
    for path in ("/v1/queue", "/v1/jobs", f"/v1/jobs/{RUNNING.id}", f"/v1/jobs/{RUNNING.id}/log", "/v1/runners"):
        assert nobody.get(path).status_code == 401, path
    for path in ("/runners", f"/job?id={RUNNING.id}"):
        assert nobody.get(path).headers["location"].startswith("./login?next="), path


def test_a_public_site_shows_queue_and_history_to_everybody(public: RunnerPortal) -> None:
    nobody = public.browser().client
    assert len(get(nobody, "/v1/queue")["jobs"]) == 2
    assert len(get(nobody, "/v1/jobs")["jobs"]) == 7
    runners = get(nobody, "/v1/runners?ended=5")
    assert {(tuple(runner["hosts"]), runner["reason"]) for runner in runners["runners"]} == {((), "")}
    assert (runners["errors"], runners["sets"][0]["error"]) == ([], "")
    job = get(nobody, f"/v1/jobs/{RUNNING.id}")
    assert [event["text"] for event in job["events"]] == ["queued at GitHub"], "not what happened to its server"
    assert nobody.get(f"/v1/jobs/{RUNNING.id}/log").status_code == 401
    page, job_page = nobody.get("/runners").text, nobody.get(f"/job?id={RUNNING.id}").text
    for hidden in ("gpu-1/", "nvidia-smi", "GitHub: 503", "Running job: test", "Log out"):
        assert hidden not in page + job_page, hidden
    assert "Log in" in page
    assert "gpu-1/" in public.browser(ADA).client.get("/runners").text, "who has logged in sees more"


def test_a_public_site_shows_nothing_else_and_lets_nobody_change_anything(public: RunnerPortal) -> None:
    nobody = public.browser().client
    for path in ("/v1/gpus", "/v1/bookings", "/v1/queue/x", "/v1/jobsx", "/v1/sessions"):
        assert nobody.get(path).status_code == 401, path
    for path in ("/", "/calendar", "/runners/", "/jobs"):
        assert nobody.get(path).status_code == 303, path
    for path in ("/runners", "/v1/jobs", "/v1/queue", f"/v1/jobs/{RUNNING.id}"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert nobody.request(method, path).status_code in (303, 401), (method, path)


def test_strangers_may_look_so_often(tmp_path: Path) -> None:
    public = runner_portal(tmp_path, public=True)
    nobody = TestClient(public.app, client=("203.0.113.9", 1))
    answers = [nobody.get("/v1/runners").status_code for _ in range(400)]  # more are let in as time goes by
    assert answers[:240] == [200] * 240
    assert 429 in answers
    other = TestClient(public.app, client=("198.51.100.1", 1))
    assert other.get("/v1/runners").status_code == 200
    assert public.browser(ADA).client.get("/v1/runners").status_code == 200


# Numbers.


def test_percentiles_are_by_nearest_rank() -> None:
    assert percentile([], 50) is None
    assert [percentile([7.0], percent) for percent in (1, 50, 100)] == [7.0] * 3
    many = [float(number) for number in range(1, 101)]
    assert [percentile(many, percent) for percent in (1, 50, 95, 100)] == [1, 50, 95, 100]
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0


def test_gpu_hours_are_those_in_the_time() -> None:
    used = [
        GpuUse("a/b", "v100", 2, NOON - 10 * HOUR, NOON - 4 * HOUR),
        GpuUse("a/b", "v100", 1, NOON - HOUR),
        GpuUse("", "t4", 1, NOON - HOUR, NOON),
    ]
    assert gpu_hours(used, NOON - 6 * HOUR, NOON) == [("a/b", 5.0), ("", 1.0)]


def test_figures_are_reckoned_now_and_then(portal: RunnerPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [NOON]
    book = FigureCache(portal.runners, lambda: now[0])
    first = book.figures()
    assert (first.started, first.p50, first.p95, first.ended) == (4, 120, 120, 2)
    assert first.failures == {Cause.GPU_CHECK: 1}
    assert [name for name, _ in first.gpu_hours] == ["acme/solver", ""]
    portal.runners.put_runner(replace(BUSY, state=RunnerState.GONE, cause=Cause.FINISHED, ended=NOON))
    now[0] += AGAIN - timedelta(seconds=1)
    assert book.figures() is first
    now[0] += timedelta(seconds=1)
    assert book.figures().ended == 3
    assert reckon(portal.runners, NOON + 60 * 24 * HOUR).started == 0


def metrics(portal: RunnerPortal) -> dict[tuple[str, str], float]:
    """Name and labels -> value."""
    text = portal.browser().client.get("/metrics").text
    return {
        (sample.name, ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_say_what_there_is(public: RunnerPortal) -> None:
    samples = metrics(public)
    assert samples["gpuyard_runners", "pool=v100,state=busy"] == 1
    assert samples["gpuyard_runners", "pool=v100,state=registering"] == 0
    assert samples["gpuyard_runner_jobs", "state=queued"] == 2
    assert (samples["gpuyard_runner_queue_jobs", ""], samples["gpuyard_runner_queue_oldest_seconds", ""]) == (1, 300)
    sets = [
        samples[f"gha_{what}", "name=gpuyard-v100"] for what in ("assigned_jobs", "desired_runners", "idle_runners")
    ]
    assert sets == [2, 3, 1]
    assert samples["github_rate_limit_remaining", "enrolment=acme"] == 4880
    outcomes = {
        key: samples["gpuyard_runner_github_calls_total", f"enrolment=acme,outcome={key}"]
        for key in ("good", "unchanged", "failed")
    }
    assert outcomes == {"good": 37, "unchanged": 80, "failed": 3}
    assert samples["gha_job_startup_duration_seconds_count", "name="] == 0, "what was before the process does not count"


def test_metrics_add_up_what_happens(public: RunnerPortal) -> None:
    metrics(public)
    public.clock.forward(minutes=5)
    begun = replace(WAITING, state=JobState.RUNNING, runner=IDLE.name, started=NOON + 4 * MINUTE)
    public.runners.put([begun], [replace(IDLE, state=RunnerState.FAILED, cause=Cause.LOST, ended=NOON + 4 * MINUTE)])
    for _ in range(2):
        samples = metrics(public)
        assert samples["gha_job_startup_duration_seconds_count", "name=gpuyard-v100"] == 1
        assert samples["gha_job_startup_duration_seconds_sum", "name=gpuyard-v100"] == 24 * 60
        assert samples["gha_job_startup_duration_seconds_bucket", "le=1200.0,name=gpuyard-v100"] == 0
        assert samples["gha_job_startup_duration_seconds_bucket", "le=1800.0,name=gpuyard-v100"] == 1
        assert samples["gpuyard_runner_ends_total", "cause=lost"] == 1
        assert samples["gpuyard_runner_ends_total", "cause=booking"] == 0
    body = job_hook()
    for headers in (signed(body), signed(body, "wrong"), signed(body, event="ping")):
        public.browser().client.post(HOOK, content=body, headers=headers)
    samples = metrics(public)
    outcomes = {
        key: samples["gpuyard_runner_webhooks_total", f"outcome={key}"] for key in ("kept", "refused", "ignored")
    }
    assert outcomes == {"kept": 1, "refused": 1, "ignored": 1}


def test_metrics_of_a_closed_site_name_nobody(portal: RunnerPortal) -> None:
    samples = metrics(portal)
    assert samples["gha_assigned_jobs", "name="] == 2
    assert samples["gpuyard_runner_set_waiting_jobs", "name="] == 3
    assert samples["github_rate_limit_remaining", "enrolment="] == 4880
    assert not [labels for _, labels in samples if "acme" in labels or "gpuyard-v100" in labels]


def test_a_tally_counts_each_thing_once_also_late_ones() -> None:
    tally = Tally[str](NOON)
    assert tally.since(NOON) == NOON
    assert tally.new(NOON, [("a", NOON, "a")]) == ["a"]
    later = NOON + MINUTE
    assert tally.new(later, [("a", NOON, "a"), ("b", NOON, "b")]) == ["b"], "written down late"
    far = NOON + LATE + HOUR
    assert tally.since(far) == far - LATE
    assert tally.new(far, [("c", far, "c")]) == ["c"]
    assert len(tally._seen) == 1, "what is not listed any more is forgotten"
