"""A site file that changes is taken up after an apply or on demand, and never when it is wrong."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuyard.model.errors import GpuyardError
from gpuyard.server.site_watch import SiteWatch, changes
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite, load_site
from tests.support.sites import site


class Watched:
    """A watch, what it took up, and what is left to apply."""

    def __init__(self, loaded: LoadedSite) -> None:
        self.path = loaded.path
        self.left: Sequence[str] = ()
        self.taken: list[LoadedSite] = []
        self.refusal = ""
        self.watch = SiteWatch(loaded, self._left, self._take)
        self._times = 0

    def _left(self, compiled: CompiledSite) -> Sequence[str]:
        return self.left

    def _take(self, loaded: LoadedSite) -> None:
        if self.refusal:
            raise GpuyardError(self.refusal)
        self.taken.append(loaded)

    def write(self, old: str, new: str) -> None:
        text = self.path.read_text()
        assert old in text
        self.path.write_text(text.replace(old, new))
        self._times += 1
        os.utime(self.path, ns=(self._times, self._times))

    def look(self, forced: bool = False) -> int:
        self.watch.forced = forced
        self.watch.look()
        return len(self.taken)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(site(tmp_path, {"booking": {"longest": "15 days"}}))


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    entries = [(record.levelno, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return entries


def test_a_change_is_taken_up_and_said(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    assert watched.look() == 0
    watched.write("15 days", "3 days")
    assert watched.look() == 1
    ((level, text),) = said(caplog)
    assert text == f"{watched.path} was read again; what changed: booking.longest: 15 days -> 3 days"
    assert level == logging.WARNING
    assert watched.look() == 1, "once"


def test_a_change_waits_for_an_apply_and_a_signal_does_not(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.write("15 days", "3 days")
    watched.left = ["create flavor big"]
    assert (watched.look(), watched.look()) == (0, 0)
    ((_, text),) = said(caplog)
    assert text.endswith("taken up after 'gpuyard site apply', or on SIGHUP. Left to apply: create flavor big")
    assert watched.look(forced=True) == 1
    watched.write("3 days", "4 days")
    assert watched.look() == 1
    watched.left = []
    assert watched.look() == 2


def test_what_is_wrong_is_refused_once_and_the_old_stays(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.write("15 days", "15 dais")
    assert (watched.look(), watched.look()) == (0, 0)
    ((level, text),) = said(caplog)
    assert (level, "is refused; what was read before stays" in text, "15 dais" in text) == (logging.ERROR, True, True)
    watched.write("15 dais", "15 days")
    assert watched.look() == 0
    assert said(caplog)[0][1].endswith("nothing has changed")
    watched.write('"site": "test"', '"site": "other"')
    assert watched.look(forced=True) == 0
    assert "restart gpuyard serve for another site" in said(caplog)[0][1]
    watched.write('"site": "other"', '"site": "test"')
    watched.look()
    watched.refusal = "no database"
    watched.write("15 days", "2 days")
    assert watched.look() == 0
    assert said(caplog)[-1][1].endswith("stays: no database")
    watched.path.unlink()
    assert watched.look() == 0
    assert "no such file" in said(caplog)[0][1]


def test_every_kind_of_change_has_a_line(tmp_path: Path) -> None:
    old = site(tmp_path, {"booking": {"longest": "15 days"}})
    text = old.path.read_text().replace("15 days", "36 h")
    old.path.write_text(text[:-1] + ', "images": {"cuda": {"big_bars": true}}}')
    assert changes(old, load_site(old.path)) == [
        "booking.longest: 15 days -> 1 day 12 h",
        "images.cuda.big_bars: True",
    ]
