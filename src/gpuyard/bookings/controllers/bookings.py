"""The loop that makes bookings true in OpenStack: limits, holds, and GPUs taken back from servers without a booking.

Each run observes the whole cloud again and changes what is not as it must be, in this order: the ledger's clock
advances; the cloud is observed once for all pools; troubles of lanes and claims of servers are recorded, so that
bookings move before anything is planned on them; then each pool is planned and applied, and its overstays are followed
up; last it is recorded whose owners are let in. What must outlive a kill is in the store, written before the call that
it speaks of. An error in one pool, even an unforeseen one, does not keep the others from being reconciled; the run
fails then, and is tried again.

Of several processes on one database only the leader reconciles, and it confirms its leadership before each step that
must not be done twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic

from gpuyard.bookings.controllers.enforce import Enforcer, OvertakenError
from gpuyard.bookings.controllers.fault_durations import FaultDurations
from gpuyard.bookings.controllers.overstays import OverstayController
from gpuyard.bookings.controllers.reclaim_servers import Reclaimer
from gpuyard.bookings.enforcement import (
    Controls,
    EnforcementStep,
    PoolPlan,
    ReleaseHold,
    Remember,
    SeenProvider,
    SetLimit,
    kept_lanes,
    plan_kept_back,
    plan_pool,
    unclear,
)
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.matching import Holder, running
from gpuyard.bookings.pool_view import PoolView, read_memory
from gpuyard.bookings.records import AuditEntry, Event, LedgerSeen, Query, lanes_of
from gpuyard.bookings.shortage import Shortage, shortage
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.inventory.state import ledger_words
from gpuyard.model.booking import Booking, BookingState, Lane
from gpuyard.model.booking_life import TAKES_LANES
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.gpu import LedgerWords
from gpuyard.model.world import Snapshot
from gpuyard.nova.release import RELEASES
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.runtime.problems import RunProblems
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import bookings_mark, gpu_resources, runner_flavors
from gpuyard.site.schema import Pool

LOG = logging.getLogger(__name__)
ROUNDS = 6
"""Most times that one run plans a pool anew: a step shows the next one, and something may change in between."""
HOLD_TRIES = 3
"""Most times that a hold that must stand at once is tried."""
AHEAD = timedelta(hours=1)
"""Bookings are looked at that begin so long after the first moment that any rule speaks of."""
PAGE = 1000
MOVES = 14
"""Since this release Placement lets allocations move although the provider is reserved by now."""
GONE = (400, 404)
"""How Keystone says that there is no such project (any more)."""
FORBIDDEN = 403
"""How Keystone says that there is no registered limit; also that somebody may not set one."""


class BookingsError(GpuyardError):
    """A run of the loop left something undone; the message says what."""


class LeadershipLostError(BookingsError):
    """Raised when another process may be the leader by now."""


class BookingController:
    """Reconciles one site's bookings with its cloud. One run at a time."""

    def __init__(
        self,
        api: CloudApi,
        compiled: CompiledSite,
        ledger: Ledger,
        taker: SnapshotTaker,
        now: Callable[[], datetime],
        kept_back: Callable[[], Mapping[tuple[str, str], str]] = dict,
        clean: Callable[[], Mapping[str, int]] = dict,
        steady: Callable[[], float] = monotonic,
        idle_servers: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`taker`: one of its own, not the one of the sync loop. `now`: UTC. `kept_back`: (host, address) of GPUs that
        nobody is to get, each with why. `clean`: providers that may be released after a use, in one generation of each.
        `steady`: seconds by a clock that only goes forward. `idle_servers`: servers that do nothing with their GPUs.
        Raises UsageError for a site whose GPUs neither limits nor holds can reach."""
        site = compiled.site
        if not site.gpu_quotas or site.pci_in_placement != "on":
            raise UsageError(
                f"site {site.site}: bookings need 'gpu_quotas: true' and 'pci_in_placement: on'; without them Nova "
                "lets everybody in"
            )
        self._ledger, self._upkeep = ledger, ledger.upkeep
        self._compiled = compiled
        self._taker = taker
        self._now, self._steady = now, steady
        self._kept_back, self._clean = kept_back, clean
        self.observation: CloudObservation | None = None
        """The cloud as the last run saw it."""
        self.observed = WakeSignal()
        """Sent when `observation` is new."""
        acceptance = site.health.acceptance if site.health else None
        self._own = {acceptance.project} if acceptance and acceptance.project else set()
        self._enforcer = Enforcer(api, bookings_mark(site.site))
        self._resources = gpu_resources(site, compiled.limits)
        self._classes = {gpu.provider_name: gpu.resource_class for gpu in compiled.gpus}
        self._limits: Mapping[tuple[str, str], int] | None = None
        self.overstays = OverstayController(site, ledger, Reclaimer(api), now, self._require_leadership, idle_servers)
        self._sightings = FaultDurations(compiled)
        self._lock = threading.Lock()
        self._words: LedgerWords = {}
        self._ran = False
        self._views: Mapping[str, PoolView] = {}
        self._known: set[str] = set()
        """Errors that nobody has thought of, of the last run."""
        self.waits: tuple[str, ...] = ()
        """Waits of the last run: work that could not be done yet, each with its reason."""

    def _require_its_database(self) -> None:
        """Raise BookingsError when the database has never been kept with this cloud, and the cloud has bookings'
        limits: a path that is misspelt, or a database that was lost, would take everybody's GPUs away."""
        records = self._upkeep.records
        if records.value("", "site"):
            return
        if marked := self._enforcer.marked():
            raise BookingsError(
                f"the database {self._ledger.database.name} is new, and the cloud has {len(marked)} limits of its "
                "bookings: is it the right --database? Nothing is changed in the cloud. To begin anew without the old "
                f"bookings, delete these limits: openstack limit delete {marked[0]} ..."
            )
        records.set_value("", "site", self._compiled.site.site)

    @property
    def words(self) -> LedgerWords:
        """The ledger's words about GPUs, as of the last run, for `gpu_statuses`."""
        return self._words

    def bookings_of(self, server_id: str) -> tuple[str, ...]:
        """Return ids of the bookings that a server draws on, as of the last run."""
        return tuple(id for view in self._views.values() for id in view.matches.bookings_of.get(server_id, ()))

    def run(self) -> float | None:
        """Observe the cloud, and apply what follows. Raises what went wrong, after the rest was done. Of several
        processes on one database only the leader does this; another one takes over when that one ends. Returns in how
        many seconds another run is known to help; None when that is not known."""
        with self._lock:
            if not self._upkeep.leadership.try_to_lead(BOOKINGS):
                self.waits = ("another process on this database leads bookings",)
                self._words = self._words_of_another()
                return None
            self._require_its_database()
            run = _Run(RunProblems(self._known))
            with run.problems.apart("the clock of bookings", LeadershipLostError):
                self._upkeep.advance()
            began = self._steady()
            snapshot = self._taker.take(self._now())
            projects = self._enforcer.projects()
            self._limits = None
            views: dict[str, PoolView] = {}
            back = self._kept_back()
            for pool in self._ledger.book.pools:
                with run.problems.apart(f"pool {pool}", LeadershipLostError):
                    views[pool] = self._view(pool, snapshot, projects, back)
            self._views = views
            self._show(snapshot, began, views)
            with run.problems.apart("what is wrong with GPUs", LeadershipLostError):
                self._tell_troubles(views, snapshot)
            heard = self._heard(views, snapshot, run)
            for pool, view in heard.items():
                with run.problems.apart(f"pool {pool}", LeadershipLostError):
                    self._tell_claims(view)
                    run.claims |= view.matches.claims
            for pool, view in heard.items():
                with run.problems.apart(f"pool {pool}", LeadershipLostError):
                    self._keep(view, snapshot, run)
            with run.problems.apart("who is let in", LeadershipLostError):
                self._require_leadership()
                self._upkeep.record_claims(run.claims, run.ready, run.usable)
            self.waits = tuple(run.waits)
            wrong = {lane: why for view in views.values() for lane, why in view.kept_back.items()}
            self._words = ledger_words(self._compiled.gpus, self._ledger.lanes(), self._bookings_now(), run.kept, wrong)
            self._ran = True
            self._known = run.problems.odd
            if run.problems.texts:
                raise BookingsError("; ".join(run.problems.texts))
            return max(0.0, (min(run.again) - self._now()).total_seconds()) if run.again else None

    def _words_of_another(self) -> LedgerWords:
        """Return the words about GPUs that the leader of bookings would show, from what it has written down. Changes
        nothing; with it the map of this process shows the same as the leader's."""
        now, back = self._now(), self._kept_back()
        snapshot, projects = self._taker.take(now), self._enforcer.projects()
        views = [self._view(pool, snapshot, projects, back) for pool in self._ledger.book.pools]
        hold_reasons = {lane: why for view in views for lane, why in kept_lanes(view, now, view.memory.opened).items()}
        wrong = {lane: why for view in views for lane, why in view.kept_back.items()}
        return ledger_words(self._compiled.gpus, self._ledger.lanes(), self._bookings_now(), hold_reasons, wrong)

    def _keep(self, view: PoolView, snapshot: Snapshot, run: _Run) -> None:
        """All that there is to do about a pool."""
        view = self._with_bookings(view)
        short = shortage(view, self._now())
        if short.moves and self._upkeep.prefer(short.moves):
            view = self._with_bookings(view)
        for id in short.leases:
            self._require_leadership()
            self._ledger.leases.end(id, MADE_WAY)
        self._tell_delayed(view, short)
        plan = self._enforce(view, snapshot)
        self._tell_leases(view, plan)
        run.waits += plan.waits
        run.kept |= plan.kept
        run.ready |= plan.ready
        run.usable |= {booking.id: booking.id in plan.usable for booking in running(view.bookings)}
        run.again += [plan.again] if plan.again else []
        self.overstays.look(lambda: self._with_bookings(view), snapshot.taken_at)

    def _require_leadership(self) -> None:
        """Before each thing that must not be done by two: whoever has waited for an answer for a minute may have been
        taken for dead."""
        if not self._upkeep.leadership.is_leader(BOOKINGS):
            raise LeadershipLostError("this process no longer leads bookings; the rest of this run is left out")

    # What is seen.

    def _heard(self, views: Mapping[str, PoolView], snapshot: Snapshot, run: _Run) -> dict[str, PoolView]:
        """The pools all of whose hosts are in cells of Nova that answer. Of others' servers it is not known who has
        one, so nothing is done about such a pool, and what it keeps stays."""
        heard = dict(views)
        for pool, view in views.items():
            silent = sorted({lane.host for lane in view.lanes.values()} & snapshot.silent_hosts)
            if silent:
                del heard[pool]
                run.waits.append(f"pool {pool}: {snapshot.services[silent[0]].unheard}")
                run.kept |= kept_lanes(view, self._now(), view.memory.opened)
        return heard

    def _show(self, snapshot: Snapshot, began: float, views: Mapping[str, PoolView]) -> None:
        """To others, who need not look again. What was remembered of holds was read after the look, and none came off
        in between: so a GPU that is reserved and not ours is so by somebody else."""
        if len(views) == len(self._ledger.book.pools):
            ours = frozenset(name for view in views.values() for name in view.memory.holds)
            bookings = {booking.id: booking for view in views.values() for booking in view.bookings}
            lanes = lanes_of(lane for view in views.values() for lane in view.lanes.values())
            drawn = {server: self.bookings_of(server) for server in snapshot.servers}
            words = self._words if self._ran else None
            self.observation = CloudObservation(snapshot, ours, LedgerSeen(bookings, drawn, lanes), words, began)
            self.observed("the cloud was looked at")

    def _view(
        self, pool: str, snapshot: Snapshot, projects: Mapping[str, str], back: Mapping[tuple[str, str], str]
    ) -> PoolView:
        site = self._compiled.site
        lanes = self._ledger.lanes(pool)
        unbooked = {
            projects[name]: project.gpus[pool]
            for name, project in site.projects.items()
            if name in projects and project.gpus.get(pool) and not site.rules(pool, name).must_book
        }
        offered = {(gpu.host, gpu.address): gpu.provider_name for gpu in self._compiled.gpus if not gpu.blocked}
        clean = {name: number for name, number in self._clean().items() if name in snapshot.reserved}
        if clean:  # what came back clean since `back` was read may be out of use for something else
            back = {**back, **self._kept_back()}
        view = PoolView(
            pool=pool,
            lanes={lane.id: lane for lane in lanes},
            providers={
                lane.id: names
                for lane in lanes
                if (names := tuple(offered[lane.host, a] for a in lane.addresses if (lane.host, a) in offered))
            },
            bookings=(),
            holders=(),
            rules=lambda project: site.rules(pool, project),
            reserved=snapshot.reserved,
            clean=clean,
            memory=read_memory(self._upkeep.records.values(pool)),
            unbooked=unbooked,
            trusted=self._trusted(lanes, projects),
            own=frozenset({projects[name] for name in self._own if name in projects}),
            held_below=self._held_below(site.pools[pool]),
            once=site.pools[pool].one_time_use,
            kept_back=lanes_back(lanes, back),
            taken_at=snapshot.taken_at,
        )
        return self._with_bookings(replace(view, holders=tuple(self._holders(view, snapshot))))

    def _held_below(self, pool: Pool) -> bool:
        """A unit that somebody has cannot be held too: its device has no more than it has."""
        moves = RELEASES[self._compiled.site.release].placement >= MOVES
        return moves and not pool.one_time_use and not pool.is_shared

    def _trusted(self, lanes: Iterable[Lane], projects: Mapping[str, str]) -> dict[str, int]:
        """The runners' project, where their flavors have GPUs of the lanes' pool, with as many as there are."""
        runners, lanes = self._compiled.site.runners, list(lanes)
        if runners is None or runners.project not in projects:
            return {}
        pools = {
            pool for name in runner_flavors(self._compiled.site) for pool in self._compiled.site.flavors[name].gpus
        }
        gpu_count = sum(lane.size for lane in lanes if lane.pool in pools)
        return {projects[runners.project]: min(gpu_count, runners.most or gpu_count)} if gpu_count else {}

    def _holders(self, view: PoolView, snapshot: Snapshot) -> Iterable[Holder]:
        """Servers of the pool, and those of which it cannot be told yet."""
        lane_of = {name: lane for lane, names in view.providers.items() for name in names}
        providers_by_consumer: dict[str, list[str]] = {}
        for name, consumer in snapshot.holders.items():
            if name in lane_of:
                providers_by_consumer.setdefault(consumer, []).append(name)
        for server in snapshot.servers.values():
            names = providers_by_consumer.get(server.id, [])
            pool = self._sightings.pool_of(server.flavor)
            coming = self._sightings.on_its_way(server, bool(names), snapshot.taken_at)
            if names or (coming and pool in ("", view.pool)):
                yield Holder(
                    id=server.id,
                    name=server.name,
                    status=server.status,
                    user_id=server.user_id,
                    project_id=server.project_id,
                    project=server.project,
                    pool=view.pool if names else pool,
                    lanes=tuple(sorted({lane_of[name] for name in names})),
                    gpus=len(names),
                    created=server.created,
                    on_its_way=coming,
                )

    def _with_bookings(self, view: PoolView) -> PoolView:
        """The view with its bookings as they are now: those that are on or begin soon, and later ones as long as
        somebody is there who could be in their way."""
        now = self._now()
        site = self._compiled.site
        rules = [site.rules(view.pool, name) for name in ("", *site.projects)]
        soon = now + max(rule.hold + rule.grace for rule in rules) + AHEAD
        near = self._find(Query(pool=view.pool, states=TAKES_LANES, end=soon))
        latest = max((b.ask.end for b in near if b.state is BookingState.ACTIVE), default=soon)
        if latest > soon:
            near = self._find(Query(pool=view.pool, states=TAKES_LANES, end=latest))
        return replace(view, bookings=tuple(near))

    def _find(self, query: Query) -> list[Booking]:
        bookings: list[Booking] = []
        while True:
            page = self._ledger.find(query, PAGE, bookings[-1].id if bookings else "")
            bookings += page
            if len(page) < PAGE:
                return bookings

    def _bookings_now(self) -> list[Booking]:
        return self._find(Query(states=TAKES_LANES, end=self._now() + AHEAD))

    # What the ledger is told.

    def _tell_troubles(self, views: Mapping[str, PoolView], snapshot: Snapshot) -> None:
        """Which lanes cannot be had."""
        ours = {name for view in views.values() for name in view.memory.holds}
        lanes = [lane for view in views.values() for lane in view.lanes.values()]
        troubles = self._sightings.troubles(lanes, snapshot, ours)
        # Of a pool that could not be looked at nothing is known, not even that all is well.
        unseen = {lane.id: lane.trouble for lane in self._ledger.lanes() if lane.pool not in views and lane.trouble}
        self._require_leadership()
        back = {lane: why for view in views.values() for lane, why in view.kept_back.items()}
        self._upkeep.set_troubles(unseen | troubles | back)

    def _tell_claims(self, view: PoolView) -> None:
        """Which lanes bookings have by their servers, where that is news."""
        news = {
            booking.id: lanes
            for booking in view.bookings
            if (lanes := view.matches.claims.get(booking.id, ()))
            and (booking.claimed is None or not {*lanes} <= {*booking.lanes})
        }
        if news:
            self._require_leadership()
            self._upkeep.record_claims(news)

    def _tell_leases(self, view: PoolView, plan: PoolPlan, *, before: bool = False) -> None:
        """What speaks against new leases that is not in the ledger. `before`: the plan is about to be carried out."""
        taken = {lane for lane in view.lanes if not view.ready(lane)}
        leases = self._ledger.leases
        self._require_leadership()
        (leases.tell_before if before else leases.tell)(view.pool, plan.blocked, taken | plan.kept.keys())

    def _tell_delayed(self, view: PoolView, short: Shortage) -> None:
        """Once for each booking that has begun and has no GPU yet."""
        bookings = {booking.id: booking for booking in view.bookings}
        for id in short.delayed:
            booking, now = bookings[id], self._now()
            why = "its GPU is not free yet, and no other one is"
            event = Event(
                "booking.delayed", now, id, booking.user_id, booking.email, {"pool": view.pool, "reason": why}
            )
            entry = AuditEntry(now, GPUYARD, "booking.delayed", id, text=why)
            self._upkeep.note_once(view.pool, id, "delayed", event, entry)

    # What OpenStack is told.

    def _enforce(self, view: PoolView, snapshot: Snapshot) -> PoolPlan:
        """Plan and carry out until nothing is left to do now."""
        gone: set[str] = set()
        for _ in range(ROUNDS):
            now, words = self._now(), self._upkeep.records.values(view.pool)
            # What was remembered first: what somebody holds meanwhile is kept back already.
            view = replace(view, memory=read_memory(words))
            view = replace(view, kept_back=lanes_back(view.lanes.values(), self._kept_back()))
            plan = plan_pool(view, self._controls(view, snapshot, now), now)
            steps = [step for step in plan.steps if not isinstance(step, SetLimit) or step.project not in gone]
            if not steps:
                return plan
            self._tell_leases(view, plan, before=True)
            try:
                self._limits = None
                gone |= self._carry_out(steps, snapshot, words, partial(self._require_same_health, view))
            except OvertakenError as change:
                LOG.info("pool %s: %s; looking again", view.pool, change)
            released = {step.provider for step in steps if isinstance(step, ReleaseHold)}
            view = replace(view, reserved=view.reserved - released)
        left = ", ".join(map(str, plan.steps))
        raise BookingsError(f"after {ROUNDS} looks there is still something to change: {left}")

    def hold_at_once(self) -> None:
        """Hold what has come to be kept back, by what the last run saw: without observing the whole cloud, with which a
        run begins, and beside one that is under way. What does not succeed now, the next run does."""
        observation, back = self.observation, self._kept_back()
        if observation is None or not back or not self._upkeep.leadership.is_leader(BOOKINGS):
            return
        for view in self._views.values():
            self._hold_now(replace(view, kept_back=lanes_back(view.lanes.values(), back)), observation.snapshot)
        # No booking, offer or lease is put there any more, before the next look at the cloud.
        troubles = {lane.id: lane.trouble for lane in self._ledger.lanes() if lane.trouble}
        bad = lanes_back((lane for view in self._views.values() for lane in view.lanes.values()), back)
        if bad.keys() - troubles.keys():
            self._upkeep.set_troubles(troubles | bad)

    def _hold_now(self, view: PoolView, snapshot: Snapshot) -> None:
        """All lanes of a pool that are kept back and were not held before."""
        names = {name for lane in view.kept_back for name in view.providers.get(lane, ())} - view.reserved
        words = self._upkeep.records.values(view.pool)
        new = names - read_memory(words).holds.keys()
        for left in reversed(range(HOLD_TRIES if new else 0)):
            controls = Controls((), {}, self._look(snapshot, new))
            try:
                self._carry_out(plan_kept_back(replace(view, memory=read_memory(words)), controls), snapshot, words)
                return
            except OvertakenError:  # Nova has just given it to a server, or taken it back
                if not left:
                    raise
            words = self._upkeep.records.values(view.pool)

    def _controls(self, view: PoolView, snapshot: Snapshot, now: datetime) -> Controls:
        """Limits are read once for all pools, and again after a change."""
        if self._limits is None:
            self._limits = self._enforcer.limits([name for names in self._resources.values() for name in names])
        resources = self._resources[view.pool]
        limits = {key: limit for key, limit in self._limits.items() if key[1] in resources}
        once = self._compiled.site.pools[view.pool].one_time_use
        return Controls(resources, limits, self._look(snapshot, unclear(view, now)), once)

    def _look(self, snapshot: Snapshot, names: Iterable[str]) -> dict[str, SeenProvider]:
        providers = snapshot.providers
        resources_by_name = {
            n: (providers[n].id, self._classes[n]) for n in sorted(names) if n in providers and n in self._classes
        }
        return self._enforcer.look(resources_by_name)

    def _require_same_health(self, view: PoolView) -> None:
        """Return whether a GPU has gone bad since a plan was made: it is held before anybody is let in. Raises
        OvertakenError."""
        if lanes_back(view.lanes.values(), self._kept_back()).keys() - view.kept_back.keys():
            raise OvertakenError("a GPU has come to be kept back meanwhile")

    def _carry_out(
        self,
        steps: Iterable[EnforcementStep],
        snapshot: Snapshot,
        words: Mapping[str, str],
        before_letting_in: Callable[[], None] = lambda: None,
    ) -> set[str]:
        """In order, and none after one that fails. `words`: what was remembered when they were planned.
        `before_letting_in`: is called before each step after which somebody could start a server. Returns projects that
        Keystone does not know (any more): they keep nobody else from theirs."""
        remembered: dict[str, str | None] = dict(words)
        gone: set[str] = set()
        for step in steps:
            self._require_leadership()
            if isinstance(step, ReleaseHold) or (isinstance(step, SetLimit) and step.value):
                before_letting_in()
            LOG.info("pool %s: %s (%s)", step.pool, step, step.reason)
            if isinstance(step, Remember):
                if not self._upkeep.records.swap_value(step.pool, step.word, remembered.get(step.word), step.text):
                    raise OvertakenError(f"another process has written down other {step.word}")
                remembered[step.word] = step.text
            elif isinstance(step, SetLimit):
                gone |= self._set_limit(step)
            else:
                provider = snapshot.providers[step.provider].id, self._classes[step.provider]
                self._enforcer.carry_out(step, provider)
        return gone

    def _set_limit(self, step: SetLimit) -> set[str]:
        """The project, when there is none."""
        try:
            self._enforcer.carry_out(step)
        except OvertakenError:
            raise
        except CloudError as error:
            if not step.value or error.status not in (*GONE, FORBIDDEN):
                raise
            if step.resource not in self._enforcer.registered():
                raise BookingsError(
                    f"Keystone has no registered limit on {step.resource}, and takes no project's without: run "
                    "'gpuyard site apply'"
                ) from None
            if error.status == FORBIDDEN:
                raise
            LOG.warning("pool %s: %s: %s", step.pool, step, error)
            return {step.project}
        return set()


def lanes_back(lanes: Iterable[Lane], back: Mapping[tuple[str, str], str]) -> dict[int, str]:
    """Return the lanes whose GPUs are kept back, each with why, and which GPU it is where not all are alike."""
    reasons: dict[int, str] = {}
    for lane in lanes:
        wrong = [(address, back[lane.host, address]) for address in lane.addresses if (lane.host, address) in back]
        if wrong:
            words = {why for _, why in wrong}
            alike = len(wrong) == lane.size and len(words) == 1
            reasons[lane.id] = "; ".join(words if alike else [f"{address} is {why}" for address, why in wrong])
    return reasons


@dataclass(frozen=True)
class CloudObservation:
    """The cloud and the ledger as one run saw them."""

    snapshot: Snapshot
    ours: frozenset[str]
    """Providers that are reserved by us."""
    ledger: LedgerSeen = field(default_factory=LedgerSeen)
    """The ledger's bookings and lanes at that time."""
    words: LedgerWords | None = None
    """The ledger's words about GPUs, as of the run before: their effects are what was observed. None in the first
    run."""
    began: float = field(default_factory=monotonic)
    """When the cloud was asked, in seconds by a clock that only goes forward; that of `snapshot.taken_at` may jump."""


@dataclass
class _Run:
    """Results that one run collects."""

    problems: RunProblems
    waits: list[str] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    claims: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Booking -> lanes that servers of its owner are on."""
    ready: set[str] = field(default_factory=set)
    """Bookings whose owner is let in."""
    usable: dict[str, bool] = field(default_factory=dict)
    """Whether the owner of a booking that is on can start a server."""
    again: list[datetime] = field(default_factory=list)


def bookings_loop(controller: BookingController, period: float) -> Loop:
    """Return a loop named ``bookings`` that runs every `period` seconds, and at once when it is woken: a booking was
    made, changed, ended or opened."""
    what = "Makes bookings true: limits, holds, and GPUs back from those who have not booked."
    return Loop("bookings", what, period, controller.run, essential=True)
