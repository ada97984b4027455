"""Labs of other releases of OpenStack: which there are, what is installed, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

from gpuyard.nova.release import NEWEST, RELEASES
from gpuyard_lab import config, control
from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.example import planned_example
from gpuyard_lab.plan import EXAMPLE_SITE, LabHost, LabPlan, plan_of_site
from gpuyard_lab.releases import install
from gpuyard_lab.releases.catalogue import LAB_RELEASES, OWN, LabRelease, lab_release, names_of_python
from gpuyard_lab.releases.code import DRIVERS, with_code, write_code
from gpuyard_lab.releases.install import ensure_release
from gpuyard_lab.releases.plan import (
    BATCH,
    creation,
    environment_of,
    fingerprint,
    installation,
    packages_of,
    python_in,
)
from gpuyard_lab.settings import Lab, LabSettings, resolve

RELEASE = LAB_RELEASES["2025.1"]
PLAN = LabPlan((LabHost("gpu1", 8, 1024, 10),))
ALL = pytest.mark.parametrize("release", LAB_RELEASES.values(), ids=lambda release: release.name)


def test_labs_run_every_release_that_sites_can_have() -> None:
    assert [*LAB_RELEASES, OWN] == list(RELEASES)
    assert OWN == NEWEST
    for name, release in LAB_RELEASES.items():
        nova, placement = (release.services[service].partition(".")[0] for service in ("nova", "openstack-placement"))
        assert (int(nova), int(placement)) == (RELEASES[name].nova, RELEASES[name].placement)


@ALL
def test_a_lock_has_the_services_and_every_package_in_one_version(release: LabRelease) -> None:
    packages = packages_of(release.lock.read_text())
    exact = [re.fullmatch(r"([a-z0-9.-]+)==([^ ;]+)( ; .+)?", line) for line in packages]
    assert all(exact), [line for line, match in zip(packages, exact, strict=True) if not match]
    versions = {match[1]: match[2] for match in exact if match}
    assert len(versions) == len(packages)
    assert release.services.items() <= versions.items()
    assert versions.keys() >= {"psycopg2-binary", "pymysql", "waitress", "eventlet"}
    assert int(versions["setuptools"].partition(".")[0]) < 80, "older releases import pkg_resources"


def test_an_unknown_release_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LabSettingsError, match=r"cannot run release 'zed'; choose one of 2024\.1, .*, 2026\.2 with"):
        lab_release("zed")


def test_it_is_named_and_not_the_example_that_it_would_make(tmp_path: Path) -> None:
    with pytest.raises(LabSettingsError, match="cannot run release 'zed'"):
        planned_example("zed", tmp_path)


def test_a_release_names_the_pythons_that_it_runs_on() -> None:
    assert RELEASE.pythons == "3.11 to 3.12"
    assert replace(RELEASE, newest_python=(3, 11)).pythons == "3.11"
    assert [RELEASE.runs_on((3, minor)) for minor in (10, 11, 12, 13)] == [False, True, True, False]
    assert names_of_python(RELEASE) == ["python3.12", "python3.11"]


@pytest.mark.parametrize("uv", ["/bin/uv", None])
def test_packages_are_installed_in_batches_as_they_are_written(uv: str | None) -> None:
    packages = [f"p{number}==1" for number in range(2 * BATCH + 1)]
    steps = installation(Path("/e"), packages, uv)
    assert [step.packages for step in steps] == [BATCH, 2 * BATCH, 2 * BATCH + 1]
    assert [word for step in steps for word in step.command if word.startswith("p") and "==" in word] == packages
    assert all("--no-deps" in step.command and "/e/bin/python" in step.command for step in steps)
    assert creation(Path("/e"), "/usr/bin/python3.11", uv).command[-1] == "/e"


def test_an_environment_is_as_it_should_be_by_its_packages_and_python() -> None:
    text = "# a comment\nnova==1\n\nglance==2 ; python_version < '3.12'\n"
    assert packages_of(text) == ("nova==1", "glance==2 ; python_version < '3.12'")
    assert fingerprint(text, "a") == fingerprint("nova==1\nglance==2 ; python_version < '3.12'", "a")
    assert len({fingerprint(text, "a"), fingerprint(text, "b"), fingerprint("nova==2", "a")}) == 3


class Program:
    """A stand-in for uv: it notes what it was asked, and makes an environment with the Python that runs this."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.calls, program = folder / "calls", folder / "uv"
        program.write_text(
            f"""#!/bin/sh
echo "$@" >> {self.calls}
for last; do :; done
if [ "$1" = venv ]; then mkdir -p "$last/bin" && ln -sf {sys.executable} "$last/bin/python"; fi
if [ "$1" = "{fails}" ]; then echo "error: no route to pypi.org" >&2; exit 2; fi
"""
        )
        program.chmod(0o755)
        monkeypatch.setenv("UV", str(program))

    def times(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


def test_a_release_is_installed_once_and_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, messages = Program(tmp_path, monkeypatch), list[str]()
    cache = tmp_path / "cache"
    python = ensure_release(RELEASE, cache, messages.append)
    assert python == python_in(environment_of(cache, RELEASE))
    packages = len(packages_of(RELEASE.lock.read_text()))
    assert messages[0] == f"installing OpenStack 2025.1 from PyPI: {packages} packages into {cache / '2025.1'}"
    assert messages[1:] == [*(f"installed {n} of {packages} packages" for n in range(BATCH, packages, BATCH)),
                        f"installed {packages} of {packages} packages"]  # fmt: skip
    before = program.times()
    ensure_release(RELEASE, cache, messages.append)
    assert (program.times(), len(messages)) == (before, 2 + packages // BATCH)
    (cache / "2025.1" / install.DONE).write_text("of an older gpuyard")
    ensure_release(RELEASE, cache, messages.append)
    assert program.times() == 2 * before


def test_an_environment_whose_python_is_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, monkeypatch)
    python = ensure_release(RELEASE, tmp_path / "cache", print)
    before = program.times()
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert ensure_release(RELEASE, tmp_path / "cache", print) == python
    assert program.times() == 2 * before


def test_what_the_installer_said_last_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(tmp_path, monkeypatch, fails="pip")
    with pytest.raises(LabError, match=r"2025\.1 could not be installed, which needs a way to PyPI") as caught:
        ensure_release(RELEASE, tmp_path / "cache", print)
    assert "uv ended with status 2" in str(caught.value)
    assert "error: no route to pypi.org" in str(caught.value)
    Program(tmp_path, monkeypatch)
    assert ensure_release(RELEASE, tmp_path / "cache", print).exists()


def test_an_installer_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV", "/nowhere/uv")
    with pytest.raises(LabError, match=r"cannot be installed: /nowhere/uv: No such file"):
        ensure_release(RELEASE, tmp_path / "cache", print)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabSettingsError, match=r"file cannot hold releases .* choose another folder with --release-c"):
        ensure_release(RELEASE, tmp_path / "file", print)


def test_without_a_python_for_it_a_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabSettingsError, match=r"on Python 3.11 to 3.12, and this one, 3\.14, is newer; install"):
        ensure_release(RELEASE, tmp_path / "cache", print)


def test_another_python_in_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    other = tmp_path / "python3.12"
    other.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ensure_release(RELEASE, tmp_path / "cache", print)
    assert f"--python {other} " in (tmp_path / "calls").read_text()


def test_its_python_finds_both_packages_and_nothing_beside_them(tmp_path: Path) -> None:
    earlier = tmp_path / "run" / "code" / "gpuyard-0.1.0.dist-info"
    earlier.mkdir(parents=True)
    (earlier / "entry_points.txt").write_text(f"[{DRIVERS}]\ngpuyard_lab = gpuyard.lab.services.ml2:Driver\n")
    folder = write_code(tmp_path / "run" / "code")
    assert write_code(folder) == folder  # and again at the next start
    assert {path.name for path in folder.iterdir() if "dist-info" not in path.name} == {"gpuyard", "gpuyard_lab"}
    assert (folder / "gpuyard_lab" / "services" / "nova.py").exists()
    (distribution,) = distributions(path=[str(folder)])
    assert [(entry_point.group, entry_point.name) for entry_point in distribution.entry_points] == [
        (DRIVERS, "gpuyard_lab")
    ]
    assert with_code({"A": "b"}, folder) == {"A": "b", "PYTHONPATH": str(folder)}
    assert with_code({"PYTHONPATH": "/x"}, folder)["PYTHONPATH"] == f"{folder}:/x"


def test_the_example_is_of_the_release(tmp_path: Path) -> None:
    plan = plan_of_site(planned_example("2025.1", tmp_path))
    own = plan_of_site(EXAMPLE_SITE)
    assert (plan.release, own.release) == ("2025.1", OWN)
    assert [host.name for host in plan.hosts] == [host.name for host in own.hosts]
    assert "class:CUSTOM_GPU_V100," in own.nova
    assert "class:CUSTOM_GPU_V100," not in plan.nova


def test_settings_come_from_arguments_then_the_environment_then_the_last_start(tmp_path: Path) -> None:
    environment = {"GPUYARD_LAB_RELEASE": "2025.2", "GPUYARD_LAB_RELEASE_CACHE": "/releases"}
    read = LabSettings.of(tmp_path, environment=environment)
    assert (read.release, read.release_cache) == ("2025.2", Path("/releases"))
    settings = LabSettings.of(tmp_path, release="2025.1", release_cache=Path("/r"), environment=environment)
    assert (settings.release, settings.release_cache) == ("2025.1", Path("/r"))
    lab = resolve(settings)[0]
    assert lab.python == Path("/r/2025.1/bin/python")
    lab.save()
    assert resolve(LabSettings(tmp_path))[0] == lab
    assert Lab(tmp_path).python == Path(sys.executable)


def test_a_lab_of_an_earlier_gpuyard_is_of_its_own_release(tmp_path: Path) -> None:
    Lab(tmp_path).save()
    file = tmp_path / "lab.json"
    values = json.loads(file.read_text())
    del values["release"], values["release_cache"]
    file.write_text(json.dumps(values))
    assert resolve(LabSettings(tmp_path))[0].release == OWN


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("gpuyard_lab.control.Start.run", refuse)
    monkeypatch.setattr("gpuyard_lab.control.ensure_release", refuse)


@pytest.mark.usefixtures("nothing_starts")
def test_a_lab_keeps_its_release(tmp_path: Path) -> None:
    Lab(tmp_path, complete=True).save()
    with pytest.raises(LabSettingsError, match=r"runs OpenStack 2026\.2, and keeps .* --fresh, or choose another"):
        control.up(LabSettings(tmp_path, release="2025.1"), PLAN)
    with pytest.raises(LabSettingsError, match="cannot run release '2025'"):
        control.up(LabSettings(tmp_path, release="2025", fresh=True), PLAN)


@pytest.mark.usefixtures("nothing_starts")
def test_a_site_of_another_release_is_refused(tmp_path: Path) -> None:
    settings = LabSettings(tmp_path / "lab", site=EXAMPLE_SITE, release="2025.1")
    with pytest.raises(LabSettingsError, match=r"is a site of OpenStack 2026\.2, and the lab is to run 2025\.1: write"):
        control.up(settings)


def test_a_service_file_that_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path, release="2025.1", release_cache=str(tmp_path))
    with pytest.raises(LabError, match=r"without its api-paste\.ini; remove .*2025\.1, and it is installed again"):
        config.shipped(lab, "nova", "api-paste.ini")
