"""What is given to people: the wheel has all that the code reads and nothing else; the sdist builds the same one."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools.build_version import build_version

from tests.support import uv

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2_000_000
NEEDED = (
    "gpuyard/py.typed",
    "gpuyard/host/pci.ids",
    "gpuyard/guest/agent/gpuyard_agent.py",
    "gpuyard/guest/agent/gpuyard-agent.service",
    "gpuyard/web/templates/admin.html",
    "gpuyard/bookings/store/migrations/r0004_bookings.py",
    "gpuyard/usage/store/migrations/r0003_history.py",
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
        return {info.filename: (info.external_attr >> 16 & 0o777, files.read(info)) for info in files.infolist()}


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
    strangers = [name for name in files if not re.match(r"gpuyard(-[0-9a-z.+]+\.dist-info)?/", name)]
    assert strangers == [], "nothing else: no tests, no documentation"


def test_another_commit_is_another_version_and_the_documented_upgrade_installs_it(tmp_path: Path) -> None:
    """pip leaves a version alone that is installed already, whatever is in the wheel."""
    checkout, environment = tmp_path / "checkout", tmp_path / "environment"
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(checkout)])
    run([sys.executable, "-m", "venv", str(environment)])
    page = (ROOT / "docs/how-to/run-as-a-service.md").read_text()
    (upgrade,) = re.findall(r"^ +(/opt/gpuyard/bin/pip install --upgrade .*)$", page, re.MULTILINE)
    command = upgrade.replace("/opt/gpuyard/bin/pip install", f"{environment}/bin/pip install --quiet --no-deps")
    shown = []
    for text in ("", "commit", "not committed"):
        if text:
            (checkout / "src/gpuyard/new.py").write_text(f'"""{text}"""\n')
            run(["git", "-C", str(checkout), "add", "-A"])
        if text == "commit":
            who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
            run(["git", "-C", str(checkout), *who, "commit", "--quiet", "-m", "x"])
        run([uv.program(), "build", "-q", "--wheel", "--out-dir", str(tmp_path / "dist"), str(checkout)])
        run(["sh", "-ec", command], cwd=tmp_path / "dist")
        words = [str(environment / "bin/python"), "-c", "import gpuyard; print(gpuyard.installed_version())"]
        shown.append(run(words, cwd=tmp_path).stdout.strip())
        installed = next(environment.glob("lib/python*/site-packages/gpuyard")) / "new.py"
        assert installed.is_file() == bool(text)
        assert not text or text in installed.read_text()
    numbers = [[int(n) for n in re.findall(r"dev([0-9]+)", version)] for version in shown]
    assert len({*shown}) == 3
    assert numbers[1] == [numbers[0][0] + 1] == numbers[2], shown


def test_sources_without_git_have_a_version_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "src/gpuyard").mkdir(parents=True)
    (tmp_path / "src/gpuyard/x.py").write_text("1")
    first = build_version(tmp_path)
    (tmp_path / "src/gpuyard/x.py").write_text("2")
    assert first != build_version(tmp_path)
    assert re.fullmatch(r"[0-9.]+\.dev0\+s[0-9a-f]{12}", first)
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: gpuyard\nVersion: 1.2.3\n\n")
    assert build_version(tmp_path) == "1.2.3"


def test_the_commands_are_there(built: tuple[Path, Path, Path]) -> None:
    (name,) = [path for path in content(built[1]) if path.endswith("entry_points.txt")]
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
