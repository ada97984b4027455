"""What a lab refuses before anything is started, and what it says about one that is not there."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard_lab import control, processes
from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.plan import LabHost, LabPlan
from gpuyard_lab.settings import Lab, LabSettings

PLAN = LabPlan((LabHost("gpu1", 8, 1024, 10),))


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("gpuyard_lab.control.Start.run", refuse)
    monkeypatch.setattr(processes, "start", refuse)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for fresh in (False, True):
        with pytest.raises(LabSettingsError, match="something else in it than a lab"):
            control.up(LabSettings(tmp_path, fresh=fresh), PLAN)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("character", "$%#")
def test_a_folder_that_openstack_would_misread_is_refused(tmp_path: Path, character: str) -> None:
    with pytest.raises(LabSettingsError, match=f"has a '\\{character}' in its path"):
        control.up(LabSettings(tmp_path / f"a{character}b"), PLAN)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabSettingsError, match="is not a folder"):
        control.up(LabSettings(tmp_path / "file"), PLAN)


def test_one_command_at_a_time(tmp_path: Path) -> None:
    Lab(tmp_path).save()
    with open(tmp_path / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for command in (lambda: control.up(LabSettings(tmp_path), PLAN), lambda: control.down(LabSettings(tmp_path))):
            with pytest.raises(LabError, match="another command is starting or ending the lab"):
                command()


def test_a_lab_keeps_its_database(tmp_path: Path) -> None:
    lab = Lab(tmp_path, complete=True)
    lab.save()
    other = LabSettings(tmp_path, database="postgresql+psycopg2://u@h/{name}")
    with pytest.raises(LabSettingsError, match="keeps the database"):
        control.up(other, PLAN)
    with pytest.raises(AssertionError, match="started"):
        control.up(replace(other, fresh=True), PLAN)


def test_a_database_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabSettingsError, match="sqlite"):
        control.up(LabSettings(tmp_path, database="sqlite:///{name}"), PLAN)


def test_no_lab_is_down(tmp_path: Path) -> None:
    settings = LabSettings(tmp_path / "none")
    status = control.status(settings)
    assert {service.state for service in status.services} == {"down"}
    assert not status.healthy
    assert control.down(settings) == 0
    assert not settings.state.exists()


def test_down_leaves_a_folder_that_is_none_of_its_business_as_it_is(tmp_path: Path) -> None:
    control.down(LabSettings(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_lab_needs_a_host(tmp_path: Path) -> None:
    with pytest.raises(LabSettingsError, match="needs a host"):
        control.up(LabSettings(tmp_path), LabPlan(()))
