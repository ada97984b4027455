"""``gpuyard host drain`` and the others, as far as they go without a cloud: what they ask a real portal, and refuse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.cli import main
from gpuyard.cli.main import app
from gpuyard.drain.cli.host_moves import _end, keepings_of_portal, lines
from gpuyard.drain.facts import GuestServer
from gpuyard.drain.kept import kept_of
from gpuyard.drain.planner import MovePlan, MoveVerdict, MoveWay
from gpuyard.model.booking import Ask
from gpuyard.model.errors import UsageError
from gpuyard.nova.request import NovaFlavor
from gpuyard.openstack.disabled_reason import Purpose
from tests.support.ledgers import ADA, ROOT, open_ledger
from tests.support.served import RealClock, served, write_clouds
from tests.support.sites import plain_site

# The SDK warns about its own calls of its own functions.
pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    portal_ledger = open_ledger(tmp_path, {}, RealClock())
    with served(portal_ledger, (ADA, ROOT)) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, (ADA, ROOT))))
        monkeypatch.delenv("GPUYARD_URL", raising=False)
        yield portal_ledger
    portal_ledger.close()


def test_bookings_and_holds_come_from_the_portal(ledger: Ledger) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    ledger.create(Ask("t4", start, start + timedelta(hours=3)), ADA)
    later = start + timedelta(days=1)
    gone = ledger.create(Ask("t4", later, later + timedelta(hours=3)), ADA)[0]
    lane = next(lane for lane in ledger.lanes() if lane.pool == "t4" and lane.id not in _taken(ledger))
    ledger.hold([lane.name], start, start + timedelta(hours=1), ROOT, "fan is loud")
    ledger.cancel(gone.id, ADA)
    kept_times, _ = keepings_of_portal(ROOT.user, "", blind=False)
    expected = kept_of(ledger.find(Query()), ledger.lanes())
    assert kept_times is not None
    assert len(kept_times) == 2
    assert {kept_time.id: kept_time for kept_time in kept_times} == {kept_time.id: kept_time for kept_time in expected}
    assert {kept_time.fixed for kept_time in kept_times} == {True, False}


def _taken(ledger: Ledger) -> set[int]:
    return {lane for booking in ledger.find(Query()) for lane in booking.lanes}


def test_without_a_portal_nothing_is_known(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = "http://127.0.0.1:9"
    assert keepings_of_portal(ROOT.user, nobody, blind=False) == (None, {})
    assert "it is not known which GPUs bookings and holds keep" in capsys.readouterr().err
    assert keepings_of_portal(ROOT.user, nobody, blind=True) == ((), {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drain", "gpu-server", "--plan", "--yes"], "--plan only shows"),
        (["drain", "gpu-9"], "the site has no host 'gpu-9'"),
        (["evacuate", "gpu-9"], "the site has no host 'gpu-9'"),
        (["return", "gpu-9"], "the site has no host 'gpu-9'"),
        (["leftovers", "gpu-9"], "the site has no host 'gpu-9'"),
        (["leftovers", "gpu-server", "--yes"], "--yes answers what --clean asks"),
        (["drain", "gpu-server", "--ahead", "soon"], "--ahead: 'soon' is not a duration"),
    ],
)
def test_what_is_refused_before_anything_is_asked(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["host", *words, "--site", str(plain_site())])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_nothing_of_a_server_steers_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flavor = NovaFlavor("f-1", "small", 1, 1, 1)
    server = GuestServer("s-1", "a\x1b[2J", "ACTIVE", "", "p-1", "b\u202e", "c\r", flavor)
    verdict = MoveVerdict(server, MoveWay.STAY, "no\x1b[2J")
    assert all(line.isprintable() for line in lines(verdict))

    def fail() -> None:
        _end(MovePlan("gpu-1", Purpose.DRAIN, (verdict,)), done=True)

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit):
        main.run()
    output = capsys.readouterr().err
    assert output.splitlines() == ["gpuyard: gpu-1 is not empty:", "  a\\x1b[2J: stay: no\\x1b[2J"]
