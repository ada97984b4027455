"""What of the shares of GPUs is not as the site says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.facts import World
from gpuyard.model.world import Stock
from gpuyard.site.load import LoadedSite
from tests.support.shared_cards import H200, T4, h200_host, t4_host
from tests.support.sites import flavor, site
from tests.support.worlds import with_host, world_of

T4_DEVICE, H200_DEVICE = "a_pci_0000_18_00_0", "b_0000:41:00.0"
AS_IT_SHOULD = {T4_DEVICE: {"CUSTOM_GPU_T4_4Q": Stock(4)}, H200_DEVICE: {"CUSTOM_GPU_H200_MIG": Stock(3)}}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedSite:
    document = {
        "limits": {"servers": 100},
        "pools": {
            "t4-4q": {"models": [T4], "kind": "vgpu", "type": "nvidia-232"},
            "h200-mig": {"models": [H200], "kind": "vf", "type": "1414"},
        },
        "flavors": {"desktop": flavor(gpus={"t4-4q": 1}), "seventh": flavor(gpus={"h200-mig": 1})},
    }
    return site(tmp_path, document, {"a": t4_host(), "b": h200_host()})


def world(loaded: LoadedSite, **shares: Mapping[str, Stock] | None) -> World:
    stocks = {name: shares.get(name.partition("_")[0], stock) for name, stock in AS_IT_SHOULD.items()}
    return replace(world_of(loaded), shares={name: stock for name, stock in stocks.items() if stock is not None})


def said(loaded: LoadedSite, seen: World) -> list[tuple[str, str, str]]:
    return [
        (finding.code, finding.object, finding.reason)
        for finding in find_drift(loaded.compiled, loaded.inventories, seen)
    ]


def test_a_cloud_that_has_what_was_recorded_has_no_drift(loaded: LoadedSite) -> None:
    assert said(loaded, world(loaded)) == []


@pytest.mark.parametrize(
    ("host", "stock", "code", "where", "words"),
    [
        ("a", None, "gpu-lost", "a 0000:18:00.0", "Placement does not have 0000:18:00.0"),
        ("b", {"CUSTOM_PCI_10DE_2335": Stock(3)}, "gpu-other-class", "b 0000:41:00.0", "CUSTOM_PCI_10DE_2335"),
        ("a", {"CUSTOM_GPU_T4_4Q": Stock(2)}, "share-count", "a 0000:18:00.0", "Placement has 2 shares of it"),
        ("b", {"CUSTOM_GPU_H200_MIG": Stock(8)}, "share-count", "b 0000:41:00.0", "Placement has 8 shares of it"),
    ],
)
def test_each_kind(
    loaded: LoadedSite, host: str, stock: Mapping[str, Stock] | None, code: str, where: str, words: str
) -> None:
    ((kind, thing, reason),) = said(loaded, world(loaded, **{host: stock}))
    assert (kind, thing) == (code, where)
    assert words in reason


def test_of_a_host_that_nobody_reports_nothing_more_is_said(loaded: LoadedSite) -> None:
    observed = with_host(world(loaded, a=None), "a", provider=None)
    assert "gpu-lost" not in {code for code, *_ in said(loaded, observed)}
