"""A portal with bookings, in the process of the test."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.controllers.capacity import AsksCapacity, CapacityService
from gpuyard.model.booking import Person, Rules
from gpuyard.openstack.personal import PersonalClouds
from gpuyard.server.app import create_app
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.store import HistoryStore
from gpuyard.web.assets import build
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import Clock, open_ledger
from tests.support.people import PASSWORD, InMemoryPeople, people, token_of

ROOMY = PortalSettings(login_tries=1000, address_tries=1000, reads=100_000, writes=100_000, metrics_age=0)


@dataclass
class BookingPortal:
    app: FastAPI
    ledger: Ledger
    store: PortalStore
    people: InMemoryPeople
    clock: Clock

    def browser(self, person: Person | None = None) -> Browser:
        """One that has logged in as a person of tests/support/people.py, or as nobody."""
        client = TestClient(self.app, raise_server_exceptions=False, follow_redirects=False)
        browser = Browser(client)
        if person is not None:
            browser.log_in(person.user)
        return browser

    def program(self, person: Person) -> TestClient:
        """One with a token."""
        return TestClient(self.app, raise_server_exceptions=False, follow_redirects=False, headers=token_of(person))


@dataclass
class Browser:
    client: TestClient
    csrf: str = ""

    def log_in(self, user: str, password: str = PASSWORD) -> None:
        answer = self.client.post("/login", data={"user": user, "password": password})
        assert answer.status_code == 303, re.findall(r'id="refusal">(.*)<', answer.text)
        self.csrf = self.client.get("/v1/me").json()["csrf"]
        self.client.headers["X-CSRF-Token"] = self.csrf


def limits_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """In portals that are made from now on nobody's limit fills up again, however slow the machine is."""
    monkeypatch.setattr("gpuyard.server.capabilities.Authenticator", partial(Authenticator, clock=lambda: 0.0))


def booking_portal(
    folder: Path,
    rules: Rules | dict[str, Rules] | None = None,
    settings: PortalSettings = ROOMY,
    other_people: InMemoryPeople | None = None,
    capacity: AsksCapacity | None = None,
    clouds: PersonalClouds | None = None,
) -> BookingPortal:
    """Its database is in the folder. `capacity`: what could be started is asked there. `clouds`: where servers are
    started, on a site whose sessions keep tokens."""
    clock = Clock()
    ledger = open_ledger(folder, rules, clock)
    who = other_people or people()
    store = PortalStore(ledger.database)
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=GPUS,
            now=clock,
            ledger=ledger,
            sessions=store,
            people=who,
            settings=replace(settings, keeps_tokens=clouds is not None),
            clouds=clouds,
            bootable=CapacityService(capacity, clock, ledger) if capacity else None,
            history=History(HistoryStore(ledger.database), "UTC"),
        ),
        ["testserver"],
    )
    return BookingPortal(app, ledger, store, who, clock)


def without_ids(page: str) -> str:
    """A page without the digest of its build and the id of its feed: a short name may stand in these by chance."""
    return re.sub(r'data-version="[^"]*"', "", page.replace(build(), ""))
