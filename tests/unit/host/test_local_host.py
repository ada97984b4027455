"""How files of a host are written: who may read them, from the first byte on, and who may keep gpuyard out."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from gpuyard.host.local_host import LOCK_FOLDER, STATE_FOLDER, LocalHost
from gpuyard.host.preparation.journal import JOURNAL_FILE, Journal, copy_of, load, save
from gpuyard.host.tree import FileTree
from gpuyard.model.errors import GpuyardError


def mode(path: Path | int) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("value", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, value: int) -> None:
    host = LocalHost(str(tmp_path))
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/grub.cfg").write_text("password")
    (tmp_path / "boot/grub.cfg").chmod(0o600)
    with umask(value):
        host.write_file("usr/local/lib/gpuyard/passthrough", "x", 0o755)
        host.copy_file("boot/grub.cfg", copy_of("boot/grub.cfg"))
        save(host, Journal(since=""))
    assert [mode(tmp_path / path) for path in ("usr/local/lib", "usr/local/lib/gpuyard/passthrough")] == [0o755, 0o755]
    assert mode(tmp_path / "var/lib") == 0o755
    private = (STATE_FOLDER, f"{STATE_FOLDER}/originals", f"{STATE_FOLDER}/originals/boot")
    assert [mode(tmp_path / path) for path in private] == [0o700] * 3
    assert mode(tmp_path / copy_of("boot/grub.cfg")) == mode(tmp_path / JOURNAL_FILE) == 0o600


def test_a_state_folder_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    (tmp_path / STATE_FOLDER).mkdir(parents=True)
    (tmp_path / STATE_FOLDER).chmod(0o755)
    save(LocalHost(str(tmp_path)), Journal(since=""))
    assert mode(tmp_path / STATE_FOLDER) == 0o700


def test_a_copy_is_never_readable_for_others_also_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / ".copy.gpuyard").write_text("left by a crash")
    (tmp_path / ".copy.gpuyard").chmod(0o666)
    modes: list[int] = []
    copy = shutil.copyfileobj

    def watched(source: IO[bytes], target: Any) -> None:
        modes.append(mode(target.fileno()))
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", watched)
    with umask(0):
        LocalHost(str(tmp_path)).copy_file("secret", "copy")
    assert modes == [0o600]
    assert mode(tmp_path / "copy") == 0o600


def test_the_lock_is_in_a_folder_of_our_own(tmp_path: Path) -> None:
    (tmp_path / LOCK_FOLDER).mkdir(parents=True)
    (tmp_path / LOCK_FOLDER).chmod(0o777)
    with umask(0), LocalHost(str(tmp_path)).lock():
        assert mode(tmp_path / LOCK_FOLDER) == 0o700
        assert mode(tmp_path / LOCK_FOLDER / "lock") == 0o600


@pytest.mark.parametrize("link", [LOCK_FOLDER, f"{LOCK_FOLDER}/lock"])
def test_the_lock_follows_no_link(tmp_path: Path, link: str) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / link).symlink_to(target / "lock" if link.endswith("lock") else target)
    with pytest.raises(GpuyardError, match="cannot open /run/gpuyard/lock"), LocalHost(str(tmp_path)).lock():
        pass
    assert list(target.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, as root")
def test_a_lock_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FOLDER).mkdir(parents=True)
    os.chown(tmp_path / LOCK_FOLDER, 65534, 65534)
    with pytest.raises(GpuyardError, match="belongs to user 65534"), LocalHost(str(tmp_path)).lock():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="looks as another user, as root")
def test_a_journal_that_only_root_may_read_is_not_taken_for_none() -> None:
    with tempfile.TemporaryDirectory() as root:  # pytest's own folders are closed to others
        Path(root).chmod(0o755)
        save(LocalHost(root), Journal(since=""))
        os.seteuid(65534)
        try:
            with pytest.raises(GpuyardError, match="run this as root"):
                load(FileTree(root))
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("target", ["data", "/data", "../../../data"])
def test_the_state_is_closed_also_where_a_link_leads_to_it(tmp_path: Path, target: str) -> None:
    (tmp_path / "data/lib").mkdir(parents=True)
    (tmp_path / "var").symlink_to(target)
    LocalHost(str(tmp_path)).write_file(f"{STATE_FOLDER}/journal/x", "secret", 0o600)
    assert [mode(tmp_path / "data/lib/gpuyard" / name) for name in ("", "journal")] == [0o700] * 2


def test_a_change_below_a_root_never_leaves_it(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "file").write_text("kept")
    root.mkdir()
    (root / "etc").symlink_to(outside)
    host = LocalHost(str(root))
    host.write_file("etc/file", "new", 0o644)
    assert host.tree.read("etc/file") == "new"
    host.remove_file("etc/file")
    assert (outside / "file").read_text() == "kept"
    assert host.tree.names("etc") == []


def test_a_loop_of_links_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("etc")
    host = LocalHost(str(tmp_path))
    with pytest.raises(GpuyardError, match=r"^/etc/x: Too many levels"):
        host.write_file("etc/x", "", 0o644)
    with pytest.raises(GpuyardError, match=r"^/etc/x: Too many levels"):
        host.remove_file("etc/x")
    assert host.digest("etc/x") is None


def test_an_error_of_what_is_done_under_the_lock_is_not_taken_for_another_gpuyard(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="inner"), LocalHost(str(tmp_path)).lock():
        raise BlockingIOError(11, "inner")
    host = LocalHost(str(tmp_path))
    with host.lock(), pytest.raises(GpuyardError, match="another gpuyard"), host.lock():
        pass
