"""What an acceptance holds against GPUs that passed the checks in their server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuyard.health.acceptance_guest import AcceptanceOutput
from gpuyard.health.acceptance_limits import LANE, held_against
from gpuyard.health.baseline import Baseline

THEN = datetime(2026, 11, 1, tzinfo=UTC)


def baseline(**facts: float) -> Baseline:
    return Baseline(THEN, facts={name.replace("_", "-"): value for name, value in facts.items()})


def against(*baselines: Baseline | None, **facts: float) -> str:
    output = AcceptanceOutput(facts={name.replace("_", "-"): value for name, value in facts.items()})
    return held_against(output, baselines, fresh=False)


@pytest.mark.parametrize(
    ("speed", "lanes", "carries"),
    [(2.5, 16, 4.0), (5.0, 16, 8.0), (8.0, 16, 15.75), (16.0, 16, 31.5), (32.0, 16, 63.0), (8.0, 1, 0.985)],
)
def test_what_a_link_carries(speed: float, lanes: int, carries: float) -> None:
    """GB/s one way, as tables of PCI Express have them (hpc-notes.pages.dev/reference/pcie; x1: 985 MB/s)."""
    assert lanes * LANE[speed] == pytest.approx(carries, rel=0.005)


@pytest.mark.parametrize(("lanes", "speed", "measured"), [(16, 16.0, 25.17), (16, 32.0, 55.36), (16, 8.0, 9.6)])
def test_cards_that_are_well_are_fast_enough(lanes: int, speed: float, measured: float) -> None:
    """nvbandwidth of an A10 and of H100s, bandwidthTest of a V100, as people have published them."""
    assert against(None, link_width=lanes, link_speed=speed, bandwidth=measured) == ""


def test_a_link_of_another_kind_has_the_baseline_alone() -> None:
    """A GH200 copies 337 GB/s over NVLink-C2C (microsoft/superbenchmark, test of nvbandwidth)."""
    assert against(None, bandwidth=0.4) == ""
    assert "168 GB/s from the host, and it was accepted with 337.55" in against(
        baseline(bandwidth=337.55), bandwidth=168
    )


def test_of_several_gpus_the_worst_counts() -> None:
    group = (baseline(link_width=16, pages_retired=1), baseline(link_width=8, pages_retired=0))
    assert against(*group, link_width=8, pages_retired=1) == ""
    assert against(*group, link_width=4).startswith("4 PCIe lanes, and it was accepted with 8: reseat the card")
    assert against(*group, pages_retired=2).startswith("2 retired pages, and it was accepted with 1: look after")
    assert against(*group, None, link_width=4) == "", "nothing is known of one of them"
