"""What wakes what in a site's parts, and what is closed when they cannot be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.model.errors import UsageError
from gpuyard.runtime.control_loops import Loop
from gpuyard.server import site_parts
from gpuyard.server.site_parts import PartOptions, SiteParts, open_parts
from tests.support.booked_sites import booked_site
from tests.support.ledgers import Clock
from tests.support.small_clouds import cloud_at

HEALTH = {
    "agent": {"projects": ["physics"], "period": 1},
    "acceptance": {"project": "accept", "image": "ubuntu"},
}


def opened(folder: Path, portal: str = "https://gpus.example.org") -> SiteParts:
    """The cloud is nowhere: it is not asked before the loops run."""
    compiled = booked_site(folder, {"must_book": True}, {"art": {"gpus": {"t4": 4}}}, health=HEALTH)
    options = PartOptions(f"sqlite:///{folder / 'ledger.db'}", portal)
    return open_parts(compiled, cloud_at("http://127.0.0.1:1"), options, {}, Clock())


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the loops that were woken, in order."""
    names: list[str] = []
    monkeypatch.setattr(Loop, "wake", lambda loop, reason: names.append(loop.status.name))
    return names


@pytest.fixture
def parts(tmp_path: Path, woken: list[str]) -> Iterator[SiteParts]:
    with closing(opened(tmp_path)) as made:
        woken.clear()
        yield made


def sent(parts: SiteParts, signal: str) -> Callable[[str], None]:
    health = parts.health
    assert health is not None
    assert health.acceptance is not None
    return {
        "the cloud was observed": parts.bookings.observed,
        "a GPU was observed": health.service.wake,
        "other GPUs are kept back": health.controller.kept_back_changed,
        "a GPU came back clean": health.scrub_desk.cleaned,
        "an acceptance is asked for": health.acceptance.service.wake,
    }[signal]


@pytest.mark.parametrize(
    ("signal", "loops"),
    [
        ("the cloud was observed", ["health"]),
        ("a GPU was observed", ["health"]),
        ("other GPUs are kept back", ["bookings"]),
        ("a GPU came back clean", ["bookings"]),
        ("an acceptance is asked for", ["acceptance"]),
    ],
)
def test_a_signal_wakes_the_loop_that_has_something_to_do(
    parts: SiteParts, woken: list[str], signal: str, loops: list[str]
) -> None:
    sent(parts, signal)("a test")
    assert woken == loops


def test_idle_servers_are_those_of_the_agents(parts: SiteParts) -> None:
    assert parts.health is not None
    assert parts.health.agents is not None
    assert parts.health.services.acceptance is not None
    assert parts.bookings.overstays._idle_servers == parts.health.agents.service.idle_servers


def test_parts_that_cannot_be_opened_leave_no_ledger_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], Ledger.close

    def closes(ledger: Ledger) -> None:
        closed.append(ledger)
        close(ledger)

    monkeypatch.setattr(Ledger, "close", closes)
    with pytest.raises(UsageError, match="pass it with --url"):
        opened(tmp_path, portal="")
    assert len(closed) == 1

    def fails(*_: object, **more: object) -> None:
        raise UsageError("no such channel")

    monkeypatch.setattr(site_parts, "message_loops", fails)
    with pytest.raises(UsageError, match="no such channel"):
        opened(tmp_path)
    assert len(closed) == 2
