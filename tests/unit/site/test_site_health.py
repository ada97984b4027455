"""What a site file may say of signals: each mistake with its place and a remedy."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from gpuyard.site.load import load_site
from gpuyard.site.problems import SiteError
from gpuyard.site.schema import Site, json_schema
from tests.support.sites import write_site

SITE = """\
site: test
hosts:
  gpu-server: {recording: gpu-server.json}
pools:
  v100: {models: ["10de:1db4"]}
booking: {}
health:
  signals:
    link-width: off
    aer-correctable: {threshold: 500, verdict: note}
  pools:
    v100: {trial: true, signals: {gone-under: {threshold: 30 min, trial: false}}}
  gpus:
    "gpu-server/0000:a3:00.0": {signals: {ecc: bad}}
"""


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SiteError) as caught:
        load_site(write_site(folder, text))
    return [line.removeprefix(f"{folder}/") for line in caught.value.lines]


def test_signals_are_overruled_by_site_pool_and_gpu(tmp_path: Path) -> None:
    site = load_site(write_site(tmp_path, SITE)).site
    assert site.health is not None
    assert site.health.signals["link-width"].verdict == "off"
    assert site.health.gpus["gpu-server/0000:a3:00.0"].signals["ecc"].verdict == "bad"
    stored = site.model_dump(mode="json", exclude_unset=True)
    assert Site.model_validate(stored) == site, "a stored plan has it as JSON"
    jsonschema.validate(stored, json_schema())


MISTAKES = [
    ("link-width: off", "link-with: off", "9: health.signals.link-with: unknown signal; did you mean 'link-width'?"),
    ("link-width: off", "colour: off", "health.signals.colour: unknown signal; Known are missing, no-answer, driver"),
    ("link-width: off", "link-width: quarantine", "'quarantine' is not supported; write 'off', 'note', 'suspect' or"),
    ("link-width: off", "link-width: {threshold: 3}", "9: health.signals.link-width.threshold: link-width has no"),
    ("link-width: off", "scrub-failed: note", "9: health.signals.scrub-failed: its verdict is fixed"),
    ("link-width: off", "acceptance: off", "health.signals.acceptance: its verdict is fixed"),
    ("link-width: off", "not-reserved: {trial: true}", "health.signals.not-reserved: its verdict is fixed"),
    ("link-width: off", "kernel: bad", "which do 'health.acceptance.required' says; write 'off' or 'note'"),
    ("threshold: 500", "threshold: 1 h", "aer-correctable counts; write a number, as in 100"),
    ("threshold: 30 min", "threshold: 30", "gone-under takes time; write a duration, as in '15 min'"),
    ("threshold: 30 min", "threshold: soon", "'soon' is not a duration"),
    ("    v100: {trial", "    v10: {trial", "12: health.pools.v10: unknown pool 'v10'; did you mean 'v100'?"),
    (
        '"gpu-server/0000:a3:00.0"',
        '"gpu-server/a3:00.0"',
        "unknown GPU 'gpu-server/a3:00.0'; did you mean",
    ),
]


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES)
def test_each_mistake_is_named_with_its_place_and_a_remedy(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SITE
    messages = problems(tmp_path, SITE.replace(old, new, 1))
    assert any(says in line for line in messages), messages
    assert all(line.startswith("site.yaml:") for line in messages)
