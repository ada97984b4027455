"""What OpenStack must have for the runners' project: flavors that it sees, and no limits but those on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuyard.site.objects import LimitObject, owner_mark, runner_flavors
from tests.support.sites import flavor, site

ENROLLED = {"organization": "conda-forge", "token_file": "token"}
FLAVORS = {
    "open": flavor(gpus={"v100": 1}),
    "private": flavor(gpus={"v100": 1}, projects=["demo"]),
    "nobodys": flavor(gpus={"v100": 1}, projects=[]),
    "pair": flavor(gpus={"v100": 2}, same_group=True, projects=["demo"]),
    "cpu": flavor(projects=["demo"]),
}


def compiled(folder: Path, runners: dict[str, Any] | None, **more: Any) -> Any:
    wish = (
        {"booking": {}, "runners": {"project": "ci", "enrolments": [ENROLLED], **runners}}
        if runners is not None
        else {}
    )
    document = {
        "flavors": FLAVORS,
        "projects": {"demo": {}},
        "limits": {"servers": 10, "ram": "64 GiB"},
        **wish,
        **more,
    }
    return site(folder, document).compiled


def projects(folder: Path, runners: dict[str, Any] | None, **more: Any) -> dict[str, set[str] | None]:
    """Flavor -> who sees it; None is everybody."""
    return {
        flavor.name: None if flavor.public else {*flavor.projects}
        for flavor in compiled(folder, runners, **more).flavors
    }


PRIVATE = {"private": {"demo"}, "nobodys": set(), "pair-a": {"demo"}, "pair-b": {"demo"}, "cpu": {"demo"}}


@pytest.mark.parametrize(
    ("runners", "names", "theirs"),
    [
        (None, (), {}),
        ({}, ("open",), {}),
        ({"allowed": {"flavors": ["private"]}}, ("private",), {"private": {"demo", "ci"}}),
        (
            {"sets": {"gpu": {"flavors": ["pair", "nobodys"], "images": ["i"]}}, "allowed": {"flavors": ["open"]}},
            ("open", "nobodys", "pair"),
            {"pair-a": {"demo", "ci"}, "pair-b": {"demo", "ci"}, "nobodys": {"ci"}},
        ),
        (
            {"enrolments": [{**ENROLLED, "cirun": False}], "sets": {"gpu": {"flavors": ["private"], "images": ["i"]}}},
            ("private",),
            {"private": {"demo", "ci"}},
        ),
    ],
)
def test_the_runners_project_sees_what_the_site_names_for_it(
    tmp_path: Path, runners: dict[str, Any] | None, names: tuple[str, ...], theirs: dict[str, set[str]]
) -> None:
    assert runner_flavors(compiled(tmp_path, runners).site) == names
    slots = ("lone", "set-a", "set-b")  # of the pool, which has lone GPUs and groups; theirs alone
    own = {f"{name}-{slot}": {"ci"} for name in names if name != "pair" for slot in slots}
    assert projects(tmp_path, runners) == {"open": None, **PRIVATE, **theirs, **own}


def test_a_private_pool_is_the_runners_where_its_flavor_is_named(tmp_path: Path) -> None:
    pools = {"v100": {"models": ["10de:1db4"], "projects": ["demo"]}}
    assert projects(tmp_path, {}, pools=pools)["open"] == {"demo"}
    assert projects(tmp_path, {"allowed": {"flavors": ["open"]}}, pools=pools)["open"] == {"demo", "ci"}


def test_how_many_servers_it_has_is_gpuyards_doing(tmp_path: Path) -> None:
    compiled_site = compiled(tmp_path, {})
    mark = owner_mark("test")
    assert [limit for limit in compiled_site.limits if limit.project == "ci"] == [
        LimitObject("servers", -1, "ci", mark),
        LimitObject("class:MEMORY_MB", -1, "ci", mark),
    ], "none on GPUs: that one is the loop's of bookings"
    assert not [limit for limit in compiled(tmp_path, None).limits if limit.project == "ci"]
