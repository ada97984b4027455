"""Measures how long a GPU has done nothing while a server holds it. Pure.

A GPU is idle only over time in which its agent was heard without a gap of more than five minutes: time without samples
counts as use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.site.health_rules import IdleRules

GAP = timedelta(minutes=5)
"""Between two samples with a longer time than this nobody knows what the GPU did."""


@dataclass(frozen=True)
class Idleness:
    """A GPU's idle time so far."""

    since: datetime | None = None
    """Since when it has done nothing, as far as was seen without a gap; None: it does something, or nobody knows."""
    heard: datetime | None = None
    """The last sample."""

    def resting(self, now: datetime) -> datetime | None:
        """Return since when it has done nothing; None also when its use is not known now."""
        return self.since if self.heard is not None and now - self.heard <= GAP else None

    def lasts(self, now: datetime) -> timedelta:
        """Return for how long it has done nothing; zero when its use is not known now."""
        since = self.resting(now)
        return self.heard - since if self.heard is not None and since is not None else timedelta()


def after(idle: Idleness, time: datetime, use: int | None, below: int) -> Idleness:
    """Return the idleness after one more sample. `use` and `below` in percent; a sample that is not later than the last
    is ignored."""
    if idle.heard is not None and time <= idle.heard:
        return idle
    if use is None or use >= below:
        return Idleness(None, time)
    unbroken = idle.since is not None and idle.heard is not None and time - idle.heard <= GAP
    return Idleness(idle.since if unbroken else time, time)


def is_idle(gpus: Iterable[Idleness], rules: IdleRules, now: datetime) -> bool:
    """Return whether a server does nothing with any of its GPUs, and has not for as long as the rules say."""
    durations = [gpu.lasts(now) for gpu in gpus]
    return bool(durations) and min(durations) >= rules.after


@dataclass(frozen=True)
class UseSeen:
    """The use of one of a server's GPUs. What is not known is None, and nothing is made up for it."""

    gpu: str
    """``host/address``; empty: one of those that the server has, and it is not known which."""
    server: str = ""
    """Id; empty: none has it."""
    heard: datetime | None = None
    """When its server's agent was heard last."""
    lately: int | None = None
    """Percent of use, of the last `minutes` without a gap: of an hour at most."""
    minutes: int = 0
    whole: int | None = None
    """Percent of use, of all that was heard."""
    seconds: int = 0
    """For how long it was heard in all."""
    idle_since: datetime | None = None
    memory: int | None = None
    """Percent in use, and degrees C, of the last sample; of an agent that was heard a moment ago only."""
    temperature: int | None = None


def lately(minutes: Sequence[int | None]) -> tuple[int | None, int]:
    """Return the mean percent of use since the last gap, and of how many minutes that is. `minutes`: by the minute, the
    last is now; None: nothing was heard."""
    percents: list[int] = []
    missing = 0
    for use in reversed(minutes):
        missing = missing + 1 if use is None else 0
        if missing * 60 > GAP.total_seconds():
            break
        if use is not None:
            percents.append(use)
    return (round(sum(percents) / len(percents)), len(percents)) if percents else (None, 0)
