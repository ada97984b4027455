"""A portal with bookings in this process, for tests of what talks to it: a real ledger, and people without Keystone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi import FastAPI

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.controllers.capacity import AsksCapacity, CapacityService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.booking import Person
from gpuyard.model.gpu import GpuStatus
from gpuyard.openstack.people import Account, KeystoneProject, Login, LoginRefusedError, Membership, People, TokenFacts
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, server_of, url_of
from gpuyard.web.store import PortalStore
from tests.support.inventories import NOON, STATUSES, driver
from tests.support.ledgers import Clock


class RealClock(Clock):
    """Commands look at the machine's clock, so their portal does too."""

    def __call__(self) -> datetime:
        return datetime.now(UTC)


@dataclass(frozen=True)
class Crowd:
    """People whose tokens are their names."""

    persons: Sequence[Person]

    def log_in(self, user: str, password: str, domain: str) -> Login:
        raise LoginRefusedError("nobody has a password here")

    def account(self, user_id: str) -> Account | None:
        matches = [person for person in self.persons if person.user_id == user_id]
        memberships = [Membership(person.project_id, person.project, person.roles) for person in matches]
        return Account(user_id, matches[0].user, matches[0].email, memberships) if matches else None

    def token(self, token: str) -> TokenFacts | None:
        for person in self.persons:
            if person.user == token:
                membership = Membership(person.project_id, person.project, person.roles)
                return TokenFacts(person.user_id, person.user, datetime.now(UTC) + timedelta(hours=1), membership)
        return None

    def spend(self, token: str) -> bool:
        raise LoginRefusedError("nobody logs in here")

    def revoked(self) -> Mapping[str, datetime]:
        return {}

    def projects(self, name_or_id: str) -> Sequence[KeystoneProject]:
        names_by_id = {
            person.project_id: person.project
            for person in self.persons
            if name_or_id in (person.project_id, person.project)
        }
        return [KeystoneProject(id, name) for id, name in names_by_id.items()]

    def users(self, name_or_id: str) -> Sequence[str]:
        return sorted({person.user_id for person in self.persons if name_or_id in (person.user_id, person.user)})


@contextmanager
def served(
    ledger: Ledger,
    people: Sequence[Person] | People,
    statuses: Sequence[GpuStatus] = STATUSES,
    health: HealthServices | None = None,
    capacity: AsksCapacity | None = None,
) -> Iterator[str]:
    """Gives the portal's address. `people`: a few, or where to ask for them. `health`: of a site that follows it.
    `capacity`: what could be started is asked there."""
    inventory = InventoryCache()
    inventory.publish(NOON, statuses)
    crowd: People = Crowd(people) if isinstance(people, Sequence) else people
    app = create_app(
        Sources(
            inventory=inventory,
            driver=driver(),
            site_name="test",
            gpus=[status.gpu for status in statuses],
            now=lambda: datetime.now(UTC),
            ledger=ledger,
            health=health,
            sessions=PortalStore(ledger.database),
            people=crowd,
            bootable=CapacityService(capacity, lambda: datetime.now(UTC), ledger) if capacity else None,
        ),
        ["*"],
    )
    with serving(app) as url:
        yield url


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Gives the address of a portal that answers while this lasts."""
    with bind("127.0.0.1", port) as listener:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()


def write_clouds(
    folder: Path, url: str, persons: Sequence[Person], token: Callable[[Person], str] = lambda person: person.user
) -> Path:
    """A clouds.yaml with a cloud for each person, whose token is ready, so that no Keystone is asked."""
    lines = ["clouds:"]
    for person in persons:
        auth = f"{{endpoint: '{url}', token: {token(person)}}}"
        lines += [f"  {person.user}:", "    auth_type: admin_token", f"    auth: {auth}"]
    path = folder / "clouds.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path
