"""Moves servers off the hosts of a campaign as ``gpuyard host drain`` does, and opens hosts as ``host return`` does.

What was done is read from the cloud; only what this run has begun is kept here. A server moves in a thread of its own,
so that other hosts do not wait for its disks. Killing the run kills that, too, and the next run goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from gpuyard.drain.apply import HostMover
from gpuyard.drain.campaign.planner import CampaignDrain, CampaignWork
from gpuyard.drain.campaign.runner import CampaignUnseenError
from gpuyard.drain.host_return import give_back
from gpuyard.drain.leftovers_apply import own_holds
from gpuyard.drain.planner import MovePlan, MoveRules
from gpuyard.drain.read import Keepings, MovesReader
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.disabled_reason import Purpose, tag_of
from gpuyard.openstack.errors import CloudError

if TYPE_CHECKING:
    from gpuyard.drain.campaign.definition import Campaign
    from gpuyard.openstack.api import CloudApi
    from gpuyard.site.load import LoadedSite

LOOK_AGAIN = 60.0
"""Seconds after which servers that wait are observed anew: each observation reads all that the cloud has."""
PASSING = (None, 502, 503, 504)
"""HTTP statuses of errors that may pass soon; None: there was no answer."""


class Mover(Protocol):
    """The part of HostMover that is used here."""

    def plan(self, host: str) -> MovePlan: ...

    def step(self, host: str) -> MovePlan: ...


@dataclass
class _Step:
    """One server on its way."""

    host: str
    words: str
    thread: Thread | None = None
    failed: str = ""
    unknown: bool = False
    """It is not known whether it was done."""

    def carry_out(self, mover: Mover) -> None:
        try:
            mover.step(self.host)
        except CampaignUnseenError:
            self.unknown = True
        except CloudError as error:
            self.unknown, self.failed = error.status in PASSING, str(error)
        except GpuyardError as error:
            self.failed = str(error)
        except BaseException as error:
            self.failed = f"{type(error).__name__}: {error}"
            raise

    @property
    def runs(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


@dataclass
class CampaignDrains:
    """The drains of one run. `say`: host, and what becomes of its servers."""

    api: CloudApi
    mover_of: Callable[[str], Mover]
    """Returns the mover of a host."""
    holds_of: Callable[[str], frozenset[str]]
    """Returns consumers that keep GPUs of a host on purpose."""
    say: Callable[[str, str], None]
    clock: Callable[[], float] = monotonic
    _movers: dict[str, Mover] = field(default_factory=dict)
    _seen: dict[str, tuple[float, CampaignDrain]] = field(default_factory=dict)
    _step: _Step | None = None

    def look(self, host: str, may_go_down: Collection[str] = ()) -> CampaignDrain:
        """Return how the drain of a host is going. `may_go_down`: ids of servers that need not leave, and do where they
        can. Raises CampaignUnseenError."""
        step = self._step if self._step is not None and self._step.host == host else None
        if step is not None and step.runs:
            return CampaignDrain(next=step.words, move=CampaignWork.RUNNING)
        drain = self._look(host, may_go_down)
        if step is None or step.unknown:
            return drain
        return replace(drain, move=CampaignWork.ENDED, failed=step.failed)

    def _look(self, host: str, may_go_down: Collection[str]) -> CampaignDrain:
        at, drain = self._seen.get(host, (0.0, None))
        if drain is None or self.clock() - at > LOOK_AGAIN:
            drain = self._plan(host, may_go_down)
            self._seen[host] = (self.clock(), drain)
        return drain

    def _plan(self, host: str, may_go_down: Collection[str]) -> CampaignDrain:
        try:
            with _answered():
                plan = self._mover(host).plan(host)
        except BlockedError as error:
            return CampaignDrain(refused=str(error))
        closed, _ = self.closed(host)
        first = (*plan.under_way, *plan.acts)[:1]
        left = [verdict for verdict in plan.left if verdict.server.id not in may_go_down]
        return CampaignDrain(closed, "".join(map(str, first)), tuple(map(str, left)))

    def foresee(self, host: str) -> tuple[str, ...]:
        """Return what would become of each server if the host were drained now; nothing is changed."""
        try:
            with _answered():
                return tuple(f"server {verdict}" for verdict in self._mover(host).plan(host).verdicts)
        except BlockedError as error:
            return (str(error),)

    def close(self, host: str) -> None:
        self._seen.clear()
        with _answered():
            tag = ComputeService(self.api, host).close(Purpose.DRAIN)
        self.say(host, f"closed for new servers ({tag})")

    def drain(self, host: str) -> None:
        """Begin to move the next server."""
        assert self._step is None or not self._step.runs, "one server moves at a time"
        step = _Step(host, self._seen[host][1].next if host in self._seen else "")
        self._seen.clear()
        # A daemon: it does not keep a run that is interrupted from its end.
        step.thread = Thread(target=step.carry_out, args=(self._mover(host),), daemon=True, name=f"drain-{host}")
        self._step = step
        step.thread.start()

    def closed(self, host: str) -> tuple[bool, bool]:
        """Return whether the host is closed by us, and whether Nova hears of it. A host that a maintenance has closed
        is left for the maintenance to open. Raises CampaignUnseenError."""
        with _answered():
            service = ComputeService(self.api, host).look()
        tag = None if service.enabled else tag_of(service.disabled_reason)
        return tag is not None and tag.purpose is not Purpose.MAINTENANCE, service.up

    def open(self, host: str) -> None:
        with _answered():
            give_back(self.api, host, (), lambda text: self.say(host, text), self.holds_of(host), patience=0)

    def _mover(self, host: str) -> Mover:
        """The same one each time: it knows since when it follows what others have begun."""
        return self._movers.setdefault(host, self.mover_of(host))


def drains_of(
    campaign: Campaign,
    api: CloudApi,
    loaded: LoadedSite,
    keepings: Callable[[], Keepings],
    say: Callable[[str, str], None],
) -> CampaignDrains:
    """Return the drains of a campaign on a real cloud."""
    rules = MoveRules(shelve=campaign.drain == "shelve")

    def mover_of(host: str) -> Mover:
        return HostMover(api, MovesReader(api, loaded, host, keepings).read, rules, lambda text: say(host, text))

    return CampaignDrains(api, mover_of, lambda host: own_holds(loaded, host), say)


@contextmanager
def _answered() -> Iterator[None]:
    """A cloud that does not answer may do so soon."""
    try:
        yield
    except CloudError as error:
        if error.status in PASSING:
            raise CampaignUnseenError(str(error)) from None
        raise
