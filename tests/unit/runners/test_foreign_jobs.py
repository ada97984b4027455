"""Jobs of other people's runners, of which an organisation has many more than of ours, cost few calls of GitHub."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from gpuyard.runners.cirun.labels import is_general, is_hosted
from gpuyard.runners.controllers.absent_files import BY_LABELS, BY_NAME, AbsentFiles
from gpuyard.runners.records import JobState
from gpuyard.runners.resolve import not_ours_by_labels
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.communities import job, site_of
from tests.support.simulated_runners import Clock, SimulatedRunners, cirun_repository, hook

# docs.github.com, Actions, "GitHub-hosted runners reference" and "Larger runners reference" (macOS), and the labels of
# actions/runner-images' README, as of November 2026.
HOSTED = (
    "ubuntu-latest", "ubuntu-26.04", "ubuntu-24.04", "ubuntu-22.04", "ubuntu-24.04-arm", "ubuntu-22.04-arm",
    "ubuntu-slim", "windows-latest", "windows-2025", "windows-2022", "windows-2025-vs2026", "windows-11-arm",
    "macos-latest", "macos-13", "macos-14", "macos-15", "macos-26", "macos-15-intel", "macos-26-intel",
    "macos-latest-large", "macos-15-xlarge",
)  # fmt: skip


@pytest.mark.parametrize("label", HOSTED)
def test_githubs_own_labels_are_known(label: str) -> None:
    assert is_hosted([label])
    assert is_hosted([label.upper()])


@pytest.mark.parametrize(
    "labels",
    [
        (), ("cirun-gpu",), ("ubuntu-22.04", "gpu"), ("self-hosted", "ubuntu-22.04"), ("ubuntu-gpu",),
        ("ubuntu-latest--4711",), ("ubuntu-latest-8-cores",), ("my-ubuntu-latest",), ("ubuntu",), ("ubuntu-latest\n",),
    ],
)  # fmt: skip
def test_other_labels_may_be_anybodys(labels: tuple[str, ...]) -> None:
    assert is_hosted(labels) is (labels == ("ubuntu-latest\n",)), "only what surrounds a label is stripped"


def test_labels_that_every_runner_has_name_none() -> None:
    assert is_general(["self-hosted", "Linux", "X64"])
    assert is_general([])
    assert not is_general(["self-hosted", "gpu"])


@pytest.mark.parametrize(
    ("labels", "url", "reason"),
    [
        (("ubuntu-latest",), "https://github.com", "GitHub hosts"),
        (("ubuntu-latest",), "https://acme.ghe.com", "GitHub hosts"),
        (("ubuntu-latest",), "https://github.acme.example", ""),
        (("self-hosted", "linux"), "https://github.com", "no runner in particular"),
        (("cirun-gpu",), "https://github.com", ""),
        (("somebody-elses",), "https://github.com", ""),
    ],
)
def test_labels_alone_say_that_a_job_is_not_ours(labels: tuple[str, ...], url: str, reason: str) -> None:
    """GitHub Enterprise Server has no hosted runners (docs.github.com, "Choosing the runner for a job")."""
    runners = site_of().runners
    assert runners is not None
    enrolment = runners.enrolments[0].model_copy(update={"url": url})
    verdict = not_ours_by_labels(job("flash-raster-feedstock", *labels), runners, enrolment)
    assert (reason in verdict, bool(verdict)) == (True, bool(reason))


def world_of(folder: Path, requests_an_hour: int = 100_000) -> SimulatedRunners:
    world = SimulatedRunners(folder, sets=False, requests_an_hour=requests_an_hour)
    cirun_repository(world)
    hook(world)
    world._due["recover"] = world.clock() + timedelta(days=9)
    return world


def push_everywhere(world: SimulatedRunners, count: int, label: str) -> None:
    for number in range(count):
        if f"demo/r{number}" not in world.github.forge.repositories:
            world.github.forge.add_repository(f"demo/r{number}")
        world.github.forge.push(f"demo/r{number}", [JobOrder((label,), 60)])


def count_calls(world: SimulatedRunners) -> Counter[str]:
    """Calls that GitHub counts, with the numbers taken out of their paths."""
    counted: Counter[str] = Counter()
    handle = world.github.handle

    def count(request):  # type: ignore[no-untyped-def]
        answer = handle(request)
        if answer.status != 304:
            counted[re.sub(r"/r\d+/", "/rN/", request.path.removeprefix("/api/v3"))] += 1
        return answer

    world.github.handle = count  # type: ignore[method-assign]
    return counted


OWN_FILE = "/repos/demo/rN/contents/.cirun.yml"


def test_a_repository_without_a_file_is_asked_about_once_for_the_same_labels(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    counted = count_calls(world)
    for _ in range(4):
        push_everywhere(world, 10, "somebody-elses")
        world.step(12 * 60)
    assert counted[OWN_FILE] == 10
    world.clock.now += BY_LABELS
    push_everywhere(world, 10, "somebody-elses")
    world.step()
    assert counted[OWN_FILE] == 20
    assert not world.store.public_repositories(world.clock()), "they are not asked about again either"


def test_a_repository_that_gets_a_file_and_a_label_of_its_own_is_heard_at_once(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    push_everywhere(world, 1, "somebody-elses")
    world.step()
    world.step(60)
    cirun = world.github.forge.repositories["demo/science"].files[".cirun.yml"]
    world.github.forge.repositories["demo/r0"].files[".cirun.yml"] = cirun.replace("cirun-gpu", "gpu-of-ours")
    (id,) = world.github.forge.push("demo/r0", [JobOrder(("gpu-of-ours",), 60)]).jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=0.2)


def test_jobs_of_nobody_do_not_use_up_the_calls_for_ours(tmp_path: Path) -> None:
    """With GitHub's limit scaled down from 5,000 an hour to 80."""
    world = world_of(tmp_path, requests_an_hour=80)
    (first,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    world.until(lambda: world.job(first).status == COMPLETED, hours=0.5)
    push_everywhere(world, 90, "somebody-elses")
    world.step()
    (id,) = world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 60)]).jobs
    world.until(lambda: world.job(id).status == COMPLETED, hours=0.2)
    assert world.store.deliveries(world.clock() + timedelta(hours=1)), "the others wait for the next hour"
    world.until(lambda: not world.store.deliveries(world.clock() + timedelta(days=1)), hours=4, seconds=300)
    assert [latest_job.state for latest_job in world.store.latest_jobs(limit=10)] == [JobState.COMPLETED] * 2, (
        "none of them is ours"
    )


def test_repositories_that_had_jobs_are_known_after_a_restart(tmp_path: Path) -> None:
    world = world_of(tmp_path, requests_an_hour=80)
    files = world.github.forge.repositories["demo/science"].files
    files[".cirun.yml"] = files[".cirun.yml"].replace("cirun-gpu", "gpu-of-ours")
    for moment in ("before", "after"):
        (id,) = world.github.forge.push("demo/science", [JobOrder(("gpu-of-ours",), 60)]).jobs
        world.until(lambda id=id: world.job(id).status == COMPLETED, hours=0.2)  # type: ignore[misc]
        if moment == "before":
            push_everywhere(world, 90, "somebody-elses")
            world.step()
            world.kill()


def test_absences_are_forgotten_in_time() -> None:
    clock = Clock()
    absent = AbsentFiles(clock)
    absent.note("acme", "acme/X", ("a", "b--17"), absent=True)
    assert absent.is_absent("acme", "Acme/x", ("B", "a"))
    assert absent.is_absent("acme", "acme/x", ())
    assert not absent.is_absent("acme", "acme/x", ("a",))
    assert not absent.is_absent("other", "acme/x", ("a", "b"))
    absent.note("acme", "acme/x", ("cirun-a",), absent=True)
    assert not absent.is_absent("acme", "acme/x", ("cirun-a",)), "who has such a label should have a file"
    clock.now += BY_NAME
    assert not absent.is_absent("acme", "acme/x", ())
    assert absent.is_absent("acme", "acme/x", ("a", "b"))
    clock.now += BY_LABELS - BY_NAME
    assert not absent.is_absent("acme", "acme/x", ("a", "b"))
    absent.note("acme", "acme/x", ("a",), absent=False)
    assert not absent.is_absent("acme", "acme/x", ())


def test_a_ruling_by_labels_asks_github_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    counted = count_calls(world)
    push_everywhere(world, 3, "linux")
    world.step()
    assert counted[OWN_FILE] == 0
