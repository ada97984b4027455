"""Asking no more than one may, and not again and again what does not answer."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.openstack.breaker import CircuitBreaker, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 5)), max_size=60))
def test_no_more_than_the_rate_and_a_burst(asks: list[tuple[float, float]]) -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 10.0, clock)
    went: list[tuple[float, float]] = []
    for pause, cost in asks:
        clock.now += pause
        went.append((clock.now + bucket.take(cost), cost))
    for begin, _ in went:
        for end, _ in went:
            if end >= begin:
                taken = sum(cost for at, cost in went if begin <= at <= end)
                assert taken <= 10.0 + 5.0 + 2.0 * (end - begin) + 1e-6


def test_who_will_not_wait_takes_nothing() -> None:
    clock = Clock()
    bucket = TokenBucket(1.0, 3.0, clock)
    assert [bucket.take() for _ in range(3)] == [0, 0, 0]
    assert bucket.take(patience=0.5) == pytest.approx(1)
    assert bucket.take(patience=0.5) == pytest.approx(1)
    assert bucket.take(patience=1) == pytest.approx(1)
    assert bucket.take(patience=1) == pytest.approx(2)
    clock.now += 2
    assert bucket.level() == pytest.approx(1)
    clock.now -= 100
    assert bucket.level() == pytest.approx(1), "a clock that goes back gives and takes nothing"


def test_open_after_failures_in_a_row_and_longer_each_time() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, failures=3, pause=10, longest=35, trial=60)
    breaker.failed()
    breaker.failed()
    breaker.worked()
    for _ in range(3):
        assert breaker.wait() == 0
        breaker.failed()
    pauses = []
    for _ in range(4):
        pauses.append(breaker.wait())
        clock.now += pauses[-1]
        assert breaker.wait() == 0
        breaker.failed()
    assert pauses == [10, 20, 35, 35]
    assert breaker.is_open()
    clock.now += 35
    assert breaker.wait() == 0
    breaker.worked()
    assert not breaker.is_open()
    assert breaker.wait() == 0


def test_one_tries_after_the_pause() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, failures=1, pause=10, trial=60)
    breaker.failed()
    clock.now += 10
    waits: list[float] = []
    threads = [threading.Thread(target=lambda: waits.append(breaker.wait())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == [0] + [60] * 19
    clock.now += 60  # it never said how it went
    assert breaker.wait() == 0


def test_many_failures_do_not_overflow() -> None:
    breaker = CircuitBreaker(Clock(), failures=1, longest=300)
    for _ in range(5000):
        breaker.failed()
    assert breaker.wait() == 300
