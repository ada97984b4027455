"""``gpuyard db`` as it is typed: what it says, what it ends with, and secrets that come as credentials."""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.bookings.store import Store
from gpuyard.cli.main import app, run
from gpuyard.model.errors import UsageError
from gpuyard.server.credentials import adopt
from gpuyard.server.database_upkeep import checked
from tests.contract.store import booking, prepare, write
from tests.contract.store_migrations import open_all
from tests.support.sites import site


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A site whose database is where systemd would have it; the database's URL."""
    monkeypatch.setenv("GPUYARD_SITE", str(site(tmp_path).path))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    url = f"sqlite:///{tmp_path}/state/test.db"
    open_all(url)
    with closing(prepare(Store.open(url))) as store:
        write(store, booking(id="first"))
    return url


def typed(*words: str, input: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(app, ["db", *words], input=input)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "db", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    return ended.value.code, capsys.readouterr().err


def test_from_a_backup_and_back(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    code, output = typed("backup", str(folder), "--keep", "3")
    (file,) = folder.iterdir()
    assert (code, output.startswith(f"{file}: 0.")) == (0, True)
    assert file.name.startswith("test-")
    assert typed("check") == (0, "whole, and of this release\n")
    with closing(Store.open(served)) as store:
        write(store, booking((2,), id="second"))
        assert store.try_to_lead("bookings")
        code, output = refused(monkeypatch, capsys, "restore", str(file), "--yes")  # type: ignore[assignment]
        assert code == 3
        assert f"a portal keeps {served}: stop it first (systemctl stop gpuyard)" in output
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, output = refused(monkeypatch, capsys, "restore", str(file))  # type: ignore[assignment]
    assert (code, "nobody answered, so nothing was changed" in output) == (2, True)
    code, output = typed("restore", str(file), input="y\n")
    assert code == 0
    assert "1 booking made since" in output.replace("that are over ", "")
    assert "second of ada" in output
    assert f"restored; what was there is kept in {file}.replaced-" in output
    with closing(Store.open(served)) as store:
        assert store.get("second") is None
        assert store.get("first") is not None


def test_which_release_the_tables_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuyard.database.engine import parse_url
    from gpuyard.database.migrate import migrate
    from gpuyard.server.schema_modules import SCHEMA_MODULES

    url = f"sqlite:///{tmp_path}/old.db"
    migrate(parse_url(url), SCHEMA_MODULES[0], "0004")
    words = ["--site", str(site(tmp_path).path), "--database", url]
    code, output = typed("version", *words, "-f", "csv")
    assert code == 0
    assert output.splitlines()[:3] == [
        '"Room","At","This release","Upgrade"',
        '"ledger","0004","0005","due"',
        '"portal","","0004","due"',
    ]
    code, output = refused(monkeypatch, capsys, "check", *words)  # type: ignore[assignment]
    assert (code, "gpuyard db upgrade brings them up to date" in output) == (3, True)
    code, output = typed("upgrade", *words)
    assert (code, output.splitlines()[0]) == (0, "ledger: 0004 -> 0005")
    assert typed("check", *words)[0] == 0
    with closing(sqlite3.connect(tmp_path / "old.db")) as file, file:
        file.execute("update alembic_version set version_num = '0001'")
    code, output = typed("version", *words, "-f", "csv")
    assert (code, output.splitlines()[1]) == (0, '"ledger","0001","0005","made by a gpuyard too old for this one"')
    broken, _ = checked(url)
    assert broken[0].startswith(
        "ledger: made by a gpuyard too old for this one (0001; this one knows 0005): bring it up"
    )
    code, output = refused(monkeypatch, capsys, "check", *words)  # type: ignore[assignment]
    assert (code, "cannot be used as it is" in output) == (1, True)
    code, output = refused(monkeypatch, capsys, "upgrade", *words)  # type: ignore[assignment]
    assert (code, "bring it up with commit" in output) == (1, True)


def test_a_database_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--site", str(site(tmp_path).path), "--database", f"sqlite:///{tmp_path}/none.db"]
    for verb in (["check"], ["version"], ["upgrade"], ["backup", str(tmp_path)]):
        code, output = refused(monkeypatch, capsys, *verb, *words)
        assert (code, f"there is no database {tmp_path}/none.db" in output) == (1, True)
    assert not (tmp_path / "none.db").exists()


def test_a_credential_is_read_where_a_variable_would_be(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setattr("os.environ", os.environ.copy())
    (tmp_path / "gpuyard_GPUYARD_DATABASE").write_text(served)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert typed("check") == (0, "whole, and of this release\n")


def test_credentials_are_an_environment_that_others_do_not_see(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "gpuyard_GPUYARD_DATABASE").write_text("postgresql://u:secret@h/d\n")
    (folder / "GPUYARD_SMTP_PASSWORD").write_text("from a file")
    (folder / "gpuyard_clouds.yaml").write_text("clouds: {}")
    (folder / "github-token").write_text("is named in the site file")
    environment = {"CREDENTIALS_DIRECTORY": str(folder), "GPUYARD_SMTP_PASSWORD": "set"}
    adopt(environment)
    assert environment == {
        "CREDENTIALS_DIRECTORY": str(folder),
        "GPUYARD_DATABASE": "postgresql://u:secret@h/d",
        "GPUYARD_SMTP_PASSWORD": "set",
        "OS_CLIENT_CONFIG_FILE": str(folder / "gpuyard_clouds.yaml"),
    }
    (folder / "LARGE").write_bytes(b"x" * 70_000)
    with pytest.raises(UsageError, match="the credential LARGE is larger"):
        adopt({"CREDENTIALS_DIRECTORY": str(folder)})
    (folder / "LARGE").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="the credential LARGE is no text"):
        adopt({"CREDENTIALS_DIRECTORY": str(folder)})
    with pytest.raises(UsageError, match="cannot be read"):
        adopt({"CREDENTIALS_DIRECTORY": str(tmp_path / "none")})
