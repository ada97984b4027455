"""Assembles everything that runs a site's runners, and the control loops that drive it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

from gpuyard.bookings.controllers.group_holds import open_group_holds
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.controllers.gpus_kept_from_jobs import open_hold_check
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.guarded_servers import GuardedServers
from gpuyard.openstack.servers import NovaServers, open_servers_project
from gpuyard.openstack.silent_cells import all_cells_answer
from gpuyard.runners.announce import Announcer, job_link
from gpuyard.runners.controllers.registrations import Registrations
from gpuyard.runners.controllers.repositories import Repositories
from gpuyard.runners.controllers.repository_visibility import RepositoryVisibility
from gpuyard.runners.controllers.runner_intake import JobIntake
from gpuyard.runners.controllers.runner_recovery import Recovery
from gpuyard.runners.controllers.runner_site import RunnerSite, random_letters
from gpuyard.runners.controllers.runners import A_JOB, RunnerController, RunnerPorts
from gpuyard.runners.controllers.set_listener import SetListener, SetPlace, SetPlan
from gpuyard.runners.controllers.slot_kinds import open_slot_kinds
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.records import JobState
from gpuyard.runners.store import RunnerStore
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.runtime.worker_pool import WorkerPool
from gpuyard.site.compile import CompiledSite
from gpuyard.site.runner_rules import Enrolment

LOG = logging.getLogger(__name__)
PERIOD = 5.0
"""Seconds between runs of the main loop; every event wakes it at once."""
NOVA_PERIOD, NOVA_REST = 3.0, 3.0
CONSOLE_PERIOD, CONSOLE_REST = 3.0, 2.0
GITHUB_PERIOD = 60.0
INTAKE_PERIOD = 5.0
RECOVERY_PERIOD = 120.0
UNCLAIMED_PERIOD = 15.0
ANNOUNCE_PERIOD = 30.0
PERMISSION_PERIOD = 3600.0
SET_PERIOD = 10.0
"""Seconds before a poll is tried again that failed, twice as long each time; one that went well is followed at once. A
poll lasts for 50 s, and a loop is taken for dead after ten times its period."""
CREW = 16
"""Calls to Nova and GitHub at once."""
ASKERS = 8
PRUNED = timedelta(days=1)
FAMILIAR = timedelta(days=30)
"""A repository that had a job of ours in this time is likely to have another."""
ANNOUNCED = "announced"
"""Key under which the store remembers the statuses that were set at commits."""


class Runners:
    """The runners of one site, on one ledger. Nothing runs before its loops do."""

    def __init__(
        self,
        site: RunnerSite,
        ports: RunnerPorts,
        now: Callable[[], datetime],
        executor: Callable[[str, int], Executor] = lambda name, many: ThreadPoolExecutor(many, name),
        portal: str = "",
    ) -> None:
        """`executor` makes one of a name that does so many things at once. `portal`: its address, for links to
        jobs."""
        self._now = now
        self.webhook_stored = WakeSignal()
        """To be sent after a webhook was written down."""
        self._executors = [executor("runners", CREW), executor("jobs", ASKERS)]
        self.site, self.ports = site, ports
        repositories = Repositories(
            site.compiled.site, ports.clients, now,
            lambda scope: ports.store.repositories_with_jobs(scope, now() - FAMILIAR),
        )  # fmt: skip
        self.controller = RunnerController(
            site, ports, partial(WorkerPool, self._executors[0]), now, repositories.known
        )
        visibility = RepositoryVisibility(ports.clients, ports.store, now)
        self.intake = JobIntake(
            site, ports.store, self.controller.book, self.controller.live, repositories, self._executors[1], now,
            visibility.heard,
        )  # fmt: skip
        period = timedelta(seconds=RECOVERY_PERIOD)
        self.recovery = Recovery(
            ports.clients, ports.store, self.controller.book, self.intake, repositories, self._hooked, now, period,
            visibility,
        )  # fmt: skip
        self.registrations = Registrations(
            site, self.controller.observer, ports.store, self.controller.live, self.controller.workers, now
        )
        self._announcer = Announcer(
            {name: client for name, client in ports.clients.items() if client.enrolment.statuses},
            partial(ports.store.value, ANNOUNCED), partial(ports.store.set_value, ANNOUNCED), now,
            partial(job_link, portal),
        )  # fmt: skip
        self.listeners = [self._listener(label) for label in site.runners.sets]
        self._pruned: datetime | None = None

    def _hooked(self, scope: str) -> bool:
        enrolment = self.site.enrolment(scope)
        return enrolment is not None and enrolment.webhook_secrets_file is not None

    def _listener(self, label: str) -> SetListener:
        scope = self.site.set_scope(label)
        enrolment = self.site.enrolment(scope)
        assert enrolment is not None  # the site file was checked
        place = SetPlace(scope, label, enrolment.runner_group, enrolment.url)
        plan = SetPlan(
            capacity=lambda: self.controller.plan.capacity.get(label, 0),
            may=lambda: self.controller.is_leader and self.controller.planned,
            known=lambda number: self.controller.set_ids.__setitem__((scope, label), number),
        )
        return SetListener(place, self.ports.sets[scope], self.ports.store, self.controller.book, plan, self._now)

    def loops(self) -> list[Loop]:
        """Return the loops, to be registered with a driver before it starts."""
        controller = self.controller
        main = Loop("runners", "Makes runners for jobs, and deletes those that are done.", PERIOD, controller.run)
        intake = Loop("jobs", "Takes in what GitHub says of jobs, and what they may have.", INTAKE_PERIOD, self.take_in)

        def wake_intake(reason: str) -> None:
            if reason == A_JOB:
                intake.wake(reason)

        controller.wake.listen(main.wake)
        controller.wake.listen(wake_intake)
        controller.planned_anew.listen(self._capacities_changed)
        self.webhook_stored.listen(intake.wake)
        loops = [
            main,
            intake,
            Loop("servers", "Looks at runners' servers at Nova.", NOVA_PERIOD, controller.look_at_nova, NOVA_REST),
            Loop(
                "consoles", "Reads what runners say while they start.", CONSOLE_PERIOD, controller.look_at_consoles,
                CONSOLE_REST,
            ),
            Loop("registrations", "Looks at runners at GitHub.", GITHUB_PERIOD, self.look_at_github),
            Loop("permissions", "Asks what apps may do at GitHub.", PERMISSION_PERIOD, controller.permissions.run),
            Loop("announcements", "Says at commits why jobs wait.", ANNOUNCE_PERIOD, self.announce, 2.0),
            Loop("lost-jobs", "Looks for what GitHub has lost on its way here.", RECOVERY_PERIOD, self.recover, 2.0),
            Loop(
                "unclaimed-jobs", "Asks for jobs for which runners wait.", UNCLAIMED_PERIOD, self.ask_of_unclaimed, 2.0
            ),
        ]  # fmt: skip
        for listener, label in zip(self.listeners, self.site.runners.sets, strict=True):
            what = "Listens to a runner scale set."
            loops.append(Loop(f"set {label}", what, SET_PERIOD, listener.run, halt=listener.stop))
        return loops

    def _capacities_changed(self, reason: str) -> None:
        for listener in self.listeners:
            listener.capacity_changed()

    def take_in(self) -> float | None:
        return self.intake.run() if self.controller.is_leader else None

    def look_at_github(self) -> None:
        if self.controller.is_leader:
            self.registrations.look()
            self.controller.wake("registrations were looked at")

    def recover(self) -> None:
        if not self.controller.is_leader:
            return
        now = self._now()
        if self._pruned is None or now - self._pruned >= PRUNED:
            self.ports.store.prune(now)
            self._pruned = now
        self.recovery.run()

    def ask_of_unclaimed(self) -> None:
        if self.controller.is_leader:
            self.recovery.ask_of_unclaimed(timedelta(seconds=UNCLAIMED_PERIOD))

    def announce(self) -> None:
        if self.controller.is_leader:
            store = self.ports.store
            jobs = [*self.controller.live.records().jobs, *store.latest_jobs({JobState.REFUSED, JobState.FAILED})]
            self._announcer.run(jobs, self.controller.plan.queue, store.job)

    def close(self) -> None:
        """Close everything after the loops have ended: what is under way is waited for."""
        for executor in self._executors:
            executor.shutdown(wait=True, cancel_futures=True)
        for client in self.ports.clients.values():
            client.close()


def open_runners(
    compiled: CompiledSite,
    api: CloudApi,
    ledger: Ledger,
    now: Callable[[], datetime],
    client: Callable[[Enrolment], GitHubClient] = GitHubClient,
    portal: str = "",
    health: HealthService | None = None,
) -> Runners:
    """Open the runners of a site that has some. `portal`: its address, if it has one that others know. Raises
    GpuyardError: a file of secrets that is missing, a project that is not there, credentials that are for another
    one."""
    runners = compiled.site.runners
    assert runners is not None
    project_api, project_id = open_servers_project(api, runners.project, runners.cloud)
    store = RunnerStore(ledger.database)
    identity = store.identity(random_letters())
    servers = NovaServers(
        project_api, compiled.site.site, runners.network, runners.security_groups, identity=identity,
        cells_answer=lambda: all_cells_answer(api),
    )  # fmt: skip
    try:
        servers.require_network()
    except CloudError as error:  # jobs wait with the same reason until it is mended; bookings need no runners
        LOG.warning("runners: %s", error)
    clients: Mapping[str, GitHubClient] = {enrolment.name: client(enrolment) for enrolment in runners.enrolments}
    sets = {name: ScaleSetClient(github_client) for name, github_client in clients.items()}
    holds = open_hold_check(compiled, ledger, health, api) if health is not None else None
    ports = RunnerPorts(
        store, ledger, GuardedServers(servers), clients, sets, health, holds, open_slot_kinds(compiled, api).known,
        open_group_holds(compiled, ledger, api, health.kept_back if health is not None else dict),
    )  # fmt: skip
    return Runners(RunnerSite(compiled, project_id, identity=identity), ports, now, portal=portal)
