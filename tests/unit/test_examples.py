"""The example sites come out as is written beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.examples import EXAMPLES, expected, sites


@pytest.mark.parametrize("site", sites(), ids=lambda site: site.parent.name)
def test_an_example_comes_out_as_expected(site: Path) -> None:
    folder = site.parent / "expected"
    there = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert there == expected(site), "run: make docs, and look at what has changed"


def test_there_is_an_example_for_each_kind_of_site() -> None:
    assert [site.parent.name for site in sites()] == [
        "mixed-hypervisor",
        "research-cloud",
        "v100-server",
        "workstation-cards",
    ]
    text = (EXAMPLES / "README.md").read_text()
    assert not [site.parent.name for site in sites() if f"({site.parent.name}/site.yaml)" not in text]
