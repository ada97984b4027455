"""While the cloud is asked anew, who looks gets the last answer."""

from __future__ import annotations

import threading
from datetime import timedelta

from gpuyard.diagnosis.controllers.capacity import _Kept
from tests.support.ledgers import NOON, Clock


def test_who_looks_does_not_wait_for_a_slow_cloud() -> None:
    clock = Clock(NOON)
    cache = _Kept[str](clock)
    assert cache.get(lambda: "old")[1] == "old"
    clock.now += timedelta(minutes=1)
    started, goes_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert goes_on.wait(30)
        return "new"

    first = threading.Thread(target=cache.get, args=[slow], daemon=True)
    first.start()
    assert started.wait(30)
    answers: list[str] = []
    second = threading.Thread(target=lambda: answers.append(cache.get(lambda: "twice")[1]), daemon=True)
    second.start()
    second.join(10)
    goes_on.set()
    first.join(30)
    assert answers == ["old"]
    assert cache.get(lambda: "later")[1] == "new"
