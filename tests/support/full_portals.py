"""A portal with all that there is, and in all of it something of a few people of one project: for tests of what others
see of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from gpuyard.bookings.reclaim import PAST_THE_END
from gpuyard.bookings.records import Overstay
from gpuyard.bookings.store import Store
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.capacity.facts import CloudResources
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.health.controllers.agent_service import ENROL, AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.controllers.scrubs import ScrubService
from gpuyard.health.records import HealthState, HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import new_token
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.booking import Person, ReclaimAction, Rules
from gpuyard.model.gpu import Claim, Gpu, GpuState, GpuStatus
from gpuyard.model.signals import Source
from gpuyard.runners.overview import RunnerOverviewCache
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.server.app import create_app
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.load import LoadedSite
from gpuyard.usage.controllers.accounting import AccountingService, site_clock
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.records import Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore
from gpuyard.web.settings import OthersShown
from gpuyard.web.store import PortalStore
from tests.support.accounting import accounting_site, write_history
from tests.support.agent_portals import RULES, Cloud
from tests.support.clouds import NoCloud
from tests.support.health_portals import HealthPortal, fine, site_gpus, turn
from tests.support.inventories import driver
from tests.support.ledgers import DAY, HOUR, NOON, ROOT, Clock, ask, open_ledger
from tests.support.people import User, people
from tests.support.portals import ROOMY
from tests.support.rooms import Knows, room_of
from tests.support.runner_portals import RunnerPortal, fill, site_runners
from tests.support.sites import flavor, site
from tests.support.sysfs import epyc

MEMBERS = frozenset({"member", "reader"})
TURING = Person("u-turing", "turing", "p-physics", "physics", MEMBERS, "turing@example.org")
"""Has a server, a booking and a place on the waitlist now."""
ZUSE = replace(TURING, user_id="u-zuse", user="zuse", email="zuse@example.org")
"""Has had servers and bookings."""
LEE = replace(TURING, user_id="u-lee", user="lee", roles=MEMBERS | {"manager"}, email="")
"""Manages their project."""
MAX = replace(TURING, user_id="u-max", user="max", email="")
"""A member of it."""
SERVER = "5e2a0000-enigma"
CLAIMED, OFTEN, HELD = "0000:a3:00.0", "0000:c3:00.0", "0000:43:00.0"


def full_portal(folder: Path, others: OthersShown) -> HealthPortal:
    clock, gpus = Clock(), site_gpus()
    ledger = open_ledger(folder, Rules(must_book=False, most_active=100, hold=HOUR), clock)
    database = ledger.database
    who = people(
        {person.user_id: User(person, roles={person.project_id: person.roles}) for person in (TURING, ZUSE, LEE, MAX)}
    )
    store, runners, inventory, board = (
        PortalStore(database),
        RunnerStore(database),
        InventoryCache(),
        RunnerOverviewCache(),
    )
    health = HealthService(HealthStore(database), ledger, SiteHealth.model_validate(RULES), clock)
    scrubs = ScrubService(health, ledger, gpus, {"v100"})
    services = HealthServices(health, MaintenanceService(health, ledger, gpus, lambda: None, NoCloud()), scrubs)
    cloud = Cloud(clock, {"enigma": [gpus[4]]})
    agents = AgentService(health, GuestStore(database), gpus, cloud.snapshot, health.rules, clock)
    accounts = accounting_site({"budget": {"gpu_hours": 1000}}, prices={"v100": 1.5})
    assert accounts.booking is not None
    past = HistoryStore(database)
    write_history(past, NOON - 3 * DAY, NOON, lives())
    history = History(past, accounts.booking.timezone, site_clock(accounts).parts)
    loaded = site(folder, {"flavors": {"one": flavor(gpus={"v100": 1})}}, {"gpu-1": epyc()})
    app = create_app(
        Sources(
            inventory=inventory,
            driver=driver(),
            site_name="test-site",
            gpus=gpus,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=replace(ROOMY, others=others),
            runners=RunnerSources(site_runners(folder), runners, board, lambda: None),
            health=services,
            agents=agents,
            bootable=CapacityService(Knows(_room(loaded)), clock, ledger),
            history=history,
            accounting=AccountingService(accounts, ledger, history, clock),
        ),
        ["testserver"],
    )
    portal = HealthPortal(app, ledger, store, who, clock, services, inventory, agents)
    fill(RunnerPortal(app, ledger, store, who, clock, runners, board))
    _busy(portal)
    inventory.publish(clock(), [_status(gpu) for gpu in gpus])
    agents.enrol("enigma", _code(agents))
    return portal


def _room(loaded: LoadedSite) -> CloudResources:
    """Whoever has something has it there, too."""
    room, taken = room_of(loaded), {gpu.provider_name for gpu in site_gpus() if _status(gpu).state is not GpuState.FREE}
    hosts = [
        replace(host, devices=tuple(device for device in host.devices if device.provider not in taken))
        for host in room.hosts
    ]
    return replace(room, hosts=tuple(hosts))


def _code(agents: AgentService) -> str:
    text, digest = new_token(ENROL)
    agents.store.add_token(HealthToken(digest, ENROL, "enigma", agents.now()))
    return text


def _busy(portal: HealthPortal) -> None:
    """Bookings, a hold, a loan, a fault that was told, a server that overstays."""
    ledger = portal.ledger
    ledger.create(ask(1, 4, gpus=2, pool="t4", comment="thesis, last run"), TURING)
    ledger.create(ask(1, 4, gpus=2, pool="t4", comment="thesis, last run"), TURING, wait=True)
    ledger.create(ask(0, 5, comment="thesis, last run", gpu=f"gpu-1/{CLAIMED}"), TURING)
    ledger.upkeep.advance()
    ledger.hold([f"gpu-1/{HELD}"], NOON, NOON + DAY, ROOT, "new riser card")
    case = Overstay(
        SERVER, "enigma", "v100", TURING.user_id, TURING.project_id, PAST_THE_END, ReclaimAction.SHELVE, NOON
    )
    Store(ledger.database).put_overstay(replace(case, warned=NOON, due=NOON + HOUR))
    fine(portal)
    turn(
        portal, f"gpu-1/{OFTEN}", HealthState.QUARANTINED, 9 * HOUR, "it smells of smoke", signal="reported",
        evidence="it smells of smoke", by=TURING.user, source=Source.PERSON,
    )  # fmt: skip
    until = NOON + 6 * HOUR
    ledger.loans.lend(f"gpu-1/{OFTEN}", TURING.project_id, TURING.project, until, "try it", ROOT)
    assert portal.services.maintenance is not None
    portal.services.maintenance.plan("gpu-2", NOON + DAY, NOON + DAY + 3 * HOUR, "kernel 6.12", ROOT)


def _status(gpu: Gpu) -> GpuStatus:
    if gpu.address == CLAIMED:
        since = NOON - HOUR
        claim = Claim(SERVER, "enigma", "ACTIVE", "physics", "turing", since, "p-physics", "u-turing")
        return GpuStatus(gpu, GpuState.CLAIMED, "", claim)
    if gpu.address == OFTEN:
        return GpuStatus(gpu, GpuState.HELD, "lent to project physics until 18:00")
    if gpu.address == HELD:
        return GpuStatus(gpu, GpuState.HELD, "root: new riser card")
    if gpu.pool == "t4":
        return GpuStatus(gpu, GpuState.BOOKED, "for turing from 13:00", booking="b1")
    return GpuStatus(gpu, GpuState.FREE)


def lives() -> list[Interval]:
    """ZUSE had booked the GPU that TURING has now, and used it; the rest is idle."""
    whose = {"user_id": ZUSE.user_id, "user": ZUSE.user, "project_id": ZUSE.project_id, "project": ZUSE.project}
    booked = Tenure("for zuse", "b0", "booking", **whose)
    had = Tenure("", "b0", "booking", "5e2a0000-past", "rechner", flavor="gpu.v100", **whose)
    start, minute = NOON - 3 * DAY, timedelta(minutes=1)
    steps = [(start, TrackState.FREE, Tenure()), (NOON - 2 * DAY, TrackState.BOOKED, booked)]
    steps += [
        (NOON - 2 * DAY + HOUR, TrackState.STARTING, had),
        (NOON - 2 * DAY + HOUR + minute, TrackState.CLAIMED, had),
    ]
    steps += [(NOON - DAY, TrackState.FREE, Tenure())]
    intervals = []
    for gpu in site_gpus():
        mine = steps if gpu.address == CLAIMED else steps[:1]
        ends = [*(at for at, _, _ in mine[1:]), None]
        intervals += [
            Interval(gpu.host, gpu.address, gpu.pool, state, at, end, own, True, end is not None)
            for (at, state, own), end in zip(mine, ends, strict=True)
        ]
    return intervals
