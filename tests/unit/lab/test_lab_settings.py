"""Where a lab is and what it remembers: arguments, then the environment, then lab.json, then defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard_lab.catalog import APIS
from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.settings import Lab, LabSettings, remembered, resolve


def test_the_default_folder_follows_the_xdg_rules(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert LabSettings.of(environment=home).state == tmp_path / ".local/state/gpuyard/lab"
    assert LabSettings.of(environment={**home, "XDG_STATE_HOME": "/x"}).state == Path("/x/gpuyard/lab")


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    environment = {
        "GPUYARD_LAB_STATE": "/elsewhere",
        "GPUYARD_LAB_PORT_BASE": "16000",
        "GPUYARD_LAB_DATABASE": "postgresql://a/{name}",
    }
    settings = LabSettings.of(tmp_path, 17000, "postgresql://b/{name}", environment=environment)
    assert (settings.state, settings.port_base, settings.database) == (tmp_path, 17000, "postgresql://b/{name}")
    read = LabSettings.of(environment=environment)
    assert (read.state, read.port_base, read.database) == (Path("/elsewhere"), 16000, "postgresql://a/{name}")


@pytest.mark.parametrize("text", ["0", "1023", "65531", "http", "-1", "15000.5"])
def test_a_port_base_that_leaves_no_room_is_refused(text: str) -> None:
    with pytest.raises(LabSettingsError, match=r"no port base: write a number from 1024 to 65530"):
        LabSettings.of(Path("/x"), environment={"GPUYARD_LAB_PORT_BASE": text})


def test_the_highest_port_base_fits() -> None:
    lab = Lab(Path("/x"), port_base=65531)
    assert max(lab.port(api.name) for api in APIS) == 65535


def test_a_lab_is_remembered_and_what_is_asked_for_wins(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 16000, "mysql+pymysql://u:p@h/{name}", complete=True, own_databases=("keystone",))
    lab.save()
    assert resolve(LabSettings(tmp_path)) == (lab, lab)
    assert resolve(LabSettings(tmp_path, port_base=17000))[0] == replace(lab, port_base=17000)
    assert resolve(LabSettings(tmp_path, site=Path("/s.yaml")))[0].site == "/s.yaml"


def test_what_is_remembered_is_private(tmp_path: Path) -> None:
    Lab(tmp_path, database="postgresql://user:secret@host/{name}").save()
    assert (tmp_path / "lab.json").stat().st_mode & 0o777 == 0o600


def test_a_file_of_another_version_is_refused_unless_everything_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text('{"colour": "green"}')
    with pytest.raises(LabSettingsError, match=r"lab\.json was not written by this version .* --fresh"):
        remembered(tmp_path)
    with pytest.raises(LabSettingsError):
        resolve(LabSettings(tmp_path))
    assert resolve(LabSettings(tmp_path, fresh=True))[1] is None


def test_database_urls_carry_the_name() -> None:
    lab = Lab(Path("/x"), id="0123")
    assert lab.database_url("glance") == "postgresql+psycopg2://postgres@/glance?host=@gpuyard-lab-0123"
    server = replace(lab, database="mysql+pymysql://u:p@h/lab_{name}")
    assert server.database_url("glance") == "mysql+pymysql://u:p@h/lab_glance"


def test_endpoints_are_those_of_the_catalogue() -> None:
    lab = Lab(Path("/x"), port_base=20000)
    assert lab.endpoint("keystone") == "http://127.0.0.1:20000/v3"
    assert lab.endpoint("nova") == "http://127.0.0.1:20004/v2.1"
    assert len({lab.port(api.name) for api in APIS}) == len(APIS)
