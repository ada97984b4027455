"""Limits guesses of passwords and tokens: per user and place, per user everywhere, and per place whichever user is
meant.

A try is counted before Keystone is asked, so that many at once are no more than one by one. An attacker who knows a
name could lock its owner out by wrong tries from many places. So a user who has logged in from a place before
(known_places.py) is not counted among all places there, only with the tries from that place itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpuyard.web.token_bucket import RateLimit

EVERYWHERE = 5
"""Places whose tries together are the limit of one user everywhere, and of one wide network."""


@dataclass(frozen=True)
class LoginAttempt:
    """A try that was counted, or one too many."""

    wait: int = 0
    """Whole seconds until another try is allowed; 0: it was counted."""
    taken: Sequence[tuple[RateLimit, str]] = ()

    def give_back(self) -> None:
        """Take back a try that was right, or that Keystone gave no answer to."""
        for limit, key in self.taken:
            limit.give_back(key)


class LoginThrottle:
    """Counters of tries. Safe to use from several threads."""

    def __init__(
        self,
        of_user: int,
        of_address: int,
        clock: Callable[[], float],
        knows: Callable[[str, str], bool] = lambda user, place: False,
    ) -> None:
        """`knows`: whether a user has logged in from a place before."""
        self._of_user_here = RateLimit(of_user, 30, clock)
        self._of_user = RateLimit(of_user * EVERYWHERE, 30 / EVERYWHERE, clock)
        self._of_place = RateLimit(of_address, 6, clock)
        self._of_network = RateLimit(of_address * EVERYWHERE, 6 / EVERYWHERE, clock)
        self._knows = knows

    def take(self, user: str, address: str) -> LoginAttempt:
        """Count a try, unless there were too many. `user`: empty when no name is tried, but a token."""
        taken: list[tuple[RateLimit, str]] = []
        for limit, key in self._limits(user, address):
            if wait := limit.take(key):
                LoginAttempt(taken=taken).give_back()
                return LoginAttempt(wait)
            taken.append((limit, key))
        return LoginAttempt(taken=taken)

    def _limits(self, user: str, address: str) -> Iterator[tuple[RateLimit, str]]:
        # Places first: who has had theirs must not move what is known of users.
        place, network = places(address)
        yield self._of_place, place
        yield self._of_network, network
        if user:
            yield self._of_user_here, f"{place} {user}"
            if not self._knows(user, place):
                yield self._of_user, user


def places(address: str) -> tuple[str, str]:
    """Return the network of one machine and that of one customer of a provider: for IPv6 the /64 and the /48, for IPv4
    the address and its /24."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket that has none
        return address, address
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    near, wide = (64, 48) if ip.version == 6 else (32, 24)
    return str(ipaddress.ip_network((ip, near), strict=False)), str(ipaddress.ip_network((ip, wide), strict=False))
