"""What is given to people: the wheel has all that the code reads and nothing else; the sdist builds the same one."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import uv

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2_000_000
NEEDED = (
    "gpuyard/py.typed",
    "gpuyard/host/pci.ids",
    "gpuyard/agent/gpuyard_agent.py",
    "gpuyard/agent/gpuyard-agent.service",
    "gpuyard/portal/templates/admin.html",
    "gpuyard/ledger/store/migrations/r0001_bookings.py",
    "gpuyard/history/store/migrations/r0002_totals.py",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The sdist, the wheel that was built of it, and the one that was built of the checkout."""
    of_sdist, direct = tmp_path_factory.mktemp("of-sdist"), tmp_path_factory.mktemp("direct")
    for command in (["--out-dir", str(of_sdist)], ["--wheel", "--out-dir", str(direct)]):
        done = subprocess.run([uv.program(), "build", "-q", *command, str(ROOT)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return next(of_sdist.glob("*.tar.gz")), next(of_sdist.glob("*.whl")), next(direct.glob("*.whl"))


def content(wheel: Path) -> dict[str, tuple[int, bytes]]:
    """By name: permissions and bytes."""
    with zipfile.ZipFile(wheel) as files:
        return {one.filename: (one.external_attr >> 16 & 0o777, files.read(one)) for one in files.infolist()}


def test_the_wheel_is_small_and_has_every_file_of_the_package(built: tuple[Path, Path, Path]) -> None:
    _, wheel, _ = built
    assert wheel.stat().st_size < MOST_BYTES
    files = content(wheel)
    source = ROOT / "src/gpuyard"
    mine = {
        f"gpuyard/{path.relative_to(source)}": path.read_bytes()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(NEEDED) <= set(mine)
    assert {name: content for name, (_, content) in files.items() if name.startswith("gpuyard/")} == mine
    strangers = [name for name in files if not re.match(r"gpuyard(-[0-9.]+\.dist-info)?/", name)]
    assert strangers == [], "nothing else: no tests, no documentation"


def test_the_commands_are_there(built: tuple[Path, Path, Path]) -> None:
    (name,) = [one for one in content(built[1]) if one.endswith("entry_points.txt")]
    text = content(built[1])[name][1].decode()
    assert "gpuyard = gpuyard.cli.main:run" in text
    assert "[openstack.gpu.v1]" in text


def test_the_sdist_builds_the_same_wheel_and_has_no_secrets_of_a_checkout(built: tuple[Path, Path, Path]) -> None:
    sdist, wheel, direct = built
    assert content(wheel) == content(direct)
    with tarfile.open(sdist) as files:
        tops = {name.split("/")[1] for name in files.getnames() if name.count("/")}
    assert {"src", "tests", "pyproject.toml", "LICENSE", "README.md"} <= tops
    assert not {".lab", ".venv", ".git", ".tools"} & tops


INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}


def test_the_container_file_is_one_and_its_process_is_not_root() -> None:
    """As far as that can be seen without building it."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in steps} <= INSTRUCTIONS
    bases = [words.split()[0] for name, words in steps if name == "FROM"]
    assert all(re.fullmatch(r"[a-z.]+/[a-z]+/[a-z]+:[0-9][a-z0-9.-]+", base) for base in bases), (
        "whole names, with a version"
    )
    names = [name for name, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT")
    (user,) = [words for name, words in steps if name == "USER"]
    assert user == "gpuyard"
    (entry,) = [words for name, words in steps if name == "ENTRYPOINT"]
    assert json.loads(entry) == ["gpuyard", "serve"], "no shell before it, or signals would not reach it"
    for name, words in steps:
        if name == "RUN":
            assert subprocess.run(["sh", "-nc", words]).returncode == 0
