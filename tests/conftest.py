"""Settings of all tests. Warnings are errors; what others' packages warn of while they are imported is theirs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openstack  # noqa: F401


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
