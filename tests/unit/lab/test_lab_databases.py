"""The database URL: what is refused, and what the databases are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard_lab.databases import NAMES, DatabaseServer, check_template
from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.postgres import programs, server_config, unprivileged
from gpuyard_lab.settings import Lab


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://u:p@h/{name}",
        "mysql+pymysql://u:p@h:3307/lab_{name}?charset=utf8mb3",
        "postgresql+psycopg2://postgres@/{name}?host=%2Frun%2Fpg",
    ],
)
def test_a_usable_url(url: str) -> None:
    check_template(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////tmp/{name}.db", "does not run on sqlite"),
        ("postgresql://u:p@h/lab", "needs a {name}"),
        ("lab", "no SQLAlchemy URL"),
        ("oracle+nothing://u@h/{name}", "does not run on oracle"),
    ],
)
def test_an_unusable_url_is_refused_with_an_example(url: str, words: str) -> None:
    with pytest.raises(LabSettingsError) as error:
        check_template(url)
    assert words in str(error.value)
    assert "postgresql+psycopg2://user:password@host/{name}" in str(error.value)


def test_databases_are_called_what_the_url_says() -> None:
    server = DatabaseServer(Lab(Path("/x"), database="mysql+pymysql://u:p@h/lab_{name}"))
    assert [server.real_name(name) for name in ("glance", "nova_cell1")] == ["lab_glance", "lab_nova_cell1"]
    embedded = DatabaseServer(Lab(Path("/x")))
    assert [embedded.real_name(name) for name in NAMES] == list(NAMES)


def test_the_embedded_server_listens_where_the_url_points() -> None:
    lab = Lab(Path("/x"), id="0123")
    assert "unix_socket_directories = '@gpuyard-lab-0123'" in server_config(lab)
    assert lab.database_url("glance").endswith("?host=@gpuyard-lab-0123")


def test_the_socket_name_does_not_grow_with_the_folder() -> None:
    long = Lab(Path("/" + "x" * 300))
    assert len(long.database_url("").rpartition("=")[2]) < 40


def test_the_programs_are_there() -> None:
    assert {"postgres", "initdb"} <= {path.name for path in programs().iterdir()}


def test_root_does_not_run_the_server_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    command = unprivileged(["postgres"])
    assert any(argument.startswith("--reuid=") and argument != "--reuid=0" for argument in command)
    assert "--ambient-caps=+dac_override" in command
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert unprivileged(["postgres"]) == ["postgres"]
