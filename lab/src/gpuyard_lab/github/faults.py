"""Draws faults from one seed, and keeps a journal of what was injected.

A draw depends on the seed, on the fault, on its subject and on how often the same was drawn before, and on nothing
else: the same seed strikes the same jobs and requests, in whatever order threads ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from hashlib import blake2b


@dataclass(frozen=True)
class FaultRates:
    """The rate of each fault, from 0.0 (never, the default) to 1.0 (always)."""

    hook_lost: float = 0.0
    """A webhook is never sent, and GitHub has no record of it."""
    hook_failed: float = 0.0
    """A webhook does not arrive; it is in the list of deliveries as failed, and can be sent again."""
    hook_doubled: float = 0.0
    """It arrives twice, with the same GUID."""
    hook_reordered: float = 0.0
    """It arrives after what happened next: up to `reorder_s` later."""
    hook_late: float = 0.0
    """It arrives up to `late_s` later."""
    hook_resent: float = 0.0
    """A `completed` is sent again up to `late_s` later, with another GUID."""
    completed_bare: float = 0.0
    """A `completed` without labels and without a runner."""
    job_waiting: float = 0.0
    """A job waits for an approval (up to `waiting_s`) before it is queued."""
    job_cancelled: float = 0.0
    """A job is cancelled up to `cancel_s` after it was queued, wherever it is then."""
    job_stolen: float = 0.0
    """A runner of somebody else takes the job as soon as it is queued."""
    job_shuffled: float = 0.0
    """A runner gets any job that it could run, and not the oldest."""
    offer_lost: float = 0.0
    """A job is given to a runner that never hears of it; it is queued again after a minute."""
    unauthorized: float = 0.0
    """401 for a token that is right. Nothing was done."""
    forbidden: float = 0.0
    """403 without a reason that one could do anything about."""
    missing: float = 0.0
    """404 for a runner or a job that is there."""
    conflict: float = 0.0
    """409 for a name that is free."""
    unprocessable: float = 0.0
    """422 when a runner is registered."""
    limited: float = 0.0
    """A secondary rate limit: 403 or 429 with Retry-After."""
    broken: float = 0.0
    """500, 502 or 503."""
    reply_lost: float = 0.0
    """It is done, and the connection breaks before the answer."""
    reply_half: float = 0.0
    """It is done, and the connection breaks in the middle of the answer."""
    slow: float = 0.0
    """The answer takes up to `slow_s`."""
    poll_broken: float = 0.0
    """A long poll breaks; the message stays."""
    session_expired: float = 0.0
    """The token of a message queue is refused: 401."""
    session_lost: float = 0.0
    """The session of a scale set is gone: 404."""
    message_again: float = 0.0
    """A message is delivered again, though it was acknowledged."""
    message_lost: float = 0.0
    """A message never comes; only the statistics tell."""
    assignment_lost: float = 0.0
    """A job is taken from its scale set (JobCompleted, canceled) and given again."""
    guest_silent: float = 0.0
    """A guest never boots: its console stays empty."""
    guest_bad_gpu: float = 0.0
    """The check of its GPU fails."""
    guest_dies: float = 0.0
    """It stops in the middle of its job, without a word."""
    guest_hostile: float = 0.0
    """Its job writes to the console what is meant to deceive, and a lot of it."""

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"the rate of {name} is {rate}, and must be from 0 to 1")

    @classmethod
    def of(cls, rates: Mapping[str, float]) -> FaultRates:
        """Return rates from names and numbers. Raises ValueError for an unknown name or a rate that is none."""
        known_names = {field.name for field in fields(cls)}
        if unknown := sorted(set(rates) - known_names):
            raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(sorted(known_names))}")
        return cls(**{name: float(rate) for name, rate in rates.items()})


STORM = FaultRates(
    hook_lost=0.15, hook_failed=0.15, hook_doubled=0.1, hook_reordered=0.2, hook_late=0.05, hook_resent=0.05,
    completed_bare=0.05, job_waiting=0.05, job_cancelled=0.05, job_stolen=0.03, job_shuffled=0.3, offer_lost=0.03,
    unauthorized=0.01, forbidden=0.005, missing=0.01, conflict=0.02, unprocessable=0.01, limited=0.01, broken=0.03,
    reply_lost=0.02, reply_half=0.01, slow=0.02, poll_broken=0.05, session_expired=0.02, session_lost=0.01,
    message_again=0.05, message_lost=0.02, assignment_lost=0.02, guest_silent=0.02, guest_bad_gpu=0.02,
    guest_dies=0.02, guest_hostile=0.05,
)  # fmt: skip
"""A bad day: 30 % of the webhooks lost, 10 % doubled, and some of everything else."""


@dataclass(frozen=True)
class Injected:
    """A fault that was injected."""

    at: datetime
    fault: str
    subject: str
    """The subject of the fault: ``job 1007 queued``, ``POST /repos/demo/science/...``."""


class Faults:
    """Draws faults, and keeps the journal."""

    def __init__(
        self,
        seed: int = 0,
        rates: FaultRates | None = None,
        *,
        reorder_s: float = 3.0,
        late_s: float = 600.0,
        waiting_s: float = 30.0,
        cancel_s: float = 60.0,
        slow_s: float = 3.0,
    ) -> None:
        self.seed = seed
        self.rates = rates or FaultRates()
        self.reorder_s, self.late_s, self.waiting_s = reorder_s, late_s, waiting_s
        self.cancel_s, self.slow_s = cancel_s, slow_s
        self.journal: list[Injected] = []
        self._asked: Counter[tuple[str, str]] = Counter()

    def strikes(self, fault: str, subject: str, now: datetime) -> bool:
        """Return whether a fault happens to something now; if it does, it is in the journal."""
        rate: float = getattr(self.rates, fault)
        if rate <= 0.0 or self.draw(fault, subject) >= rate:
            return False
        self.journal.append(Injected(now, fault, subject))
        return True

    def draw(self, what: str, subject: str) -> float:
        """Return a number in [0, 1), another one each time that the same is asked."""
        key = (what, subject)
        self._asked[key] += 1
        text = f"{self.seed}/{what}/{subject}/{self._asked[key]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64

    def counts(self) -> dict[str, int]:
        """Return how often each fault was injected."""
        return dict(sorted(Counter(injected.fault for injected in self.journal).items()))
