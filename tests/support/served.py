"""A portal with bookings in this process, for tests of what talks to it: a real ledger, and people without Keystone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi import FastAPI

from gpuyard.cloud.people import Account, KeystoneProject, LoginRefusedError, Membership, People, TokenFacts
from gpuyard.keeper.bootable import AsksCapacity, BootableDesk
from gpuyard.keeper.health_desk import HealthDesk
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.booking import Person
from gpuyard.model.gpu import GpuStatus
from gpuyard.portal.app import create_app
from gpuyard.portal.server import bind, server_of, url_of
from gpuyard.portal.store import PortalStore
from tests.support.ledgers import Clock
from tests.support.yards import NOON, STATUSES, driver


class RealClock(Clock):
    """Commands look at the machine's clock, so their portal does too."""

    def __call__(self) -> datetime:
        return datetime.now(UTC)


@dataclass(frozen=True)
class Crowd:
    """People whose tokens are their names."""

    persons: Sequence[Person]

    def log_in(self, user: str, password: str, domain: str) -> str:
        raise LoginRefusedError("nobody has a password here")

    def account(self, user_id: str) -> Account | None:
        found = [one for one in self.persons if one.user_id == user_id]
        memberships = [Membership(one.project_id, one.project, one.roles) for one in found]
        return Account(user_id, found[0].user, found[0].email, memberships) if found else None

    def token(self, token: str) -> TokenFacts | None:
        for one in self.persons:
            if one.user == token:
                membership = Membership(one.project_id, one.project, one.roles)
                return TokenFacts(one.user_id, one.user, datetime.now(UTC) + timedelta(hours=1), membership)
        return None

    def spend(self, token: str) -> bool:
        raise LoginRefusedError("nobody logs in here")

    def revoked(self) -> Mapping[str, datetime]:
        return {}

    def projects(self, name_or_id: str) -> Sequence[KeystoneProject]:
        found = {one.project_id: one.project for one in self.persons if name_or_id in (one.project_id, one.project)}
        return [KeystoneProject(id, name) for id, name in found.items()]

    def users(self, name_or_id: str) -> Sequence[str]:
        return sorted({one.user_id for one in self.persons if name_or_id in (one.user_id, one.user)})


@contextmanager
def served(
    ledger: Ledger,
    people: Sequence[Person] | People,
    statuses: Sequence[GpuStatus] = STATUSES,
    health: HealthDesk | None = None,
    capacity: AsksCapacity | None = None,
) -> Iterator[str]:
    """Gives the portal's address. `people`: a few, or where to ask for them. `health`: of a site that follows it.
    `capacity`: what could be started is asked there."""
    yard = Yard()
    yard.publish(NOON, statuses)
    known: People = Crowd(people) if isinstance(people, Sequence) else people
    app = create_app(
        yard,
        driver(),
        "test",
        [status.gpu for status in statuses],
        ["*"],
        lambda: datetime.now(UTC),
        ledger=ledger,
        health=health,
        store=PortalStore(ledger.database),
        people=known,
        bootable=BootableDesk(capacity, lambda: datetime.now(UTC), ledger) if capacity else None,
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
    folder: Path, url: str, persons: Sequence[Person], token: Callable[[Person], str] = lambda one: one.user
) -> Path:
    """A clouds.yaml with a cloud for each person, whose token is ready, so that no Keystone is asked."""
    lines = ["clouds:"]
    for one in persons:
        auth = f"{{endpoint: '{url}', token: {token(one)}}}"
        lines += [f"  {one.user}:", "    auth_type: admin_token", f"    auth: {auth}"]
    path = folder / "clouds.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path
