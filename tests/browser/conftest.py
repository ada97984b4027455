"""A site with bookings, and visits to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.calendars import Site, Visits, serving


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with serving(tmp_path, **getattr(request, "param", {})) as subject:
        yield subject


@pytest.fixture
def visits(chromium: Browser) -> Iterator[Visits]:
    made = Visits(chromium)
    yield made
    for page in made.pages:
        page.context.close()
    assert made.errors == []
