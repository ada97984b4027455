"""A tree below a folder shows the files of that folder, and none of the machine that looks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuyard.host.tree import FileTree, RecordedTree


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    answers: list[str | None] = []
    reader = threading.Thread(target=lambda: answers.append(FileTree(str(tmp_path)).read("pipe")), daemon=True)
    reader.start()
    reader.join(10)
    assert answers == [None]


def test_a_device_is_no_file() -> None:
    assert FileTree("/").read("dev/zero") is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file etc/inside beside a file `outside`, which no path may reach."""
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "root/etc/deep").mkdir(parents=True)
    (tmp_path / "root/etc/inside").write_text("inside")
    return tmp_path / "root"


@pytest.mark.parametrize("up", ["", "../" * 20], ids=["absolute", "relative"])
def test_no_link_leads_out(root: Path, up: str) -> None:
    outside = root.parent / "outside"
    target = f"{up}{str(outside)[1:]}" if up else str(outside)
    (root / "etc/link").symlink_to(target)
    (root / "folder").symlink_to(os.path.dirname(target))
    tree = FileTree(str(root))
    assert tree.read("etc/link") is tree.read("folder/outside") is tree.read("../outside") is None
    assert tree.link("etc/link") == target
    assert tree.names("folder") == []
    assert tree.resolve("folder/outside") == str(outside)[1:]


@pytest.mark.parametrize("target", ["/etc/inside", "inside", "../../etc/inside", "deep/../inside", "/link2"])
def test_links_are_followed_as_from_within_the_root(root: Path, target: str) -> None:
    (root / "link2").symlink_to("etc/deep/../inside")
    (root / "etc/link").symlink_to(target)
    recorded = {"etc": {"inside": "inside", "deep": {}, "link": {"->": target}}, "link2": {"->": "etc/deep/../inside"}}
    for tree in (FileTree(str(root)), RecordedTree(recorded)):
        assert tree.read("etc/link") == "inside"
        assert tree.resolve("etc/link") == "etc/inside"


def test_a_chain_of_links_has_an_end(root: Path) -> None:
    """The kernel would go on where this gives up, and so leave the root."""
    for index in range(60):
        (root / f"link{index}").symlink_to(f"link{index + 1}")
    (root / "link60").symlink_to(root.parent / "outside")
    tree = FileTree(str(root))
    assert [tree.read(f"link{index}") for index in (0, 20, 21, 60)] == [None] * 4
    assert tree.resolve("link0") == "link0"
