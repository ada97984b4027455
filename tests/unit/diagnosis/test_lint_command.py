"""``gpuyard site lint`` from the outside: files and folders, formats, exit codes, and input that is not one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.diagnosis.lint.layout import config_files, views
from gpuyard.diagnosis.lint.rules import RULES
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard_lab.plan import EXAMPLE_SITE

BAD = '[pci]\ndevice_spec = {"addres": "0000:27:00.0"}\n'
GOOD = "[pci]\nreport_in_placement = true\n"
RECORDING = EXAMPLE_SITE.parent / "recordings/epyc-v100.json"


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["site", "lint", *map(str, arguments)], input=stdin)


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(*arguments: object, stdin: str | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert isinstance(result.exception, UsageError)
    return str(result.exception)


def test_nothing_found(tmp_path: Path) -> None:
    result = run(write(tmp_path / "nova.conf", GOOD))
    assert (result.exit_code, result.output) == (0, "Nothing found in 1 file.\n")


def test_a_finding_has_file_line_reason_and_fix(tmp_path: Path) -> None:
    path = write(tmp_path / "nova.conf", BAD)
    result = run(path)
    assert isinstance(result.exception, BlockedError)
    assert str(result.exception) == "2 errors, 0 warnings"
    assert f"{path}:2: error: 'addres' is not a key that Nova matches by" in result.output
    assert "    -> did you mean address?\n" in result.output


def test_notes_alone_are_no_failure(tmp_path: Path) -> None:
    path = write(tmp_path / "nova.conf", '[pci]\ndevice_spec = {"address": "0000:27:00.0", "product_id": "1db4"}\n')
    result = run(path)
    assert result.exit_code == 0
    assert ": note: " in result.output
    assert result.output.splitlines()[-1] == "1 note, no errors and no warnings in 1 file."


def test_formats(tmp_path: Path) -> None:
    path = write(tmp_path / "nova.conf", BAD)
    rows = json.loads(run(path, "-f", "json").stdout)
    assert [(row["payload"]["file"], row["payload"]["line"], row["severity"]) for row in rows][:2] == [
        (str(path), 2, "error")
    ] * 2
    assert {row["code"] for row in rows} <= set(RULES)
    assert run(path, "-f", "value", "-c", "Line").stdout == "2\n2\n2\n"
    assert "| Code" in run(path, "-c", "code").stdout
    assert "| Code" in run(path, "-f", "table").stdout
    assert run(path, "-f", "text").stdout == run(path).stdout
    assert json.loads(run(write(tmp_path / "good.conf", GOOD), "-f", "json").stdout) == []


def test_folders_and_their_layers(tmp_path: Path) -> None:
    write(tmp_path / "nova/nova.conf", "[filter_scheduler]\npci_in_placement = true\n")
    write(tmp_path / "nova/gpu1/nova-compute.conf", '[pci]\ndevice_spec = {"address": "0000:27:00.0"}\n')
    write(tmp_path / "neutron/neutron.conf", "not ini")
    result = run(tmp_path, "-f", "json")
    (row,) = [
        row for row in json.loads(result.stdout) if row["severity"] == "error" and row["code"] != "pci-filter-missing"
    ]
    assert row["code"] == "placement-half-on"
    assert row["payload"]["file"].endswith("nova/gpu1/nova-compute.conf")
    assert "nova-compute on gpu1 does not report" in row["reason"]


def test_a_recorded_host(tmp_path: Path) -> None:
    path = write(tmp_path / "nova.conf", '[pci]\ndevice_spec = {"address": "0000:99:00.0"}\n')
    rows = json.loads(run(path, "--recording", RECORDING, "-f", "json").stdout)
    assert "device-spec-matches-nothing" in {row["code"] for row in rows}
    other = write(tmp_path / "nova/elsewhere/nova-compute.conf", GOOD)
    assert "no file is for the host of" in refused(other, "--recording", RECORDING)
    assert "cannot read" in refused(path, "--recording", tmp_path / "none.json")


def test_recordings_of_hosts_with_names(tmp_path: Path) -> None:
    gpu1 = write(tmp_path / "gpu1/nova.conf", '[pci]\ndevice_spec = {"address": "0000:99:00.0"}\n')
    gpu2 = write(tmp_path / "gpu2/nova.conf", '[pci]\ndevice_spec = {"address": "0000:27:00.0"}\n')
    named = ["--recording", f"gpu1={RECORDING}", "--recording", f"gpu2={RECORDING}"]
    rows = json.loads(run(gpu1, gpu2, *named, "-f", "json").stdout)
    assert [row["payload"]["file"] for row in rows if row["code"] == "device-spec-matches-nothing"] == [str(gpu1)]
    assert "gpu1 is given twice" in refused(gpu1, *named[:2], *named[:2])
    assert "no file is for the host of gpu2" in refused(gpu1, *named)
    assert "cannot read none" in refused(gpu1, "--recording", "gpu1=none")


FLAVORS = [{"Name": "g1", "Properties": {"pci_passthrough:alias": "v100"}}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FLAVORS),
        json.dumps([{"Name": "g1", "Properties": "gpu='true', pci_passthrough:alias='v100'"}]),
        json.dumps({"name": "g1", "properties": {"pci_passthrough:alias": "v100"}}),
    ],
)
def test_flavors_in_the_ways_the_client_prints_them(tmp_path: Path, text: str) -> None:
    conf, file = write(tmp_path / "nova.conf", GOOD), write(tmp_path / "flavors.json", text)
    for result in (run(conf, "--flavors", file), run(conf, "--flavors", "-", stdin=text)):
        assert "flavor g1: error: pci_passthrough:alias='v100' is not of the form name:count" in result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "not JSON"),
        ("[3]", "3 is not a flavor"),
        ('[{"Name": "a"}]', "a flavor without Properties (was --long left out?)"),
        ('[{"Properties": {}}]', "a flavor without Name"),
    ],
)
def test_flavors_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    message = refused(write(tmp_path / "nova.conf", GOOD), "--flavors", "-", stdin=text)
    assert says in message
    assert "openstack flavor list --all --long -f json" in message


def test_input_that_cannot_be_read(tmp_path: Path) -> None:
    conf = write(tmp_path / "nova.conf", GOOD)
    assert "none.conf: cannot be read: No such file" in refused(tmp_path / "none.conf")
    assert "no *.conf in this folder" in refused(write(tmp_path / "empty/x", "").parent)
    assert "x.conf:2: not UTF-8 text" in refused(write(tmp_path / "x.conf", b"[pci]\n\xff\xfe"))
    assert "has zero bytes" in refused(write(tmp_path / "y.conf", b"[pci]\n\0"))
    assert "release '2016.1' is not known; write one of 2024.1, " in refused(conf, "--release", "2016.1")
    assert "both name flavors" in refused(conf, "--flavors", "-", "--os-cloud", "x", stdin="[]")
    assert run(conf, "--service", "nova").exit_code == 2


def test_an_unreadable_folder_without_nova_is_read_whole(tmp_path: Path) -> None:
    """In a folder where no name speaks of Nova, every *.conf is taken for a nova.conf."""
    write(tmp_path / "compute7.conf", BAD)
    assert isinstance(run(tmp_path).exception, BlockedError)


@pytest.mark.parametrize(
    ("path", "service", "host", "alone"),
    [
        ("/etc/nova/nova.conf", None, None, False),
        ("/etc/nova/nova-compute.conf", "nova-compute", None, False),
        ("/etc/nova/nova-gpu.conf", None, None, True),
        ("/etc/nova/nova.conf.d/10-gpu.conf", None, None, False),
        ("/etc/kolla/config/nova.conf", None, None, False),
        ("/etc/kolla/config/nova/nova-scheduler.conf", "nova-scheduler", None, False),
        ("/etc/kolla/config/nova/gpu1/nova.conf", None, "gpu1", False),
        ("/etc/kolla/config/nova/gpu1/nova-compute.conf", "nova-compute", "gpu1", False),
        ("/etc/kolla/nova-compute/nova.conf", "nova-compute", None, False),
        ("/etc/kolla/nova-compute-ironic/nova.conf", "nova-compute", None, False),
        ("/etc/kolla/nova_super_conductor/nova.conf", "nova-conductor", None, False),
        ("/etc/kolla/placement-api/placement.conf", "placement", None, False),
        ("nova.conf", None, None, False),
    ],
)
def test_a_path_says_who_reads_the_file(path: str, service: str | None, host: str | None, alone: bool) -> None:
    (file,) = config_files(path, "")
    assert (file.service, file.host, file.alone) == (service, host, alone)


def test_files_are_layered_as_the_services_read_them() -> None:
    paths = (
        "/c/nova/gpu1/nova-compute.conf",
        "/c/nova/nova-compute.conf",
        "/c/nova/gpu1/nova.conf",
        "/c/global.conf",
        "/c/nova.conf",
        "/c/nova/nova-scheduler.conf",
        "/c/nova/nova-gpu.conf",
    )
    read = {
        (view.service, view.host): [file.path.removeprefix("/c/") for file in view.files]
        for view in views(file for path in paths for file in config_files(path, ""))
    }
    common = ["global.conf", "nova.conf"]
    assert read == {
        (None, None): ["nova/nova-gpu.conf"],
        ("nova-api", None): common,
        ("nova-scheduler", None): [*common, "nova/nova-scheduler.conf"],
        ("nova-conductor", None): common,
        ("nova-compute", "gpu1"): [
            *common, "nova/nova-compute.conf", "nova/gpu1/nova.conf", "nova/gpu1/nova-compute.conf",
        ],
    }  # fmt: skip
