"""What reads a cloud: pages, and the judgement of GPUs that cannot be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.model.world import Provider, Stock, WhyNot, why_not
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import below

ROWS = [
    {
        "id": number, "uuid": f"u{number}", "instance_uuid": "s", "status": "done", "migration_type": "resize",
        "source_compute": "a", "dest_compute": "b",
    }
    for number in range(5)
]  # fmt: skip


class TwoAPage(CloudApi):
    """Answers as Nova does, which lists migrations by their uuid."""

    def __init__(self) -> None:
        config = SimpleNamespace(name="test", region_name="")
        services = dict.fromkeys(("compute", "placement", "identity", "image", "network"))
        super().__init__(SimpleNamespace(config=config, **services))  # type: ignore[arg-type]
        self.asked: list[object] = []

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        marker = query.get("marker")
        self.asked.append(marker)
        start = next((n + 1 for n, row in enumerate(ROWS) if row["uuid"] == marker), 0)
        page = ROWS[start : start + 2]
        href = f"http://proxy.example.org/v2.1/os-migrations?limit=2&marker={page[-1]['uuid']}"
        more = {"migrations_links": [{"rel": "next", "href": href}]} if start + 2 < len(ROWS) else {}
        return {"migrations": page, **more}


def test_the_next_page_begins_where_the_service_says() -> None:
    api = TwoAPage()
    assert list(Reader(api).migrations()) == ["u0", "u1", "u2", "u3", "u4"]
    assert api.asked == [None, "u1", "u3"]


HELD, FREE = Stock(1, reserved=1), Stock(1)


@pytest.mark.parametrize(
    ("stock", "consumers", "verdict"),
    [
        ({"V100": FREE}, (), WhyNot.FREED),
        ({"V100": HELD}, (), WhyNot.RESERVED),
        ({"V100": FREE}, ("server",), WhyNot.CONSUMER),
        ({"V100": HELD}, ("migration",), WhyNot.CONSUMER),
        ({"OTHER": FREE}, (), WhyNot.OTHER_CLASS),
        ({"OTHER": HELD}, (), WhyNot.OTHER_CLASS),
        ({"OTHER": HELD}, ("server",), WhyNot.CONSUMER),
        ({}, (), WhyNot.OTHER_CLASS),
        ({"V100": Stock(2, reserved=1)}, (), WhyNot.FREED),
        ({"V100": Stock(1, reserved=2)}, (), WhyNot.RESERVED),
    ],
)
def test_who_has_a_gpu_counts_before_whether_it_is_reserved(
    stock: dict[str, Stock], consumers: tuple[str, ...], verdict: WhyNot
) -> None:
    assert why_not("V100", stock, consumers) is verdict


def test_parents_come_before_their_children() -> None:
    tree = [
        Provider("c", "c", "r", "b"),
        Provider("r", "r", "r"),
        Provider("b", "b", "r", "r"),
        Provider("x", "x", "x"),
    ]
    assert [provider.id for provider in below(tree, "r")] == ["b", "c"]
