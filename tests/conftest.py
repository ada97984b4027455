"""Settings of all tests. Warnings are errors; what others' packages warn of while they are imported is theirs.

The tests are their own environment: see tests/support/environment.py.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import browser, environment, fresh_tables

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openstack  # noqa: F401

settings.register_profile("gpuyard", deadline=None)  # a busy machine is no failure
settings.register_profile("on another day", parent=settings.get_profile("gpuyard"), max_examples=10)
settings.load_profile("gpuyard")

EMPTY_HOME = tempfile.TemporaryDirectory(prefix="gpuyard-tests-")  # removed when the process ends
environment.clean(os.environ, Path(EMPTY_HOME.name))
time.tzset()
fresh_tables.made_once()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--now",
        type=datetime.fromisoformat,
        metavar="TIME",
        help="have the tests begin at this time, with its offset: no test may know which day it is",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Shift what now is, in all threads, for --now; it goes on from there. Programs that tests start keep theirs.

    Of each rule fewer examples are tried then: it is about the day, and all of them are tried today.
    """
    if now := config.getoption("--now"):
        import time_machine

        settings.load_profile("on another day")
        shifted = time_machine.travel(now)
        shifted.start()
        config.add_cleanup(shifted.stop)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that workers side by side end at about the same time.

    Tests with real services, browsers and kernels get a second try, since a machine may stall under them; the summary
    names who needed it, and why. Unit tests get none.
    """
    folders = ["virtual", "integration", "browser"]
    items.sort(
        key=lambda item: next((n for n, folder in enumerate(folders) if folder in item.path.parts), len(folders))
    )
    for item in items:
        if any(folder in item.path.parts for folder in folders) and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Who needed a second try, and what was wrong with the first; what missed its limit in measurements."""
    for report in terminalreporter.stats.get("rerun", ()):
        crash = getattr(report.longrepr, "reprcrash", None)
        where, message = (f"{crash.path}:{crash.lineno}", crash.message) if crash else ("", report.longreprtext)
        terminalreporter.line(f"RERUN {report.nodeid} ({report.when}) - {where} {' '.join(message.split())[:300]}")
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "bench":
                terminalreporter.line(f"BENCH {value}")


@pytest.fixture(scope="module")
def driven() -> Iterator[Playwright]:
    """Playwright, with a browser to drive; without one the test is skipped, but not in CI."""
    if why := browser.missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
def chromium(driven: Playwright) -> Iterator[Browser]:
    """One headless browser for the tests of a module."""
    with driven.chromium.launch(executable_path=browser.CHROMIUM, args=["--no-sandbox"]) as launched:
        yield launched
