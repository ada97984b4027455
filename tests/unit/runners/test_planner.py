"""The traps of runners one by one: what has gone wrong in other controllers, and what the plan is here."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuyard.bookings.ledger.runner_leases import LaneCapacity, PoolCapacity
from gpuyard.model.booking import FOREVER
from gpuyard.runners.fair_share import decayed, factor
from gpuyard.runners.planner import DISBELIEVED, INVITED, MOST_TRIES, SPARE, UNTOLD, plan, retry_after
from gpuyard.runners.records import Cause, GpuUse, Job, JobState, Runner, RunnerState, ServerChoice
from gpuyard.runners.resolve import IdleRunners
from gpuyard.runners.view import ChangeLease, CreateRunner, DeleteRunner, FailJob, RunnerPlan, RunnerView, SetDemand
from tests.support.runner_world import HOUR, MINUTE, NOON, V100, job, lease, runner, site_runners, wanted

LATER = NOON + 10 * MINUTE
FREE = ((NOON, FOREVER),)
Gaps = tuple[tuple[datetime, datetime], ...]


def room(*lanes: Gaps, pool: str = "v100", blocked: str = "", host: str = "h1") -> dict[str, PoolCapacity]:
    return {pool: PoolCapacity(pool, tuple(LaneCapacity(1, gaps, host) for gaps in lanes), blocked)}


def view(
    *things: Job | Runner, capacities: dict[str, PoolCapacity] | None = None, site: Any = None, **more: Any
) -> RunnerView:
    """Each runner has a lease that suits it."""
    runners = [thing for thing in things if isinstance(thing, Runner)]
    leases = {
        runner.lease: lease(runner, runner.until + 10 * MINUTE if runner.until else NOON + 3 * HOUR)
        for runner in runners
    }
    jobs = [thing for thing in things if isinstance(thing, Job)]
    return RunnerView(
        site or site_runners(), jobs, runners, leases, room(FREE) if capacities is None else capacities, **more
    )


def made(runner_plan: RunnerPlan) -> list[str]:
    return [step.for_job.rpartition("/")[2] for step in runner_plan.steps if isinstance(step, CreateRunner)]


def deleted(runner_plan: RunnerPlan) -> list[str]:
    return [step.runner for step in runner_plan.steps if isinstance(step, DeleteRunner)]


def reasons(runner_plan: RunnerPlan) -> dict[str, str]:
    return {place.job.rpartition("/")[2]: place.reason for place in runner_plan.queue}


def busy(name: str, number: int | str, **values: Any) -> Runner:
    given = {"job": f"github.com/{number}", "busy": NOON, "until": NOON + HOUR}
    return runner(name, RunnerState.BUSY, **{**given, **values})


def test_a_stolen_runner_is_replaced() -> None:
    """GitHub gave job 1's runner to job 2: job 1 has none, whatever the runner was made for."""
    stolen = busy("r1", 2, for_job="github.com/1")
    runner_plan = plan(view(job(1), job(2, state=JobState.RUNNING, runner="r1"), stolen), LATER)
    assert made(runner_plan) == ["1"]


def test_whoever_was_robbed_takes_the_runner_of_the_robber() -> None:
    left = runner("r2", for_job="github.com/2")
    taken = busy("r1", 2, for_job="github.com/1")
    runner_plan = plan(view(job(1), job(2, state=JobState.RUNNING, runner="r1"), taken, left), LATER)
    assert made(runner_plan) == deleted(runner_plan) == []
    assert reasons(runner_plan) == {"1": "its runner is ready"}


def test_a_completed_job_that_is_told_again_takes_nothing_away() -> None:
    """Counting would make +1 - 5 = 0 runners of this."""
    over = [job(number, state=JobState.COMPLETED) for number in range(5)]
    assert made(plan(view(job(9), *over), LATER)) == ["9"]


def test_a_job_that_is_told_twice_gets_one_runner() -> None:
    assert made(plan(view(job(1), job(1), capacities=room(FREE, FREE)), LATER)) == ["1"]


@pytest.mark.parametrize(
    "state", [RunnerState.REQUESTED, RunnerState.CREATING, RunnerState.REGISTERING, RunnerState.IDLE]
)
def test_a_job_cancelled_in_the_queue_leaves_a_runner_that_goes(state: RunnerState) -> None:
    """After a while, and not on the first look: another job may be about to have it."""
    spare = runner("r1", state, for_job="github.com/1")
    runner_view = view(job(1, state=JobState.COMPLETED), spare)
    first = plan(runner_view, LATER)
    assert deleted(first) == []
    assert first.since == {"r1": LATER}
    assert deleted(plan(replace(runner_view, since=first.since), LATER + SPARE - MINUTE)) == []
    last = plan(replace(runner_view, since=first.since), LATER + SPARE)
    assert [step for step in last.steps if isinstance(step, DeleteRunner)] == [
        DeleteRunner("r1", Cause.NOT_NEEDED, "its job was cancelled, or has another runner")
    ]


def test_a_runner_that_is_wanted_again_in_the_meantime_stays() -> None:
    runner_view = view(job(2), runner("r1"), since={"r1": NOON})
    runner_plan = plan(runner_view, LATER)
    assert runner_plan.since == {}
    assert made(runner_plan) == deleted(runner_plan) == []


def test_a_busy_runner_is_never_spare() -> None:
    runner_plan = plan(view(busy("r1", 7), since={"r1": NOON}), LATER)
    assert deleted(runner_plan) == []


def test_a_runner_that_has_a_job_by_the_jobs_word_is_left_alone() -> None:
    """`in_progress` came before anybody saw the runner busy."""
    idle = runner("r1", for_job="github.com/1")
    runner_plan = plan(view(job(1, state=JobState.RUNNING, runner="r1"), idle, since={"r1": NOON}), NOON + HOUR)
    assert deleted(runner_plan) == []


@pytest.mark.parametrize(
    "state", [state for state in RunnerState if state not in (RunnerState.GONE, RunnerState.FAILED)]
)
def test_a_runner_without_its_lease_goes_at_once_whatever_it_does(state: RunnerState) -> None:
    leaseless = runner("r1", state, for_job="github.com/1")
    runner_plan = plan(replace(view(job(1), leaseless), leases={}), LATER)
    causes = {step.runner: step.cause for step in runner_plan.steps if isinstance(step, DeleteRunner)}
    assert causes == ({} if state is RunnerState.DELETING else {"r1": Cause.BOOKING})


def test_a_busy_runner_is_taken_to_have_its_own_job_for_a_while() -> None:
    """GitHub has it busy, and the event that says with what is late."""
    taken = busy("r1", "", job="", for_job="github.com/1")
    assert made(plan(view(job(1), taken), NOON + MINUTE)) == []
    assert made(plan(view(job(1), taken), NOON + 6 * MINUTE)) == ["1"]


def test_a_job_that_github_holds_back_gets_nothing() -> None:
    runner_plan = plan(view(job(1, state=JobState.HELD)), LATER)
    assert (runner_plan.steps, runner_plan.queue) == ((), ())


def test_a_job_of_which_nothing_is_known_yet_says_so() -> None:
    runner_plan = plan(view(job(1, spec=None)), LATER)
    assert (made(runner_plan), reasons(runner_plan)) == ([], {"1": "its configuration has not been read yet"})


@pytest.mark.parametrize(
    "other",
    [
        {"labels": ("cpu",)},
        {"scope": "other"},
        {"repository": "acme/b"},
        {"scale_set": "cuda"},
        {"state": RunnerState.DELETING},
        {"lease": "a lease that a booking has ended"},
    ],
)
def test_a_runner_that_cannot_have_the_job_does_not_count(other: dict[str, Any]) -> None:
    unsuitable = runner("r1", **{"state": RunnerState.IDLE, **other})
    runner_view = view(job(1), unsuitable)
    if "lease" in other:
        runner_view = replace(runner_view, leases={})
    assert made(plan(runner_view, LATER)) == ["1"]


def test_labels_are_compared_as_github_does() -> None:
    idle = runner("r1", labels=("GPU", "Linux"))
    assert made(plan(view(job(1, labels=("gpu",)), idle), LATER)) == []


def test_as_many_jobs_as_possible_are_served() -> None:
    """The wide runner goes to the job that no other runner may have."""
    wide, narrow = runner("r1", labels=("gpu", "big")), runner("r2", labels=("gpu",))
    jobs = [job(1), job(2, labels=("gpu", "big"))]
    assert made(plan(view(*jobs, wide, narrow), LATER)) == []


def test_a_scale_sets_job_is_served_by_any_runner_of_the_set() -> None:
    idle = runner("r1", labels=("cuda",), scale_set="cuda", repository="", for_job="github.com/2")
    assert made(plan(view(job(1, labels=("cuda",), scale_set="cuda"), idle), LATER)) == []


def cuda(assigned: int, turned_down: int = 0, waiting: int = 0) -> dict[str, Any]:
    return {"sets": [SetDemand("cuda", "acme", wanted(kind="cuda"), assigned, turned_down, waiting)]}


def test_jobs_that_github_assigned_and_never_told_of_get_runners() -> None:
    """A message was lost; the statistics are the truth. Known jobs are not counted twice."""
    known_job = job(1, labels=("cuda",), scale_set="cuda")
    runner_view = view(known_job, capacities=room(FREE, FREE, FREE, FREE), **cuda(3))
    first = plan(runner_view, LATER)
    assert made(first) == ["1"]
    second = plan(replace(runner_view, since=first.since), LATER + UNTOLD)
    assert made(second) == ["1", "", ""]
    assert [place.job for place in second.queue] == [known_job.id]


def test_jobs_that_we_turned_down_get_no_runners_and_take_no_room() -> None:
    """GitHub goes on counting them as the set's."""
    runner_view = view(capacities=room(FREE, FREE, FREE), since={"set cuda": NOON}, **cuda(3, turned_down=2))
    runner_plan = plan(runner_view, NOON + UNTOLD)
    assert (made(runner_plan), runner_plan.capacity) == ([""], {"cuda": 3 + 2})
    none = view(capacities=room(FREE, FREE, FREE), since={"set cuda": NOON}, **cuda(2, turned_down=2))
    assert made(plan(none, NOON + UNTOLD)) == []


def test_a_runner_that_stays_idle_disproves_the_statistics() -> None:
    idle = runner("r1", scale_set="cuda", labels=("cuda",), repository="", online=NOON)
    runner_plan = plan(view(idle, capacities=room(FREE), **cuda(2), since={"set cuda": NOON}), NOON + 6 * MINUTE)
    assert (made(runner_plan), list(runner_plan.since)) == ([], ["r1"])


def test_capacity_is_what_is_there_and_what_could_be_made() -> None:
    idle = runner("r1", scale_set="cuda", labels=("cuda",), repository="")
    rooms = room(FREE, FREE, ((NOON, NOON + HOUR),))
    assert plan(view(idle, capacities=rooms, **cuda(0)), NOON).capacity == {"cuda": 3}
    limited = site_runners(most=2)
    assert plan(view(idle, capacities=rooms, site=limited, **cuda(0)), NOON).capacity == {"cuda": 2}


def test_what_the_guide_says_of_most() -> None:
    """docs/how-to/configure-runners.md: the site's, a set's and a repository's hold each by itself, and that of a
    pattern for each of its repositories."""
    rooms = room(*[FREE] * 9)
    pattern = site_runners(repositories={"acme/*": {"most": 1}})
    jobs = [job(f"{name}{number}", f"acme/{name}") for name in "ab" for number in (1, 2)]
    assert sorted(made(plan(view(*jobs, capacities=rooms, site=pattern), LATER))) == ["a1", "b1"]
    wide = {"cuda": {"flavors": ["f"], "images": ["i"], "most": 5}}
    narrow = site_runners(most=2, sets=wide, repositories={"acme/*": {"most": 4}})
    of_set = [job(number, scale_set="cuda") for number in range(4)]
    assert len(made(plan(view(*of_set, capacities=rooms, site=narrow), LATER))) == 2


def test_a_job_that_a_booking_may_end_starts_no_sooner() -> None:
    soon = room(((NOON, NOON + HOUR),))
    for preemptible in (False, True):
        queued = job(1, spec=wanted(preemptible=preemptible))
        assert made(plan(view(queued, capacities=soon), NOON)) == []
        assert made(plan(view(queued, capacities=room(((NOON, NOON + 2 * HOUR),))), NOON)) == ["1"]


def test_a_job_that_waits_at_github_has_its_turn_like_others() -> None:
    """GitHub assigns it when it is told that there is room, and not while that is for somebody else."""
    used = {"acme/a": 5.0}
    runner_plan = plan(view(job(1), **cuda(0, waiting=3), used=used), LATER)
    assert made(runner_plan) == [], "acme/a has used more"
    assert runner_plan.capacity == {"cuda": 1}
    assert [place.job for place in runner_plan.queue] == ["github.com/1"], "only jobs that are known have a place"
    urgent = job(1, spec=wanted(priority=1))
    runner_plan = plan(view(urgent, **cuda(0, waiting=3), used=used), LATER)
    assert made(runner_plan) == ["1"]
    assert runner_plan.capacity == {"cuda": 0}


def test_a_job_that_waits_at_github_counts_as_the_repositorys_that_had_the_last() -> None:
    had = busy("r1", "s1", scale_set="cuda", repository="", for_repository="acme/a")
    running = job("s1", "acme/a", scale_set="cuda", state=JobState.RUNNING, runner="r1")
    runner_view = view(job(1, "acme/b"), running, had, **cuda(1, waiting=3))
    runner_plan = plan(runner_view, LATER)
    assert made(runner_plan) == ["1"], "acme/a has a GPU already"
    assert runner_plan.capacity == {"cuda": 1}
    runner_plan = plan(replace(runner_view, rooms=room(FREE, FREE)), LATER)
    assert made(runner_plan) == ["1"]
    assert runner_plan.capacity == {"cuda": 2}


def test_of_two_sets_the_one_with_priority_is_assigned_its_job_first() -> None:
    low = SetDemand("low", "acme", wanted(kind="low"), waiting=5)
    high = SetDemand("high", "acme", wanted(kind="high", priority=9), waiting=1)
    runner_plan = plan(view(sets=[low, high], capacities=room(FREE, FREE)), LATER)
    assert runner_plan.capacity == {"low": 1, "high": 1}
    runner_plan = plan(view(sets=[low, high]), LATER)
    assert runner_plan.capacity == {"low": 0, "high": 1}


def test_what_github_has_assigned_stays_assigned_while_others_have_their_turn() -> None:
    waits = job("s1", scale_set="cuda", not_before=LATER + HOUR, tries=1)
    runner_plan = plan(view(waits, **cuda(1, waiting=1)), LATER)
    assert runner_plan.capacity["cuda"] >= 2, "one that is tried again later, and the next one"


def test_a_number_of_waiting_jobs_that_is_wrong_keeps_nobody_waiting_for_long() -> None:
    runner_view = view(job(1), **cuda(0, waiting=3), used={"acme/a": 5.0})
    since: dict[str, datetime] = {}
    times = []
    for seconds_later in range(0, 3600, 30):
        now = LATER + timedelta(seconds=seconds_later)
        runner_plan = plan(replace(runner_view, since=since), now)
        since = dict(runner_plan.since)
        times += [seconds_later] if made(runner_plan) else []
    assert times[0] == INVITED.total_seconds()
    assert len(times) == (DISBELIEVED - INVITED) / timedelta(seconds=30) * 2
    assert made(plan(replace(runner_view, since=since, **cuda(1, waiting=3)), now)) == []


def test_a_job_fits_before_a_booking_to_the_second() -> None:
    """Boot 15 min, connecting 10, the job 60, teardown 10."""
    assert made(plan(view(job(1), capacities=room(((NOON, NOON + 95 * MINUTE),))), NOON)) == ["1"]
    late = plan(
        view(job(1), capacities=room(((NOON, NOON + 95 * MINUTE - timedelta(seconds=1)), (LATER + 5 * HOUR, FOREVER)))),
        NOON,
    )
    assert made(late) == []
    assert late.queue[0].start == LATER + 5 * HOUR
    assert "1 of 1 is free, but not for the 1 h 35 min that it may take" in late.queue[0].reason


def test_a_shorter_job_goes_first_only_where_it_delays_nobody() -> None:
    """The first needs two GPUs of a host, of which one is free in two hours."""
    pair = wanted(ServerChoice("v100", "v100.2", "ubuntu", 2))
    rooms = room(FREE, ((NOON + 2 * HOUR, FOREVER),))
    first = job(1, queued=NOON - HOUR, spec=pair)
    assert made(plan(view(first, job(2), capacities=rooms), NOON)) == ["2"]
    long = job(3, spec=wanted(longest=3 * HOUR))
    runner_plan = plan(view(first, long, capacities=rooms), NOON)
    assert made(runner_plan) == []
    assert (runner_plan.queue[0].position, runner_plan.queue[0].start) == (1, NOON + 2 * HOUR)


def test_the_first_choice_with_room_is_taken_and_else_the_one_that_is_free_first() -> None:
    a100 = ServerChoice("a100", "a100.1", "ubuntu")
    queued = job(1, spec=wanted(V100, a100))
    full, soon = ((NOON + 4 * HOUR, FOREVER),), ((NOON + HOUR, FOREVER),)
    runner_plan = plan(view(queued, capacities=room(full) | room(FREE, pool="a100")), NOON)
    assert [step.choice for step in runner_plan.steps if isinstance(step, CreateRunner)] == [a100]
    waits = plan(view(queued, capacities=room(full) | room(soon, pool="a100")), NOON).queue[0]
    assert (waits.pool, waits.position, waits.start) == ("a100", 1, NOON + HOUR)


def test_a_window_of_an_exclusive_booking_keeps_new_servers_away() -> None:
    runner_plan = plan(view(job(1), capacities=room(FREE, blocked="ada's booking opens its GPUs until 12:05")), NOON)
    assert reasons(runner_plan) == {
        "1": "no server can be started in pool v100 now: ada's booking opens its GPUs until 12:05"
    }


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ({"most": 1}, "all runners together have their most of 1 GPU"),
        ({"repositories": {"acme/a": {"most": 1}}}, "its repository has its most of 1 GPU"),
        ({"repositories": {"acme/b": {"most": 1}}}, "a runner is being made for it"),
    ],
)
def test_limits(site: dict[str, Any], reason: str) -> None:
    running = job(1, state=JobState.RUNNING, runner="r1")
    runner_plan = plan(view(running, busy("r1", 1), job(2), site=site_runners(**site)), LATER)
    assert reasons(runner_plan) == {"2": reason}


def test_a_server_that_is_being_deleted_still_has_its_gpu() -> None:
    runner_plan = plan(view(runner("r1", RunnerState.DELETING), job(2), site=site_runners(most=1)), LATER)
    assert made(runner_plan) == []
    gone = view(job(2), site=site_runners(most=1))
    gone = replace(
        gone, runners=[runner("r1", RunnerState.DELETING, lease="")]
    )  # GitHub still has it, and Nova no more
    assert made(plan(gone, LATER)) == ["2"]


def test_priority_then_use_then_age() -> None:
    jobs = [
        job(1, "acme/heavy", NOON - HOUR),
        job(2, "acme/light", NOON),
        job(3, "acme/heavy", NOON, spec=wanted(priority=1)),
        job(4, "acme/light", NOON - MINUTE),
    ]
    runner_plan = plan(view(*jobs, capacities=room(((NOON + HOUR, FOREVER),)), used={"acme/heavy": 5.0}), NOON)
    assert [place.job[-1] for place in runner_plan.queue] == ["3", "4", "2", "1"]
    assert [place.position for place in runner_plan.queue] == [1, 2, 3, 4]


def test_repositories_take_turns_by_their_shares() -> None:
    jobs = [job(f"a{n}", "acme/a", NOON - HOUR) for n in range(4)] + [job(f"b{n}", "acme/b") for n in range(4)]
    site = site_runners(repositories={"acme/b": {"share": 2}})
    runner_plan = plan(view(*jobs, capacities=room(((NOON + HOUR, FOREVER),)), site=site), NOON)
    assert [place.job.rpartition("/")[2] for place in runner_plan.queue] == [
        "a0",
        "b0",
        "b1",
        "a1",
        "b2",
        "b3",
        "a2",
        "a3",
    ]


def test_who_waits_for_half_a_day_goes_first() -> None:
    jobs = [job(1, "acme/heavy", NOON - 12 * HOUR), job(2, "acme/light", NOON - 11 * HOUR)]
    runner_plan = plan(view(*jobs, capacities=room(((NOON + HOUR, FOREVER),)), used={"acme/heavy": 5000.0}), NOON)
    assert [place.job[-1] for place in runner_plan.queue] == ["1", "2"]


def test_after_a_failure_the_next_try_is_later_and_at_last_given_up() -> None:
    failed = job(1, tries=1, not_before=LATER, reason="Nova: No valid host")
    runner_plan = plan(view(failed), NOON)
    assert made(runner_plan) == []
    assert reasons(runner_plan)["1"].startswith(
        "its last runner failed (Nova: No valid host); next try Mon 2026-11-23 12:10"
    )
    assert made(plan(view(failed), LATER)) == ["1"]
    hopeless = plan(view(replace(failed, tries=MOST_TRIES)), LATER)
    assert hopeless.steps == (FailJob(failed.id, "5 runners that were made for it failed: Nova: No valid host"),)


def test_back_off_grows_and_has_an_end() -> None:
    seconds = [retry_after(tries).total_seconds() for tries in (1, 2, 3, 6, 100, 10**9)]
    assert seconds == [30, 60, 120, 900, 900, 900]


def test_while_github_does_not_answer_nothing_is_made() -> None:
    runner_plan = plan(view(job(1), stopped={"acme": "GitHub answers no requests since 12:10"}), LATER)
    assert (made(runner_plan), reasons(runner_plan)) == ([], {"1": "GitHub answers no requests since 12:10"})


def warm(count: int) -> IdleRunners:
    return IdleRunners("acme", "acme/a", "", ("gpu",), wanted(), count)


def test_warm_runners_are_made_kept_and_replaced_when_taken() -> None:
    made_now = plan(view(idle=[warm(1)]), NOON).steps
    assert [(step.for_job, step.yields) for step in made_now if isinstance(step, CreateRunner)] == [("", True)]
    idle_plan = plan(view(runner("r1"), idle=[warm(1)], since={"r1": NOON}), LATER)
    assert made(idle_plan) == deleted(idle_plan) == []
    taken = plan(view(busy("r1", 1), job(1, state=JobState.RUNNING, runner="r1"), idle=[warm(1)]), LATER)
    assert made(taken) == [""]


def test_after_warm_runners_have_failed_the_next_one_is_later() -> None:
    wish = IdleRunners("acme", "", "", ("gpu",), wanted(), 2, LATER + MINUTE)
    idle = runner("r1", repository="", for_repository="", online=NOON)
    runner_plan = plan(view(idle, capacities=room(FREE, FREE), idle=[wish]), LATER)
    assert (made(runner_plan), runner_plan.since) == ([], {}), "the one that there is stays"
    after = plan(view(idle, capacities=room(FREE, FREE), idle=[wish]), LATER + MINUTE)
    assert made(after) == [""]


def test_a_lease_has_time_for_the_memory_of_its_flavor() -> None:
    """A server with much RAM pins all of it before it starts."""
    (step,) = plan(view(job(1), capacities=room(FREE)), NOON).steps
    (slow,) = plan(view(job(1), capacities=room(FREE), boots={V100.flavor: 45 * MINUTE}), NOON).steps
    assert isinstance(step, CreateRunner)
    assert isinstance(slow, CreateRunner)
    assert slow.end - step.end == 30 * MINUTE
    booked = room(((NOON, NOON + 95 * MINUTE),))
    assert made(plan(view(job(1), capacities=booked), NOON)) == ["1"]
    assert made(plan(view(job(1), capacities=booked, boots={V100.flavor: 45 * MINUTE}), NOON)) == []


def test_a_warm_runner_gives_way_to_a_job_of_another_kind() -> None:
    runner_view = view(runner("r1"), job(2, "acme/b"), idle=[warm(1)], capacities=room(((NOON + 3 * HOUR, FOREVER),)))
    assert deleted(plan(runner_view, LATER)) == ["r1"]


def test_a_spare_runner_goes_at_once_where_a_job_waits_for_its_gpu() -> None:
    """It could run for two minutes beside nobody, and keeps its GPU from whoever waits: at most as many go as are
    needed, those first that GitHub cannot have given a job."""
    full = room(((NOON + 3 * HOUR, FOREVER),))
    over = [job(1, state=JobState.COMPLETED), job(2, state=JobState.COMPLETED)]
    spare = [
        runner("ready", for_job="github.com/1", labels=("other",), created=NOON - MINUTE),
        runner("boots", RunnerState.REGISTERING, for_job="github.com/2", labels=("other",)),
    ]
    assert deleted(plan(view(*over, *spare, job(3), capacities=full), LATER)) == ["boots"]
    assert deleted(plan(view(*over, *spare, job(3), job(4), capacities=full), LATER)) == ["ready", "boots"]
    leaving = runner("r3", RunnerState.DELETING)
    assert deleted(plan(view(*over, *spare, leaving, job(3), capacities=full), LATER)) == [], "one GPU is on its way"
    other = job(3, spec=wanted(ServerChoice("t4", "t4.1", "ubuntu")))
    rooms = full | room(((NOON + 3 * HOUR, FOREVER),), pool="t4")
    assert deleted(plan(view(*over, *spare, other, capacities=rooms), LATER)) == [], "another pool's"


def test_no_warm_runner_is_made_where_a_job_waits() -> None:
    pair = job(1, spec=wanted(ServerChoice("v100", "v100.2", "ubuntu", 2)))
    assert made(plan(view(pair, idle=[warm(1)], capacities=room(FREE, ((NOON + HOUR, FOREVER),))), NOON)) == []


def test_leases_always_have_time_for_a_job() -> None:
    """A warm one's is made longer, and may be ended by a booking; a busy one's ends with its job's limit."""
    idle = runner("r1")
    runner_view = replace(view(idle, idle=[warm(1)]), leases={idle.lease: lease(idle, NOON + HOUR)})
    assert plan(runner_view, NOON).steps == (ChangeLease("r1", idle.lease, NOON + 95 * MINUTE, True),)
    taken = busy("r1", 1)
    runner_view = replace(view(taken), leases={taken.lease: lease(taken, NOON + 3 * HOUR, yields=True)})
    assert plan(runner_view, NOON).steps == (ChangeLease("r1", taken.lease, NOON + 70 * MINUTE, False),)


def test_what_was_used_counts_half_after_the_half_life() -> None:
    day = 24 * HOUR
    use = GpuUse("Acme/A", "v100", 2, NOON - 14 * day - HOUR, NOON - 14 * day)
    assert decayed([use], NOON, 14 * day)["acme/a"] == pytest.approx(1.0, rel=0.01)
    assert decayed([replace(use, end=None)], NOON, 14 * day) == {}
    assert factor(0, 1, 0, 1) == factor(0, 1, 10, 2) == 1
    assert factor(5, 1, 10, 2) == 0.5
