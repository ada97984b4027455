"""Runners of flavors without GPUs: no lease, a queue of their own, and the site's limit on how many there are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.model.booking import FOREVER
from gpuyard.runners.cirun.records import CirunFile
from gpuyard.runners.cpu_lane import cpu_room
from gpuyard.runners.planner import plan
from gpuyard.runners.records import Cause, Job, RunnerState, ServerChoice
from gpuyard.runners.resolve import Configuration, RepositoryFiles, Ruling, read, resolve
from gpuyard.runners.user_data import user_data
from gpuyard.runners.view import CreateRunner, RunnerPlan, RunnerView, SetDemand
from gpuyard.site.runner_rules import CPU
from gpuyard_lab.github.records import JobOrder
from tests.support.runner_world import HOUR, MINUTE, NOON, job, runner, site_runners, wanted
from tests.support.simulated_runners import Mishaps, SimulatedRunners, hook, runner_site

LATER = NOON + 10 * MINUTE
CI = ServerChoice(CPU, "ci_medium", "ubuntu", 0)
CPU_CIRUN = """\
runners:
  - {name: cpu, cloud: openstack, instance_type: ci_medium, machine_image: tiny, labels: [cirun-cpu]}
"""


def cpu_job(number: int | str, repository: str = "acme/a", **values: Any) -> Job:
    return job(number, repository, spec=wanted(CI), **values)


def view(most: int, *things: Any, **more: Any) -> RunnerView:
    site = site_runners(cpu_runners=most, **more.pop("site", {}))
    jobs = [thing for thing in things if isinstance(thing, Job)]
    runners = [thing for thing in things if not isinstance(thing, Job)]
    return RunnerView(site, jobs, runners, {}, {CPU: cpu_room(site, runners, {}, LATER)}, **more)


def made(runner_plan: RunnerPlan) -> list[str]:
    return [step.for_job.rpartition("/")[2] for step in runner_plan.steps if isinstance(step, CreateRunner)]


def test_so_many_run_at_once_as_the_site_says_and_the_others_wait_with_a_time() -> None:
    runner_plan = plan(view(2, *(cpu_job(number) for number in range(4))), LATER)
    assert made(runner_plan) == ["0", "1"]
    waiting = [place for place in runner_plan.queue if place.position]
    assert [(place.pool, place.position) for place in waiting] == [(CPU, 1), (CPU, 2)]
    assert waiting[0].reason == "waiting for one of the 2 runners without GPUs that may run at once"
    assert waiting[0].start is not None


def test_a_server_that_is_being_deleted_still_has_its_place() -> None:
    going = runner("r1", RunnerState.DELETING, choice=CI, spec=wanted(CI), lease="")
    assert made(plan(view(1, cpu_job(1), going), LATER)) == []
    gone = runner("r1", RunnerState.DELETING, choice=CI, spec=wanted(CI), lease="", ended=LATER)
    assert made(plan(view(1, cpu_job(1), gone), LATER)) == ["1"]


def test_limits_of_gpus_do_not_hold_for_those_without() -> None:
    """Nor do these use up any."""
    v100 = job("g", spec=wanted())
    runner_plan = plan(view(2, v100, cpu_job(1), cpu_job(2), site={"most": 1}), LATER)
    assert made(runner_plan) == ["1", "2"]


def test_repositories_take_turns_by_what_they_used_without_gpus() -> None:
    used = {"acme/a": 500.0, "without gpus acme/b": 1.0}
    jobs = [cpu_job(1, "acme/a", queued=NOON + MINUTE), cpu_job(2, "acme/b")]
    assert made(plan(view(1, *jobs, used=used), LATER)) == ["1"]
    mine = [cpu_job(number, "acme/a", queued=NOON - HOUR + number * MINUTE) for number in range(3)]
    assert made(plan(view(2, *mine, cpu_job(9, "acme/b")), LATER)) == ["0", "9"], "in turns"


def test_a_scale_set_without_gpus_announces_what_may_run() -> None:
    demand = SetDemand("cpu", "acme", wanted(CI, kind="cpu"))
    assert plan(view(3, sets=[demand]), LATER).capacity == {"cpu": 3}
    taken = runner(
        "r1", RunnerState.BUSY, choice=CI, spec=wanted(CI), lease="", until=LATER + HOUR, for_job="github.com/7"
    )
    assert plan(view(3, taken, sets=[demand]), LATER).capacity == {"cpu": 2}


def test_the_room_is_what_the_site_says_also_when_more_run() -> None:
    site = site_runners(cpu_runners=1)
    running = [runner(f"r{n}", RunnerState.BUSY, choice=CI, lease="", until=LATER + n * HOUR) for n in (1, 2)]
    (lane,) = cpu_room(site, running, {}, LATER).lanes
    assert lane.free == ((LATER + 2 * HOUR + timedelta(minutes=10), FOREVER),)


def test_the_guest_checks_no_gpu_where_there_is_none() -> None:
    text = user_data("gpuyard-cpu-5f3a9c-k8x2m9qd", "aGVsbG8=", 0, "")
    files = {file["path"].rpartition("/")[2]: file["content"] for file in YAML(typ="safe").load(text)["write_files"]}
    assert "GPUS=0\n" in files["settings"]
    assert '[ "$GPUS" = 0 ] || check_gpus' in files["runner"]


def world(folder: Path, most: int = 2, **more: Any) -> SimulatedRunners:
    simulation = SimulatedRunners(folder, runners_rules={"cpu_runners": most}, **more)
    simulation.github.forge.add_repository("demo/science").files[".cirun.yml"] = CPU_CIRUN
    hook(simulation)
    return simulation


def test_jobs_run_without_a_lease_and_leave_nothing(tmp_path: Path) -> None:
    simulation = world(tmp_path)
    jobs = simulation.github.forge.push("demo/science", [JobOrder(("cirun-cpu",), 60)] * 5).jobs
    most = 0
    for _ in range(80):
        simulation.step(15)
        most = max(most, len(simulation.nova.servers))
        assert not simulation.ledger.leases.current()
    assert simulation.at_rest(), simulation.report()
    assert most == 2
    assert {simulation.job(id).conclusion for id in jobs} == {"success"}, simulation.report()
    ended = simulation.store.runners(over=True)
    assert {(runner.choice.pool, runner.choice.gpus, runner.cause) for runner in ended} == {(CPU, 0, Cause.FINISHED)}


def test_where_nova_has_no_room_it_is_asked_ever_more_rarely_and_the_job_waits(tmp_path: Path) -> None:
    simulation = world(tmp_path, mishaps=Mishaps(no_host=1.0))
    (id,) = simulation.github.forge.push("demo/science", [JobOrder(("cirun-cpu",), 60)]).jobs
    simulation.until(lambda: len(simulation.nova.posts) == 9, hours=2)
    gaps = [
        (late[0] - early[0]).total_seconds()
        for early, late in zip(simulation.nova.posts, simulation.nova.posts[1:], strict=False)
    ]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 120
    assert simulation.our_job(simulation.job(id)).tries == 0  # type: ignore[union-attr]
    simulation.mishaps.no_host = 0.0
    simulation.until(lambda: simulation.job(id).status == "completed", hours=2)


@pytest.mark.parametrize(
    ("most", "file", "flavor", "ruling"),
    [
        (2, "cirun", "ci_medium", Ruling.GRANTED),
        (2, "cirun_global", "ci_medium", Ruling.GRANTED),
        (0, "cirun", "ci_medium", Ruling.REFUSED),
        (0, "cirun_global", "ci_medium", Ruling.NOT_OURS),
        (2, "cirun", "ci_huge", Ruling.REFUSED),
        (2, "cirun_global", "ci_huge", Ruling.NOT_OURS),
    ],
)
def test_a_flavor_that_the_site_lacks_is_anothers_in_a_shared_file(
    tmp_path: Path, most: int, file: str, flavor: str, ruling: Ruling
) -> None:
    site = runner_site(tmp_path, {"cpu_runners": most}).site
    configuration: Configuration = read(RepositoryFiles(**{file: CPU_CIRUN.replace("ci_medium", flavor)}))
    assert isinstance(configuration.own, CirunFile)
    github_job = job(1, "demo/science", labels=("cirun-cpu",), scope="github.test/demo", event="push", spec=None)
    resolution = resolve(github_job, site, configuration, None)  # type: ignore[arg-type]
    assert resolution.ruling is ruling, resolution.reasons
    assert (resolution.spec.choices[0].gpus == 0) if resolution.spec else flavor in resolution.reason


def test_a_site_file_says_how_many(tmp_path: Path) -> None:
    sets = {"cpu": {"flavors": ["ci_large"], "images": ["tiny"]}}
    with pytest.raises(Exception, match="say with 'cpu_runners' how many"):
        runner_site(tmp_path, {"sets": sets})
    assert runner_site(tmp_path, {"sets": sets, "cpu_runners": 1}).site.runners is not None
