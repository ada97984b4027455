"""A client without the server's packages: what works, and what the other commands say."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpuyard_lab.plan import EXAMPLE_SITE

ROOT = Path(__file__).parents[3]
SERVER_PACKAGES = (
    "fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client", "dateutil", "icalendar",
    "sqlalchemy", "alembic", "psycopg", "nova", "keystone", "placement", "osc_lib",
)  # fmt: skip
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({SERVER_PACKAGES!r}))  # none of them can be imported
from gpuyard.cli.main import run
run()
"""


def gpuyard(*arguments: str, clouds: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "OS_CLIENT_CONFIG_FILE": str(clouds or "/nonexistent"),
        "HOME": "/nonexistent",
    }
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("booking", "create", "--help"),
        ("host", "scan", "--from", str(EXAMPLE_SITE.parent / "recordings/epyc-v100.json")),
        ("site", "check", "--site", str(EXAMPLE_SITE)),
        ("site", "render", "--site", str(EXAMPLE_SITE)),
    ],
)
def test_a_client_works_without_the_server(words: tuple[str, ...]) -> None:
    done = gpuyard(*words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_booking_goes_as_far_as_the_cloud(tmp_path: Path) -> None:
    """To Keystone, where nobody answers: all that is ours was imported by then."""
    clouds = tmp_path / "clouds.yaml"
    clouds.write_text(
        "clouds: {here: {auth: {auth_url: 'http://127.0.0.1:9', username: u, password: p, project_name: p,"
        " user_domain_name: Default, project_domain_name: Default}}}\n"
    )
    done = gpuyard("booking", "list", "--os-cloud", "here", clouds=clouds)
    assert done.returncode == 1
    assert "Keystone" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "part"), [(("serve", "--site", str(EXAMPLE_SITE)), "server")])
def test_another_command_says_which_part_it_needs(words: tuple[str, ...], part: str) -> None:
    done = gpuyard(*words)
    assert done.returncode == 2
    assert f"pip install '.[{part}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_client_depends_on_nothing_of_the_server() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {requirement.partition(">")[0].replace("-", "_") for requirement in project["dependencies"]}
    assert not needed & set(SERVER_PACKAGES)
