"""Records of health: the states of a GPU between tenants, observations of it, its events, and tokens. Plain data.

A GPU is a place, host and address, for as long as the site has it; the card in it is known by its serial number or UUID
once somebody has seen one. Times are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuyard.health.baseline import Baseline, Facts
from gpuyard.model.signals import Source


class HealthState(StrEnum):
    """Where a GPU is in its life. life.py has the ways between them."""

    FINE = "fine"
    IN_USE = "in use"
    """A server has it."""
    RETURNED = "returned"
    """Its server is gone. With one_time_use Nova keeps it reserved; without, only a probe stands before the next."""
    SCRUBBING = "scrubbing"
    """Its host was asked to reset it; nobody knows yet what came of that."""
    CHECKED = "checked"
    """It came back clean and is about to be released."""
    SUSPECT = "suspect"
    """Something was seen that may pass. Nobody new gets it meanwhile."""
    QUARANTINED = "quarantined"
    """Out of use until a person has looked at it."""
    IN_REPAIR = "in repair"
    """A person looks after it."""
    TO_ACCEPT = "to be accepted"
    """Out of use until somebody has accepted it: new, repaired, or its host has changed."""


KEPT_BACK = frozenset({HealthState.SUSPECT, HealthState.QUARANTINED, HealthState.IN_REPAIR, HealthState.TO_ACCEPT})
"""States in which a GPU is kept out of use: its lane is in trouble in the ledger, and its slot is held in Placement."""

UUIDS = ("GPU-", "AMD-")
"""Prefixes of the names that guests know cards by; the serial number that a host knows takes precedence."""


@dataclass(frozen=True)
class Observation:
    """One signal that was seen of one GPU. `code` is one of ``signals.SIGNALS``."""

    host: str
    address: str
    code: str
    seen: datetime
    """By our clock."""
    evidence: str = ""
    """At most 500 characters, printable; shown to operators, and to the owner of the server if it came from there."""
    by: str = ""
    """Name of the person, the server's id, the runner; empty for hosts and Nova."""
    id: int = 0
    """Given by the store; rises."""

    @property
    def gpu(self) -> str:
        """``host/address``."""
        return f"{self.host}/{self.address}"


@dataclass(frozen=True)
class Software:
    """The versions that a GPU was accepted with. Empty: not known."""

    kernel: str = ""
    firmware: str = ""
    qemu: str = ""
    driver: str = ""
    """In the guest; only acceptance by a server knows it, and nothing goes stale with it."""


@dataclass(frozen=True)
class Trial:
    """The state that signals on trial would have given a GPU."""

    state: HealthState
    """FINE: nothing any more."""
    signal: str
    cause: str
    since: datetime
    until: datetime
    """It is fine again then, if nothing more is seen."""
    suspicions: tuple[datetime, ...] = ()
    """When it would have become suspect lately."""


@dataclass(frozen=True)
class GpuHealth:
    """A GPU's state now."""

    host: str
    address: str
    pool: str
    state: HealthState
    since: datetime
    cause: str = ""
    """Why it is in its state, a sentence."""
    signal: str = ""
    """Code of the signal that brought it here, where one did."""
    by: str = ""
    """The person who decided; empty for gpuyard."""
    card: str = ""
    """Serial number or UUID of the card, once known."""
    until: datetime | None = None
    """Of a suspect: when it is fine again if nothing more is seen."""
    relapses: int = 0
    """How often it was suspect lately: each time makes the wait twice as long."""
    asked: bool = False
    """It should be kept back, and too much of its pool is already: a person is asked."""
    order: str = ""
    """Id of the scrub that its host was asked for."""
    generation: int | None = None
    """Of its provider in Placement when Nova reserved it: it is released in this generation only."""
    accepted: datetime | None = None
    software: Software = Software()
    keeper: str = ""
    """The person who looks after it while it is in repair."""
    shown: Facts = field(default_factory=dict)
    """Facts that its host has seen of it last, of those that do not change by themselves."""
    baseline: Baseline | None = None
    """The facts that it was accepted with; None: there are none."""
    trial: Trial | None = None
    """The state that signals on trial would have given it; None: none."""
    version: int = 0
    """Of the record in the store: a write of an older one is refused."""

    @property
    def name(self) -> str:
        """``host/address``."""
        return f"{self.host}/{self.address}"


@dataclass(frozen=True)
class HealthEvent:
    """A line of a GPU's record; lines are added, and never changed. `before` and `after` are equal for a note."""

    host: str
    address: str
    card: str
    time: datetime
    before: HealthState
    after: HealthState
    cause: str
    signal: str = ""
    evidence: str = ""
    by: str = ""
    source: Source | None = None
    id: int = 0
    """Given by the store; rises."""


@dataclass(frozen=True)
class HostContact:
    """The last report that was heard of a host, and when."""

    host: str
    heard: datetime
    """By our clock."""
    look: str = ""
    """Its report, as JSON of a HostReport."""


@dataclass(frozen=True)
class HealthToken:
    """A right to report one kind of thing about one subject. The token itself is known to its owner only."""

    digest: str
    """SHA-256 of it, hex."""
    purpose: str
    """``watch``, ``scrub``, ``enrol``, ``agent``."""
    subject: str
    """A host's name, a server's id."""
    created: datetime
    expires: datetime | None = None
    """None: until it is ended."""
    spent: datetime | None = None
    """When it was used up: of one that is good for once."""
