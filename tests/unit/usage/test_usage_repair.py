"""``gpuyard usage repair``: a clock was ahead when history was written, and is right again."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.bookings.store import Store
from gpuyard.cli.main import app
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.usage.records import Interval, TrackState
from gpuyard.usage.store import HistoryStore
from tests.support.sites import flavor, site

YEAR = timedelta(days=365)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    site(tmp_path, {"flavors": {"one": flavor(gpus={"v100": 1})}, "booking": {}})
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/history.db"


def repair(url: str, *words: str, answer: str | None = None) -> str:
    result = CliRunner().invoke(app, ["usage", "repair", "--database", url, *words], input=answer)
    if result.exception:
        raise result.exception
    return result.stdout


def test_what_was_written_of_a_time_to_come_is_taken_back(url: str) -> None:
    assert "has no history" in repair(url)
    honest = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    key = ("h", "0000:01:00.0", "v100")
    free = Interval(*key, TrackState.FREE, honest, None)
    with closing(Store.open(url)) as opened:
        store = HistoryStore(opened.database)
        assert store.write(None, honest, honest, {}, [free])
        assert "nothing to take back" in repair(url)
        later = honest + timedelta(minutes=5)
        unseen = Interval(*key, TrackState.UNSEEN, later, honest + YEAR)
        ahead = Interval(*key, TrackState.FREE, honest + YEAR, None)
        assert store.write(honest, later, later, {}, [])
        assert store.write(later, honest + YEAR, honest + YEAR, {key: (later, False)}, [unseen, ahead])
        with pytest.raises(UsageError, match="nobody answered"):
            repair(url)
        with pytest.raises(BlockedError, match="nothing was changed"):
            repair(url, answer="n\n")
        output = repair(url, "--yes")
        assert f"it would go until {later:%a %Y-%m-%d %H:%M}" in output
        assert "intervals that begin later, and go: 1\nintervals that have begun by then, and go on: 1\n" in output
        extent = store.seen()
        assert extent is not None
        assert extent.until == later
        assert store.open() == [Interval(*key, TrackState.UNSEEN, later, None)]
        (entry,) = opened.audit()
        assert (entry.action, entry.target) == ("history.repair", "history")
        assert "history goes until" in entry.text
    assert "nothing to take back" in repair(url)
