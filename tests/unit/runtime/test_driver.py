"""Loops: they go on whatever happens, tell how it went, and can be woken and stopped."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from gpuyard.runtime.control_loops import BACKOFF_LIMIT, Driver, Loop


class Work:
    """Fails as often as it is told to, and can be watched."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.runs = 0
        self.ran = threading.Semaphore(0)

    def __call__(self) -> None:
        self.runs += 1
        self.ran.release()
        if self.runs <= self.failures:
            raise ValueError(f"number {self.runs}")


def loop(run: Work, period: float = 60.0) -> Loop:
    return Loop("look", "looks", period, run)


def test_a_loop_has_not_run_before_it_runs() -> None:
    status = loop(Work()).status
    assert (status.name, status.description, status.period) == ("look", "looks", 60.0)
    assert (status.iterations, status.failures, status.last_success, status.error) == (0, 0, None, "")


def test_a_good_run_is_in_the_status() -> None:
    subject, before = loop(Work()), datetime.now(UTC)
    assert subject.run_once("because")
    status = subject.status
    assert (status.iterations, status.failures, status.last_reason, status.error) == (1, 0, "because", "")
    assert status.last_success is not None
    assert before <= status.last_success <= datetime.now(UTC)
    assert 0 <= status.last_seconds < 5


def test_a_failed_run_keeps_the_last_success_and_says_what_was_wrong() -> None:
    work = Work()
    subject = loop(work)
    subject.run_once("timer")
    success = subject.status.last_success
    work.failures = 3
    assert not subject.run_once("timer")
    assert not subject.run_once("timer")
    assert subject.status.failures == 2
    assert subject.status.error == "ValueError: number 3"
    assert subject.status.last_success == success


def test_a_good_run_forgets_the_failures_before_it() -> None:
    subject = loop(Work(failures=1))
    subject.run_once("timer")
    subject.run_once("timer")
    assert (subject.status.iterations, subject.status.failures, subject.status.error) == (2, 0, "")


def test_failures_are_tried_again_later_and_later() -> None:
    subject = loop(Work(failures=5), period=1.0)
    delays = []
    for _ in range(5):
        subject.run_once("timer")
        delays.append(round(subject.delay()))
    assert delays == [2, 4, 8, 16, BACKOFF_LIMIT]


def test_an_outage_of_days_does_not_end_the_loop() -> None:
    subject = loop(Work(failures=2000), period=1.0)
    for _ in range(2000):  # 2 to the power of 2000 does not fit into a float
        subject.run_once("timer")
    assert subject.delay() == BACKOFF_LIMIT


def test_a_good_run_is_followed_by_the_rest_of_the_period() -> None:
    subject = loop(Work(), period=60.0)
    subject.run_once("timer")
    assert 59 < subject.delay() <= 60


def test_a_loop_is_woken_early_and_says_why() -> None:
    work, driver = Work(), Driver()
    subject = driver.register(loop(work))
    driver.start()
    try:
        assert work.ran.acquire(timeout=5)
        subject.wake("a webhook")
        assert work.ran.acquire(timeout=5)
    finally:
        driver.stop()
    assert work.runs == 2
    assert [status.last_reason for status in driver.statuses()] == ["a webhook"]


def test_a_wake_during_a_run_is_not_lost() -> None:
    began, go_on, runs = threading.Semaphore(0), threading.Semaphore(0), []

    def run() -> None:
        runs.append(1)
        began.release()
        assert go_on.acquire(timeout=5)

    driver = Driver()
    subject = driver.register(Loop("look", "", 60.0, run))
    driver.start()
    try:
        assert began.acquire(timeout=5)
        subject.wake("meanwhile")
        go_on.release()
        assert began.acquire(timeout=5)
    finally:
        go_on.release()
        driver.stop()
    assert len(runs) == 2


def test_a_loop_that_fails_goes_on() -> None:
    work, driver = Work(failures=3), Driver()
    driver.register(loop(work, period=0.001))
    driver.start()
    try:
        for _ in range(5):
            assert work.ran.acquire(timeout=5)
    finally:
        driver.stop()
    assert driver.statuses()[0].failures == 0


def test_stopping_waits_for_runs_but_not_for_ever() -> None:
    began, go_on = threading.Semaphore(0), threading.Event()

    def stuck() -> None:
        began.release()
        go_on.wait(10)

    driver = Driver()
    for name in ("one", "two", "three"):
        driver.register(Loop(name, "", 60.0, stuck))
    driver.start()
    for _ in range(3):
        assert began.acquire(timeout=5)
    start = monotonic()
    driver.stop(timeout=0.2)
    assert monotonic() - start < 0.5  # in all, not for each loop
    go_on.set()
    driver.stop()
    assert not [thread for thread in threading.enumerate() if thread.name in ("one", "two", "three")]


def test_a_failure_is_logged_with_the_name_of_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop(Work(failures=1)).run_once("timer")
    assert "loop look failed: ValueError: number 1" in caplog.text


def test_a_run_that_knows_when_to_look_again_is_heard() -> None:
    subject = Loop("look", "looks", 60.0, lambda: 1.5)
    assert subject.run_once("timer")
    assert subject.delay() == 1.5
    later = Loop("look", "looks", 60.0, lambda: 90.0)
    assert later.run_once("timer")
    assert 50 < later.delay() <= 60, "never later than otherwise"


def test_a_clock_that_jumps_is_told_until_a_good_run_and_ages_are_not_touched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall, steady, work = [datetime(2026, 11, 23, 12, tzinfo=UTC)], [100.0], Work()
    subject = Loop("look", "looks", 5.0, work, now=lambda: wall[0], steady=lambda: steady[0])
    subject.run_once("start")
    wall[0], steady[0] = wall[0] + timedelta(seconds=5), 105.0
    assert (subject.status.age, subject.status.jump) == (5.0, 0.0)
    wall[0] -= timedelta(hours=2)
    assert (subject.status.age, subject.status.jump) == (5.0, -7200.0)
    work.failures = 2
    subject.run_once("timer")
    assert subject.status.jump == -7200.0, "nothing was planned from it yet"
    subject.run_once("timer")
    assert (subject.status.age, subject.status.jump) == (0.0, 0.0)
    assert "loop look: the clock went back by 2:00:00; planning anew" in caplog.text
    wall[0] += timedelta(seconds=6)
    assert subject.status.jump == 6.0
