"""From where users have logged in before: there, nobody locks them out by wrong passwords from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from gpuyard.web import known_places
from gpuyard.web.known_places import KnownPlaces
from gpuyard.web.login_throttle import places
from gpuyard.web.sessions import digest_of
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store.schema import PLACES
from tests.support.ledgers import ADA
from tests.support.people import PASSWORD
from tests.support.portals import BookingPortal, booking_portal, limits_stand_still

HOME, AWAY = "192.0.2.1", "203.0.113.1"


def behind_a_gateway(folder: Path) -> BookingPortal:
    """A portal with the limits of its defaults, on the database of a folder."""
    return booking_portal(folder, settings=PortalSettings(trusted_gateways=("testclient",)))


def log_in_from(portal: BookingPortal, address: str, password: str = PASSWORD, user: str = "ada") -> int:
    form, headers = {"user": user, "password": password}, {"X-Forwarded-For": address}
    return portal.browser().client.post("/login", data=form, headers=headers).status_code


def guess_from_many_places(portal: BookingPortal) -> None:
    """Until there are too many tries of ada from everywhere."""
    guesses = [log_in_from(portal, f"198.51.{number}.1", "guess") for number in range(5) for _ in range(10)]
    assert guesses == [403] * 50


def test_a_restart_forgets_no_place_from_which_somebody_has_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_stand_still(monkeypatch)
    assert log_in_from(behind_a_gateway(tmp_path), HOME) == 303
    portal = behind_a_gateway(tmp_path)
    guess_from_many_places(portal)
    assert log_in_from(portal, AWAY) == 429
    assert log_in_from(portal, HOME, user=" ADA") == 303


def test_portals_on_one_database_know_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_stand_still(monkeypatch)
    portal, other = behind_a_gateway(tmp_path), behind_a_gateway(tmp_path)
    guess_from_many_places(other)
    assert log_in_from(other, HOME) == 429
    assert log_in_from(portal, HOME) == 303
    assert log_in_from(other, HOME) == 303
    assert log_in_from(other, AWAY) == 429


def test_a_place_is_forgotten_after_months_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_stand_still(monkeypatch)
    portal = behind_a_gateway(tmp_path)
    assert log_in_from(portal, HOME) == 303
    guess_from_many_places(portal)
    for days, status in ((89, 303), (89, 303), (90, 429)):
        portal.clock.forward(hours=24 * days)
        assert log_in_from(portal, HOME) == status


def test_the_store_has_no_address_of_who_has_logged_in(tmp_path: Path) -> None:
    portal = behind_a_gateway(tmp_path)
    assert log_in_from(portal, HOME) == 303
    with portal.ledger.database.reading() as connection:
        ((digest, user_id, _),) = connection.execute(select(PLACES)).all()
    assert user_id == ADA.user_id
    place = places(HOME)[0]
    assert digest not in {digest_of(text) for text in (HOME, place, f"default\nada{place}", f"default\nada\n{place}")}
    for file in tmp_path.iterdir():
        assert HOME.encode() not in file.read_bytes()


def test_passwords_can_be_tried_while_the_places_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits_stand_still(monkeypatch)
    portal = behind_a_gateway(tmp_path)
    assert log_in_from(portal, AWAY, user="bob") == 303
    with portal.ledger.database.writing() as connection:
        PLACES.drop(connection)
    assert log_in_from(portal, HOME) == 303
    assert "cannot be kept" in caplog.text
    guess_from_many_places(portal)
    assert log_in_from(portal, HOME) == 429, "all places count as new"
    assert caplog.text.count("cannot be read") == 1, "who tries passwords does not wait for it again and again"


def test_a_database_that_could_not_be_read_is_asked_for_places_again(tmp_path: Path) -> None:
    portal, time = booking_portal(tmp_path), [0.0]
    login_places = KnownPlaces(portal.store, portal.clock, lambda: time[0])
    with portal.ledger.database.writing() as connection:
        PLACES.drop(connection)
    assert not login_places.has("ada", HOME)
    with portal.ledger.database.writing() as connection:
        PLACES.create(connection)
    login_places.add("ada", HOME, ADA.user_id)
    assert not login_places.has("ada", HOME)
    time[0] += known_places.AGAIN
    assert login_places.has("ada", HOME)
    assert not login_places.has("bob", HOME)
