"""Whose images in Glance are builds, and whose are in the way of one."""

from __future__ import annotations

from typing import Any, cast

from gpuyard.images.glance import GlanceShelf
from gpuyard.openstack.api import CloudApi

BUILD = "i-20261122-0123456789"


class Glance:
    """Lists images, and is asked by credentials of the project ours."""

    project = "ours"

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = rows

    def get(self, service: str, path: str, limit: int, **filters: str) -> dict[str, Any]:
        assert (service, path) == ("image", "/images")
        return {"images": [row for row in self._rows if filters.items() <= row.items()]}


def row(id: str, name: str = "i", owner: str = "ours", visibility: str = "private", **more: str) -> dict[str, Any]:
    return {"id": id, "name": name, "owner": owner, "visibility": visibility, "status": "active", **more}


def shelf(*rows: dict[str, Any]) -> GlanceShelf:
    return GlanceShelf(cast(CloudApi, Glance(*rows)))


OURS = {"gpuyard_image": "i", "gpuyard_build": BUILD}


def test_builds_are_those_of_our_project() -> None:
    glance_shelf = shelf(
        row("build", BUILD, **OURS),
        row("forged", owner="theirs", visibility="public", **OURS),
        row("snapshot of it", "mine", base_image_ref="build", **OURS),
        row("shelved", "s", instance_uuid="7b5c", **OURS),
        row("another", "x"),
    )
    assert [build.id for build in glance_shelf.builds("i")] == ["build"]
    assert [build.id for build in glance_shelf.builds()] == ["build"]


def test_what_nobody_else_sees_is_in_nobodys_way() -> None:
    glance_shelf = shelf(
        row("build", **OURS),
        row("private", owner="theirs"),
        row("forged", owner="theirs", **OURS),
        row("public", owner="theirs", visibility="public"),
        row("public and forged", owner="theirs", visibility="public", **OURS),
        row("our own"),
        row("our snapshot", base_image_ref="build", **OURS),
        row("of another name", "j"),
    )
    assert glance_shelf.others_named("i") == {"public", "public and forged", "our own", "our snapshot"}
