"""What is said of the five documents that gpuyard began with: each command and each key that stands there exists."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.main import every_command

DOCS = Path(__file__).parents[3] / "docs"
INDEX = DOCS / "explanation/from-wiki-pages-to-commands.md"
PAGES = {
    INDEX: 28,
    DOCS / "explanation/quansight-gpu-server.md": 55,
    DOCS / "explanation/bright-gpu-hypervisors.md": 35,
    DOCS / "explanation/cloudveneto-gpus.md": 55,
    DOCS / "explanation/gpu-on-openstack-talk.md": 45,
}
"""Page -> rows that it has at least."""
SCHEMA = json.loads((DOCS / "reference/site.schema.json").read_text())
OTHERS = re.compile(
    # Checks of hosts and rules of the linter, keys of Kolla and of flavors, programs and files of others, values.
    r"virtualisation|iommu|memory|quirks|guests|shared|sr-iov|second-nova-compute|ram-overcommitted"
    r"|alias-on-one-service|enable_cinder|hw:cpu_policy|device_spec|passwords\.yml|update-grub|grubby|passthrough|name"
    r"|--limit|NAME|openstack server create"
)


def rows(page: Path) -> list[list[str]]:
    """Of all tables that say how; the heads are left out."""
    table_rows: list[list[str]] = []
    inside = False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "how":
            inside = True
        elif inside and not line.startswith("|---"):
            table_rows.append(cells)
    return table_rows


def resolved(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a reference, a list, or a choice with null: what can stand there."""
    if "$ref" in entry:
        return resolved(SCHEMA["$defs"][entry["$ref"].rpartition("/")[2]])
    if entry.get("type") == "array":
        return resolved(entry["items"])
    choices = [
        choice
        for choice in (*entry.get("anyOf", ()), *entry.get("oneOf", ()))
        if {*choice} & {"$ref", "oneOf", "items"}
    ]
    return resolved(choices[0]) if choices else entry


def stands_in_the_schema(path: str) -> bool:
    entry = resolved(SCHEMA)
    for key in path.split("."):
        named = [*entry.get("patternProperties", {}).values(), entry.get("additionalProperties")]
        if key == "NAME" and isinstance(named[0], dict):
            entry = resolved(named[0])
        elif key in entry.get("properties", {}):
            entry = resolved(entry["properties"][key])
        else:
            return False
    return True


@cache
def is_a_command(line: str) -> bool:
    """With its options; an option that takes a word may stand without."""
    command: Any = every_command()
    for word in shlex.split(line)[1:]:
        if word.startswith("-"):
            taken = [name for option in command.params for name in (*option.opts, *option.secondary_opts)]
            if word not in taken:
                return False
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return False
            command = command.commands[word]
    return not hasattr(command, "commands") or line == "gpuyard"


def is_of_openstack(line: str) -> bool:
    name = line.removeprefix("openstack ").replace(" ", "_")
    return name in {entry.name for entry in entry_points(group="openstack.gpu.v1")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_has_a_command_or_a_key_that_exists_or_says_why_not(page: Path) -> None:
    table_rows = rows(page)
    assert len(table_rows) >= PAGES[page]
    for cells in table_rows:
        counterpart, how = cells[-2], cells[-1]
        assert len(cells) == (4 if page == INDEX else 3), cells
        assert re.fullmatch(r"\[.+\]\(.+\)", how), cells
        named = re.findall(r"`([^`]+)`", counterpart)
        ours = [name for name in named if not OTHERS.fullmatch(name)]
        for name in ours:
            if name.startswith("gpuyard "):
                assert is_a_command(name), f"{page.name}: {name}"
            elif name.startswith("openstack gpu"):
                assert is_of_openstack(name), f"{page.name}: {name}"
            else:
                assert stands_in_the_schema(name), f"{page.name}: {name}"
        reason = counterpart.partition("—")[2]
        assert ours or len(reason) > 10, f"{page.name}: neither a command nor a key nor a reason: {cells}"


def test_what_does_not_exist_is_seen() -> None:
    assert stands_in_the_schema("runners.enrolments.app")
    assert stands_in_the_schema("pools.NAME.booking.longest")
    assert not stands_in_the_schema("pools.NAME.colour")
    assert not stands_in_the_schema("pools.v100")
    assert is_a_command("gpuyard host apply --ssh gpu1 --iommu-pt")
    assert not is_a_command("gpuyard host apply --everything")
    assert not is_a_command("gpuyard host levitate")
    assert not is_a_command("gpuyard host")


@pytest.mark.parametrize("page", [page for page in PAGES if page != INDEX], ids=lambda page: page.stem)
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        heads = [re.sub(r"[^\w\- ]", "", head.lower()) for head in re.findall(r"^#+ (.*)$", text, re.M)]
        assert anchor in [head.replace(" ", "-") for head in heads], f"{page.name}: {target}#{anchor}"
