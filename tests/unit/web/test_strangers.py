"""Wrong tokens and signatures are counted by where they come from."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from gpuyard.web.login_throttle import EVERYWHERE
from gpuyard.web.unknown_callers import WRONG, WRONG_EVERY, Origin, UnknownCallerThrottle

GATEWAY = "192.0.2.99"


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def origin(strangers: UnknownCallerThrottle, address: str, forwarded: str = "") -> Origin:
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    return strangers.origin(HTTPConnection({"type": "http", "client": (address, 4711), "headers": headers}))


def test_a_place_may_be_wrong_so_often_and_then_once_in_a_while() -> None:
    clock = Seconds()
    strangers = UnknownCallerThrottle((), clock)
    wrong = [origin(strangers, "203.0.113.9").take() for _ in range(WRONG + 2)]
    assert wrong == [0] * WRONG + [int(WRONG_EVERY)] * 2
    assert origin(strangers, "203.0.113.9").wait() == int(WRONG_EVERY)
    assert origin(strangers, "203.0.113.10").wait() == 0
    clock.now += WRONG_EVERY
    assert [origin(strangers, "203.0.113.9").take() for _ in range(2)] == [0, int(WRONG_EVERY)]


def test_who_was_right_after_all_has_taken_nothing() -> None:
    strangers = UnknownCallerThrottle((), Seconds())
    for _ in range(3 * WRONG):
        caller = origin(strangers, "2001:db8::1")
        assert caller.take() == 0
        caller.give_back()


def test_a_network_may_be_wrong_more_often_and_a_refused_one_takes_nothing() -> None:
    strangers = UnknownCallerThrottle((), Seconds())
    for last in range(EVERYWHERE):
        for _ in range(WRONG):
            assert origin(strangers, f"203.0.113.{last}").take() == 0
    assert origin(strangers, "203.0.113.200").take() > 0
    assert origin(strangers, "203.0.114.200").take() == 0


def test_behind_a_gateway_people_are_told_apart_and_the_gateway_is_nobody() -> None:
    strangers = UnknownCallerThrottle((GATEWAY,), Seconds())
    for address, forwarded in ((GATEWAY, ""), ("127.0.0.1", ""), ("::1", "203.0.113.9")):
        assert [origin(strangers, address, forwarded).take() for _ in range(WRONG + 1)] == [0] * (WRONG + 1)
    assert [origin(strangers, GATEWAY, "203.0.113.9").take() for _ in range(WRONG + 1)][-1] > 0
    assert origin(strangers, GATEWAY, "198.51.100.7").wait() == 0
