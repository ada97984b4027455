"""The ports of a campaign as they really are: the portal, the commands of this machine, and the cloud's drains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gpuyard.client.client import Client, Row
from gpuyard.client.errors import PortalError
from gpuyard.client.portal import PortalUnreachableError
from gpuyard.client.times import show_api_time
from gpuyard.deployment.journal import DeployJournal, Happening
from gpuyard.drain.campaign.definition import Campaign
from gpuyard.drain.campaign.planner import (
    CampaignAct,
    CampaignCost,
    CampaignGpu,
    CampaignHostState,
    CampaignMaintenance,
    CampaignWork,
    is_emptied,
)
from gpuyard.drain.campaign.runner import CampaignUnseenError
from gpuyard.drain.campaign.work import WorkFile
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.records import HealthState
from gpuyard.model.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.drain.campaign.drains import CampaignDrains

PLAIN = frozenset({HealthState.FINE, HealthState.IN_USE})
"""States of GPUs that a campaign need not look at."""


class PortalCampaign:
    """Observes and changes the hosts of a campaign through the portal. `folder`: where output and ends of commands are
    kept. `drains`: of a campaign that empties hosts itself."""

    def __init__(
        self,
        campaign: Campaign,
        client: Client,
        folder: Path,
        clock: Callable[[], datetime],
        pause: Callable[[], None],
        zone: ZoneInfo,
        drains: CampaignDrains | None = None,
    ) -> None:
        self._campaign, self._client, self._folder, self._drains = campaign, client, folder, drains
        self._clock, self._pause, self._zone = clock, pause, zone

    @property
    def stop_file(self) -> Path:
        return self._folder / "stop"

    def look(self, journal: DeployJournal) -> Mapping[str, CampaignHostState]:
        with seen():
            open_rows = {row["host"]: row for row in self._client.maintenances()}
            return {host: self._state_of(host, open_rows.get(host), journal) for host in self._campaign.hosts}

    def _state_of(self, host: str, row: Row | None, journal: DeployJournal) -> CampaignHostState:
        through = journal.last(CampaignAct.RETURN, host)
        if through is not None and through.happening is Happening.DONE:
            return CampaignHostState()
        if row is not None and not self._campaign.is_ours(row["comment"]):
            return CampaignHostState(other=f"{row['comment']}, until {show_api_time(row['end'], self._zone)}")
        begun = journal.last(CampaignAct.BEGIN, host)
        if row is None and begun is not None:
            past = self._client.maintenances(host=host, past=True)
            row = next((maintenance for maintenance in past if self._campaign.is_ours(maintenance["comment"])), None)
        if row is None:
            return CampaignHostState()
        work, code, log = self._work(host, journal)
        back = row["state"] == MaintenanceState.BACK
        gpus = self._gpus(host) if back else ()
        tries, tried = 0, ""
        if any(gpu.state is HealthState.TO_ACCEPT for gpu in gpus):
            tries, tried = self._tries(host)
            gpus = self._gpus(host)  # after the tries: one that has ended meanwhile has been judged
        state = CampaignHostState(_maintenance(row), "", gpus, tries, tried, work, code, log)
        return self._with_drain(host, state, journal) if self._drains is not None else state

    def _with_drain(self, host: str, state: CampaignHostState, journal: DeployJournal) -> CampaignHostState:
        """What the cloud says beside the portal."""
        maintenance, drains = state.maintenance, self._drains
        assert maintenance is not None
        assert drains is not None
        if maintenance.state in (MaintenanceState.DRAINING, MaintenanceState.IN_WORK) and not is_emptied(journal, host):
            return replace(state, drain=drains.look(host, maintenance.may_go_down))
        if maintenance.state in (MaintenanceState.CHECKING, MaintenanceState.BACK):
            closed, heard = drains.closed(host)
            return replace(state, closed=closed, heard=heard)
        return state

    def _work(self, host: str, journal: DeployJournal) -> tuple[CampaignWork, int, str]:
        begun = journal.last(CampaignAct.WORK, host)
        if begun is None or begun.happening is not Happening.BEGUN:
            return CampaignWork.NONE, 0, ""
        file = WorkFile(self._folder, host, begun.about)
        if file.runs():
            return CampaignWork.RUNNING, 0, str(file.log)
        code = file.code()
        return (CampaignWork.NONE, 0, "") if code is None else (CampaignWork.ENDED, code, str(file.log))

    def _gpus(self, host: str) -> tuple[CampaignGpu, ...]:
        rows = self._client.health(host=host)
        gpus = [
            CampaignGpu(row["address"], HealthState(row["state"]), datetime.fromisoformat(row["since"]), row["cause"])
            for row in rows
        ]
        return tuple(gpu for gpu in gpus if gpu.state not in PLAIN)

    def _tries(self, host: str) -> tuple[int, str]:
        try:
            rows = [row for row in self._client.acceptances() if row["host"] == host]
        except PortalError:
            raise
        except GpuyardError:  # a site that starts no such servers says so when it is asked to
            return 0, ""
        ended = sorted((row for row in rows if row["over"] and row["state"] != "passed"), key=lambda row: row["since"])
        return sum(not row["over"] for row in rows), ended[-1]["cause"] if ended else ""

    def stays(self, host: str, cost: CampaignCost) -> list[str]:
        """Return servers and bookings that a campaign would meet on a host, in words; servers with what becomes of them
        where it moves them."""
        servers = self._drains.foresee(host) if self._drains else [f"server {name}" for name in cost.servers]
        return [*servers, *cost.stays]

    def costs(self, hosts: Sequence[str], start: datetime, end: datetime) -> Mapping[str, CampaignCost]:
        return {host: self.cost(host, start, end) for host in hosts}

    def cost(self, host: str, start: datetime, end: datetime) -> CampaignCost:
        with seen():
            body = {"host": host, "start": start.isoformat(), "end": end.isoformat()}
            row = self._client.check_maintenance(body)
        stays = [
            f"{stay['kind']} {stay['id']} of {stay['user']} until {show_api_time(stay['end'], self._zone)}"
            for stay in row["stays"]
        ]
        if not row.get("servers_known"):
            stays.append("it is not known which servers are there")
        return CampaignCost(len(row["moves"]), tuple(stays), tuple(server["name"] for server in row["servers"]))

    def begin(self, host: str) -> None:
        now = self._clock()
        end = now + self._campaign.takes
        body: dict[str, Any] = {
            "host": host, "start": now.isoformat(), "end": end.isoformat(), "comment": self._campaign.title,
        }  # fmt: skip
        if self._campaign.may_go_down:
            body["may_go_down"] = self._campaign.may_go_down
        with seen():
            self._client.plan_maintenance(body)

    def close(self, host: str) -> None:
        assert self._drains is not None
        self._drains.close(host)

    def drain(self, host: str) -> None:
        assert self._drains is not None
        self._drains.drain(host)

    def open(self, host: str) -> None:
        assert self._drains is not None
        self._drains.open(host)

    def work(self, host: str, attempt: str) -> None:
        WorkFile(self._folder, host, attempt).start(self._campaign.words(host))

    def done(self, host: str) -> None:
        with seen():
            row = next((maintenance for maintenance in self._client.maintenances(host=host)), None)
            if row is None or not self._campaign.is_ours(row["comment"]):
                raise GpuyardError(f"the maintenance of {host} is over already: 'gpuyard host maintenance show {host}'")
            self._client.maintenance_step(row["id"], "done", {"comment": f"campaign {self._campaign.campaign}"})

    def accept(self, host: str) -> None:
        with seen():
            waits = [gpu.address for gpu in self._gpus(host) if gpu.state is HealthState.TO_ACCEPT]
            if waits:
                self._client.accept([f"{host}/{address}" for address in waits])

    def stop_asked(self) -> str:
        try:
            return self.stop_file.read_text(encoding="utf-8", errors="replace").strip() or "somebody stopped it"
        except FileNotFoundError:
            return ""

    def wait(self) -> None:
        self._pause()


@contextmanager
def seen() -> Iterator[None]:
    """Raise CampaignUnseenError when the portal does not answer, or not well: it may do so soon."""
    try:
        yield
    except (PortalUnreachableError, PortalError) as error:
        raise CampaignUnseenError(str(error)) from None


def _maintenance(row: Row) -> CampaignMaintenance:
    def time(value: Any) -> datetime | None:
        return datetime.fromisoformat(value) if value else None

    return CampaignMaintenance(
        MaintenanceState(row["state"]),
        datetime.fromisoformat(row["since"]),
        time(row["begun"]),
        time(row["done"]),
        tuple(row["problems"]),
        _names(row),
        tuple(server["id"] for server in row["servers"] if server.get("may_go_down")),
    )


def _names(row: Row) -> tuple[str, ...] | None:
    """A portal of a release before servers without GPUs counted does not say that it knows all of them."""
    if not row.get("servers_known"):
        return None
    return tuple(server["name"] for server in row["servers"] if not server["may_go_down"])
