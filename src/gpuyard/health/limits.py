"""Limits the share of each pool that rules keep back without a person, and says which signals have no limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.health.records import KEPT_BACK, GpuHealth
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.model.signals import SIGNALS, Judgement, Source
from gpuyard.site.health_rules import SiteHealth


@dataclass(frozen=True)
class SitePlace:
    """A GPU that the site has."""

    host: str
    address: str
    pool: str
    slot: str
    """Those with the same one are kept back together."""
    once: bool = False
    """Its pool has one_time_use: Nova keeps it reserved after a use."""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.address}"


INFRASTRUCTURE = frozenset({Source.HOST, Source.NOVA, Source.SCRUB})
"""Sources that are believed more than guests, jobs and people who report: any user can have those say anything."""
PROVOKED: Mapping[str, str] = {
    "iommu-fault": "a driver in the guest has the GPU reach for memory that is not the guest's",
    "kernel-log": "a GPU answers a guest's own reads and writes with errors, which the host's kernel logs",
    "aer-correctable": "a read of what is not there is counted as one, as an advisory non-fatal error",
    "power-stuck": "the guest says in which power state its GPU is to be",
    "gone-under": "a guest can eject its GPU: its server is ACTIVE then, and QEMU has let go of the GPU",
    "creates-fail": "who is in two projects asks in both for servers that libvirt refuses",
}
"""Signals that hosts and Nova see of a good card when a user wants it, and how: they count as if a guest had sent them.

Not among them: `link-width` and `link-speed`, since the port trains a link, and the latter is that of the server's best
moment; what no guest reaches (`kernel`, `firmware`, `qemu`, `changed`); and whatever is BAD. Of that a guest can have a
host see `aer-fatal`, and by its card's registers maybe `no-answer`, of GPUs that it has: nobody is to get them as they
are then, and they count against no limit.
"""


def is_infrastructure(signal: str) -> bool:
    """Return whether a signal comes from hosts, Nova or scrubs, and no user can provoke it."""
    return signal in SIGNALS and SIGNALS[signal].source in INFRASTRUCTURE and signal not in PROVOKED


class PoolLimits:
    """The slots of each pool that are kept back without a person, as they change while a plan is made.

    A bad rule must not empty the cloud, and neither must a guest that lies. So there is a limit twice: on what guests,
    jobs and people say, or can have hosts and Nova say (PROVOKED), and on what hosts and Nova suspect or call stale,
    which no user can use up. What they call bad is always kept back, and so is a GPU whose scrub has failed, or that
    Nova did not reserve for one: the next tenant must not get it as it is. It counts against neither limit.
    """

    def __init__(
        self, places: Sequence[SitePlace], records: Iterable[GpuHealth], rules: SiteHealth, verdicts: SignalVerdicts
    ) -> None:
        self._verdicts = verdicts
        self._slots: dict[str, list[str]] = {}
        self._pool_of: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for place in places:
            self._slots.setdefault(place.slot, []).append(place.name)
            self._pool_of[place.slot] = place.pool
            sizes[place.pool] = sizes.get(place.pool, 0) + 1
        self._most = {pool: size * rules.quarantine // 100 for pool, size in sizes.items()}
        self._slot_of = {name: slot for slot, names in self._slots.items() for name in names}
        self._ours: dict[bool, set[str]] = {True: set(), False: set()}
        """Slots that rules keep back within a limit, by whether infrastructure said so."""
        self._anyhow: set[str] = set()
        """Slots that are out of use anyhow: somebody has said so, or there is no limit."""
        for record in records:
            self.follow(record)

    def follow(self, gpu: GpuHealth) -> None:
        """Count the GPU in its state now. A slot that was counted stays counted until the next plan, which has the room
        of what is let go."""
        slot = self._slot_of.get(gpu.name)
        if slot is None or gpu.state not in KEPT_BACK:
            return
        is_counted = by_rule(gpu) and not self._has_no_limit(gpu.name, gpu.signal)
        (self._ours[is_infrastructure(gpu.signal)] if is_counted else self._anyhow).add(slot)

    def room_for(self, gpu: str, signal: str) -> bool:
        """Return whether its slot may be kept back for this signal without a person."""
        slot, ours = self._slot_of[gpu], self._ours[is_infrastructure(signal)]
        if slot in ours or slot in self._anyhow or self._has_no_limit(gpu, signal):
            return True
        pool = self._pool_of[slot]
        out = sum(len(self._slots[other]) for other in ours - self._anyhow if self._pool_of[other] == pool)
        return out == 0 or out + len(self._slots[slot]) <= self._most[pool]

    def _has_no_limit(self, gpu: str, signal: str) -> bool:
        """By what the site makes of the signal there: a suspicion of a host that lasts has the limit that it had."""
        if signal not in SIGNALS:
            return False
        bad = self._verdicts.of(signal, gpu, self._pool_of[self._slot_of[gpu]]).in_force is Judgement.BAD
        return SIGNALS[signal].has_no_limit or (bad and is_infrastructure(signal))


def by_rule(gpu: GpuHealth) -> bool:
    """Return whether a GPU is kept back by a rule and a signal, not by a person or because it is new."""
    return not gpu.by and bool(gpu.signal)
