"""What strangers see of jobs of private repositories, endpoint by endpoint, and how it is learned that they are."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuyard.database.engine import Database
from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.overview import EnrolmentStatus
from gpuyard.runners.records import JobState, RunnerEvent, RunnerState, ScaleSetState
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.view import QueuePlace
from gpuyard.runners.web.private_repositories import HIDDEN_JOB, HIDDEN_REPOSITORY
from gpuyard.web.settings import OthersShown, PortalSettings
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.ledgers import ADA, BOB, HOUR, NOON, ROOT
from tests.support.portals import ROOMY
from tests.support.runner_portals import (
    BOARD,
    BUSY,
    IDLE,
    MINUTE,
    OVER,
    RUNNING,
    WAITING,
    RunnerPortal,
    fill,
    runner_portal,
)
from tests.support.simulated_runners import SimulatedRunners, cirun_repository, hook

WORD = "s3cret"
PRIVATE = f"acme/{WORD}"
ABOUT: dict[str, Any] = {
    "repository": PRIVATE, "name": f"{WORD} job", "workflow": f"{WORD} flow", "labels": (f"{WORD}-label",),
    "actor": f"{WORD}-actor", "head_branch": f"{WORD}-branch", "html_url": f"https://github.com/{PRIVATE}/1",
    "event": f"{WORD}_event", "reason": f"{WORD} reason",
}  # fmt: skip
QUEUED = replace(WAITING, id=f"github.com/set/{PRIVATE}/1", queued=NOON - 2 * MINUTE, **ABOUT)
WORKS = replace(RUNNING, id=f"github.com/set/{PRIVATE}/2", runner=IDLE.name, **ABOUT)
DONE_JOB = replace(OVER[0], id=f"github.com/set/{PRIVATE}/3", queued=NOON - MINUTE, **ABOUT)
REFUSED_JOB = replace(DONE_JOB, id=f"github.com/set/{PRIVATE}/4", state=JobState.REFUSED, conclusion="")
JOBS = (QUEUED, WORKS, DONE_JOB, REFUSED_JOB)
MINE: dict[str, Any] = {
    "repository": PRIVATE,
    "for_repository": PRIVATE,
    "scope": PRIVATE,
    "labels": (f"{WORD}-label",),
}
HAS_IT = replace(IDLE, state=RunnerState.BUSY, job=WORKS.id, for_job=WORKS.id, busy=NOON - HOUR, **MINE)
STOLEN = replace(IDLE, name="gpuyard-v100-st0l3n", job=WORKS.id)
"""Made for anybody, and given a private job."""
ENDED = replace(HAS_IT, name="gpuyard-v100-3nd3d", state=RunnerState.GONE, ended=NOON - HOUR, created=NOON - 3 * HOUR)
PATHS = (
    "/v1/queue", "/v1/jobs", "/v1/jobs?limit=2", f"/v1/jobs?repository={PRIVATE}", "/v1/runners?ended=100", "/runners",
    "/metrics", *(f"/v1/jobs/{job.id}" for job in JOBS), *(f"/job?id={job.id}" for job in JOBS),
    f"/v1/jobs/{RUNNING.id}", f"/job?id={RUNNING.id}", *(f"/v1/jobs/{job.id}/log" for job in JOBS),
)  # fmt: skip


def portal(
    folder: Path, shown: str, public: bool = True, settings: PortalSettings = ROOMY, project: str = "gpuyard-runners"
) -> RunnerPortal:
    enrolments = [
        {"organization": "acme", "token_file": "/nowhere"},
        {"repository": PRIVATE, "token_file": "/nowhere"},
    ]
    made = runner_portal(
        folder, public=public, settings=settings, private_repositories=shown, enrolments=enrolments, project=project
    )
    fill(made)
    runners = (HAS_IT, STOLEN)
    made.runners.put([*JOBS], [*runners, ENDED], [RunnerEvent(NOON, "", WORKS.id, f"for {WORD}")])
    made.runners.put_message(ScaleSetState(PRIVATE, "gpuyard-own", 8, 1, 1, NOON))
    made.overview.publish(
        replace(
            BOARD,
            jobs=(*BOARD.jobs, QUEUED, WORKS),
            runners=(BUSY, *runners),
            queue=(QueuePlace(QUEUED.id, "v100", 2, f"its last runner failed ({WORD})", NOON + HOUR), *BOARD.queue),
            enrolments=(*BOARD.enrolments, EnrolmentStatus(PRIVATE, CallCount(120, 80, 3, 1, 5000, 4880))),
        )
    )
    return made


@pytest.mark.parametrize("shown", ["jobs", "nothing"])
def test_strangers_learn_no_name_at_any_endpoint(tmp_path: Path, shown: str) -> None:
    site = portal(tmp_path, shown)
    nobody, ada = site.browser().client, site.browser(ADA).client
    for path in PATHS:
        answer = nobody.get(path)
        text = answer.text.replace(path.partition("/jobs/")[2] or "-", "").replace(path.partition("=")[2] or "-", "")
        assert WORD not in text, path
        assert answer.status_code in (200, 401, 404), path
    for path in PATHS[: -len(JOBS)]:
        assert ada.get(path).status_code == 200, "who is logged in sees all"
    assert WORD in ada.get("/v1/jobs").text
    assert WORD in ada.get("/runners").text


@pytest.mark.parametrize("others", [OthersShown.PROJECTS, OthersShown.NOTHING])
def test_where_others_are_hidden_people_of_other_projects_are_strangers(tmp_path: Path, others: OthersShown) -> None:
    settings = replace(ROOMY, others=others)
    site = portal(tmp_path, "jobs", public=False, settings=settings)
    ada, root = site.browser(ADA).client, site.browser(ROOT).client
    for path in PATHS:
        shown = ada.get(path).text
        for asked_for in (*(job.id for job in JOBS), *([PRIVATE] if "repository=" in path else [])):
            shown = shown.replace(asked_for, "") if asked_for in path else shown
        assert WORD not in shown, path
    assert ada.get(f"/v1/jobs/{RUNNING.id}/log").status_code in (200, 404), "of a public repository, as before"
    assert ada.get(f"/v1/jobs/{WORKS.id}/log").status_code == 404
    for path in ("/v1/queue", "/v1/jobs", "/runners"):
        assert WORD in root.get(path).text, "admins see all"


def test_people_of_the_runners_project_see_its_jobs_whatever_others_see(tmp_path: Path) -> None:
    settings = replace(ROOMY, others=OthersShown.NOTHING)
    site = portal(tmp_path, "nothing", public=False, settings=settings, project=ADA.project)
    assert WORD in site.browser(ADA).client.get("/v1/jobs").text
    assert WORD not in site.browser(BOB).client.get("/v1/jobs").text


def test_every_public_endpoint_of_runners_is_among_them(tmp_path: Path) -> None:
    site = portal(tmp_path, "jobs")
    nobody = site.browser().client
    routes = {
        str(getattr(route, "path", "")) for route in site.app.routes if "GET" in (getattr(route, "methods", None) or ())
    }
    tried = {path.partition("?")[0].replace(job.id, "{id:path}") for path in PATHS for job in (*JOBS, RUNNING)}
    more = {
        path
        for path in routes - tried
        if "{" not in path and nobody.get(path, follow_redirects=False).status_code == 200
    }
    for path in more:  # what else is for everybody has nothing to do with jobs
        assert WORD not in nobody.get(path).text, path
    assert {
        "/v1/queue",
        "/v1/jobs",
        "/v1/jobs/{id:path}",
        "/v1/runners",
        "/runners",
        "/job",
        "/metrics",
    } <= tried & routes


def test_strangers_see_that_there_is_a_job(tmp_path: Path) -> None:
    nobody = portal(tmp_path, "jobs").browser().client
    queue = nobody.get("/v1/queue").json()
    first = queue["jobs"][0]
    assert (first["id"], first["name"], first["repository"]) == ("", HIDDEN_JOB, "")
    assert (queue["jobs"][0]["place"]["position"], queue["more"]) == (2, 0)
    assert nobody.get("/v1/queue?limit=1&skip=1").json()["more"] == 1
    assert [job["name"] for job in nobody.get("/v1/jobs").json()["jobs"]].count(HIDDEN_JOB) == len(JOBS)
    page = nobody.get("/runners").text
    assert HIDDEN_JOB in page
    assert HIDDEN_REPOSITORY in page, "its GPU-hours"
    assert 'job?id="' not in page


def test_strangers_see_nothing_of_it(tmp_path: Path) -> None:
    nobody = portal(tmp_path, "nothing").browser().client
    assert HIDDEN_JOB not in "".join(nobody.get(path).text for path in PATHS)
    assert HIDDEN_REPOSITORY not in nobody.get("/runners").text
    assert len(nobody.get("/v1/queue").json()["jobs"]) == len(BOARD.queue)
    # A page of jobs is full although others are left out.
    assert len(nobody.get("/v1/jobs?limit=2").json()["jobs"]) == 2


def test_a_site_may_show_all_names(tmp_path: Path) -> None:
    nobody = portal(tmp_path, "names").browser().client
    assert nobody.get(f"/v1/jobs/{WORKS.id}").json()["repository"] == PRIVATE
    for path in ("/v1/queue", "/v1/jobs", "/runners", "/metrics", "/v1/runners"):
        assert WORD in nobody.get(path).text, path


def test_a_site_without_a_public_page_shows_all_to_who_is_logged_in(tmp_path: Path) -> None:
    site = portal(tmp_path, "jobs", public=False)
    assert site.browser().client.get("/v1/queue").status_code == 401
    assert WORD not in site.browser().client.get("/metrics").text
    assert site.browser(ADA).client.get(f"/v1/jobs/{WORKS.id}").json()["repository"] == PRIVATE


# What GitHub says.


def test_a_repository_is_public_when_all_say_so_and_lately(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        store = RunnerStore(database)
        assert store.public_repositories(NOON) == frozenset()
        store.put_visibility("acme", "Acme/Open", False, NOON)
        store.put_visibility("acme", "acme/closed", True, NOON)
        store.put_visibility("ghe/acme", "acme/both", True, NOON)
        store.put_visibility("acme", "acme/both", False, NOON)
        assert store.public_repositories(NOON + HOUR) == {"acme/open"}
        assert store.public_repositories(NOON + timedelta(days=2)) == frozenset(), "what is old counts no more"
        assert store.seen_before(NOON + HOUR, "acme", 2) == ["acme/both", "acme/closed"]
        store.put_visibility("acme", "acme/open", True, NOON + HOUR)
        assert store.public_repositories(NOON + HOUR) == frozenset()
        store.prune(NOON + timedelta(days=500))
        assert store.seen_before(NOON + timedelta(days=500), "acme") == []


@pytest.mark.parametrize("sets", [True, False])
def test_github_is_asked_or_tells_and_asked_again(tmp_path: Path, sets: bool) -> None:
    world = SimulatedRunners(tmp_path, sets=sets)
    label = "gpuyard-v100" if sets else "cirun-gpu"
    cirun_repository(world, "demo/open")
    world.github.forge.add_repository("demo/closed", private=True).files.update(
        world.github.forge.repositories["demo/open"].files
    )
    hook(world)
    world.step()
    jobs = [world.github.forge.push(name, [JobOrder((label,), 30)]).jobs[0] for name in ("demo/open", "demo/closed")]
    world.until(lambda: all(world.job(id).status == COMPLETED for id in jobs))
    assert world.store.public_repositories(world.clock()) == {"demo/open"}
    world.github.forge.repositories["demo/open"].private = True
    world.until(lambda: not world.store.public_repositories(world.clock()), hours=8, seconds=300)


def test_the_map_names_a_private_repository_only_where_the_site_does(tmp_path: Path) -> None:
    names_by_setting: dict[str, set[str]] = {}
    for shown in ("jobs", "names"):
        folder = tmp_path / shown
        folder.mkdir()
        world = SimulatedRunners(folder, runners_rules={"private_repositories": shown})
        world.github.forge.add_repository("demo/closed", private=True)
        world.until(lambda: bool(world.github.forge.sets))  # noqa: B023
        world.github.forge.push("demo/closed", [JobOrder(("gpuyard-v100",), 30)])
        world.until(lambda: bool(world.ledger.leases.current()))  # noqa: B023
        (lease,) = world.ledger.leases.current()
        names_by_setting[shown] = {lease.ask.comment.partition(" of ")[2]}
    assert names_by_setting == {"jobs": {"a private repository"}, "names": {"demo/closed"}}
