"""The example sites come out as is written beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.examples import EXAMPLES, expected, sites
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.site.load import load_site


@pytest.mark.parametrize("site", sites(), ids=lambda site: site.parent.name)
def test_an_example_comes_out_as_expected(site: Path) -> None:
    folder = site.parent / "expected"
    actual = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert actual == expected(site), "run: make docs, and look at what has changed"


@pytest.mark.parametrize("site", sites(), ids=lambda site: site.parent.name)
def test_the_linter_finds_nothing_in_it(site: Path) -> None:
    """Not even a note."""
    release = load_site(site).site.release
    result = CliRunner().invoke(app, ["site", "lint", str(site.parent / "expected"), "--release", release])
    assert (result.exit_code, result.stdout.startswith("Nothing found in")) == (0, True), result.output


def test_there_is_an_example_for_each_kind_of_site() -> None:
    assert [site.parent.name for site in sites()] == [
        "mixed-hypervisor",
        "research-cloud",
        "v100-server",
        "workstation-cards",
    ]
    text = (EXAMPLES / "README.md").read_text()
    assert not [site.parent.name for site in sites() if f"({site.parent.name}/site.yaml)" not in text]
