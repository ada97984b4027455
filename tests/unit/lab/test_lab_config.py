"""The files that the services read: what oslo.config gets out of them is what was meant."""

from __future__ import annotations

import configparser
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from oslo_config import cfg
from ruamel.yaml import YAML

from gpuyard.openstack.config import ELSEWHERE
from gpuyard_lab import config
from gpuyard_lab.clients import ADMIN_CLOUD, clouds, demo_login, write_client_files
from gpuyard_lab.credentials import passwords
from gpuyard_lab.plan import LabHost, LabPlan
from gpuyard_lab.settings import Lab

PLAN = LabPlan(
    hosts=(LabHost("gpu1", 8, 1024, 10, config="[pci]\ndevice_spec = {}\n"), LabHost("gpu2", 8, 1024, 10)),
    nova='[pci]\nalias = {"name": "a"}\nalias = {"name": "b"}\n',
    scheduler="[scheduler]\nworkers = 1\n",
    placement="[placement]\nmax_allocation_candidates = 7\n",
)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, database="postgresql+psycopg2://lab:pa$$word@db/{name}")


def parsed(path: Path) -> dict[str, dict[str, list[str]]]:
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    return sections


def read(path: Path, section: str, key: str) -> str | None:
    """An option the way a service reads it."""
    conf = cfg.ConfigOpts()
    group = None if section == "DEFAULT" else section
    conf.register_opt(cfg.StrOpt(key), group=group)
    conf([], default_config_files=[str(path)])
    value: str | None = conf[key] if group is None else conf[group][key]
    return value


@pytest.mark.parametrize("service", ["keystone", "placement", "glance", "neutron", "nova"])
def test_a_file_says_what_its_function_says(lab: Lab, service: str) -> None:
    function = getattr(config, service)
    sections = function(lab) if service == "keystone" else function(lab, passwords(lab))
    path = lab.state / "x.conf"
    path.write_text(config.render(sections))
    for section, options in sections.items():
        for key, value in options.items():
            assert read(path, section, key) == (str(value).lower() if isinstance(value, bool) else str(value))


def test_a_dollar_in_a_password_is_no_reference(lab: Lab) -> None:
    path = lab.state / "x.conf"
    path.write_text(config.render({"database": config.keystone(lab)["database"]}))
    assert read(path, "database", "connection") == "postgresql+psycopg2://lab:pa$$word@db/keystone"


def test_what_comes_from_the_site_is_added_and_wins(lab: Lab) -> None:
    config.write_config(lab, PLAN)
    nova = parsed(lab.etc / "nova/nova.conf")
    assert nova["pci"]["alias"] == ['{"name": "a"}', '{"name": "b"}']
    assert nova["pci"]["report_in_placement"] == ["true"]
    placement = (lab.etc / "placement/placement.conf").read_text()
    assert placement.endswith("# From the site.\n[placement]\nmax_allocation_candidates = 7\n")
    assert parsed(lab.etc / "nova/scheduler.conf") == {"scheduler": {"workers": ["1"]}}
    assert parsed(lab.etc / "nova/hosts/gpu1.conf") == {"pci": {"device_spec": ["{}"]}}
    assert parsed(lab.etc / "nova/hosts/gpu2.conf") == {}


def test_hosts_of_an_earlier_start_leave_no_file(lab: Lab) -> None:
    config.write_config(lab, PLAN)
    config.write_config(lab, LabPlan(PLAN.hosts[:1]))
    assert [path.name for path in (lab.etc / "nova/hosts").iterdir()] == ["gpu1.conf"]


def test_nobody_else_reads_what_has_passwords_in_it(lab: Lab) -> None:
    config.write_config(lab, PLAN)
    write_client_files(lab)
    files = [path for path in lab.state.rglob("*") if path.is_file()]
    assert len(files) > 12
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [path for path in lab.state.rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folders} <= {0}


def test_passwords_and_keys_stay_the_same_and_differ_from_lab_to_lab(lab: Lab, tmp_path: Path) -> None:
    config.write_config(lab, PLAN)
    keys = sorted(path.read_bytes() for path in lab.data.rglob("keystone/*/*"))
    before = passwords(lab)
    config.write_config(lab, PLAN)
    assert passwords(lab) == before
    assert sorted(path.read_bytes() for path in lab.data.rglob("keystone/*/*")) == keys
    assert len(set(keys)) == 4
    other = Lab(tmp_path / "other")
    other.state.mkdir()
    assert not set(passwords(other).values()) & set(before.values())
    assert len(set(before.values())) == len(before)


def test_limits_of_older_releases_are_read_by_a_token_of_the_system(lab: Lab) -> None:
    assert ELSEWHERE not in clouds(lab)[ADMIN_CLOUD]
    assert clouds(replace(lab, release="2025.1"))[ADMIN_CLOUD][ELSEWHERE] == {"limits": "gpuyard-lab-system"}


def test_clouds_are_admin_system_and_demo(lab: Lab) -> None:
    write_client_files(lab)
    written = YAML(typ="safe").load(lab.clouds_file)["clouds"]
    assert list(written) == ["gpuyard-lab", "gpuyard-lab-system", "gpuyard-lab-demo"]
    assert written["gpuyard-lab-system"]["auth"]["system_scope"] == "all"
    assert demo_login(lab.clouds_file) == ("demo", passwords(lab)["demo"])
    assert str(lab.clouds_file) in (lab.state / "openrc").read_text()


def test_a_shell_of_the_lab_knows_what_its_portal_keeps(lab: Lab) -> None:
    write_client_files(lab)
    script = f'. {lab.state}/openrc && echo "$GPUYARD_DATABASE $GPUYARD_LAB_STATE"'
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == f"sqlite:///{lab.state}/bookings.db {lab.state}\n"


def test_the_shipped_files_are_found_wherever_they_are(lab: Lab) -> None:
    for service, name in (("glance", "glance-api-paste.ini"), ("neutron", "api-paste.ini"), ("nova", "api-paste.ini")):
        paste = configparser.ConfigParser(interpolation=None)
        paste.read_string(config.shipped(lab, service, name).read_text())
        assert paste.sections()
