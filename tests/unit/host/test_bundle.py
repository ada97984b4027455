"""The zipapp: small, the same bytes every time, and started by any Python that a hypervisor may have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from gpuyard.host import bundle, fleet
from gpuyard.model.errors import GpuyardError
from tests.support import zipapps
from tests.support.sysfs import Sysfs
from tests.unit.host.test_scan import materialise


def pythons() -> list[str]:
    """The interpreters on this machine that the zipapp must run on; a name on the PATH may lead nowhere."""
    names = [f"python3.{minor}" for minor in range(9, 15)]
    interpreters = [path for name in names if (path := shutil.which(name)) and answers(path)]
    return [sys.executable, *interpreters]


def answers(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def over_stdin(python: str, zipapp: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Start a zipapp the way that the fleet does, without ssh."""
    *_, remote = fleet.command("host", arguments, fleet.FleetOptions(python=python))
    return subprocess.run(["sh", "-c", remote], input=fleet.BOOTSTRAP.encode() + zipapp, capture_output=True)


def test_it_stays_below_its_limit() -> None:
    assert len(bundle.build()) < bundle.LIMIT_BYTES


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    main = "main = print\n"
    first = zipapps.with_main(tmp_path / "a", main)
    assert zipapps.with_main(tmp_path / "b", main) == first
    assert zipapps.with_main(tmp_path / "c", main + "#\n") != first


def test_it_has_what_travels_and_nothing_else() -> None:
    names = zipfile.ZipFile(BytesIO(bundle.build())).namelist()
    assert {"__main__.py", "gpuyard/__init__.py", "gpuyard/model/pci.py", "gpuyard/host/pci.ids"} < set(names)
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"model", "host"}
    assert "gpuyard/host/preparation/plan.py" in names


def test_a_package_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuyardError, match=r"has no __init__\.py"):
        bundle.build(tmp_path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpuyardError, match=f"cannot write {tmp_path}: Is a directory"):
        bundle.write(tmp_path)


@pytest.mark.parametrize("python", pythons())
def test_the_file_scans_a_machine(python: str, tmp_path: Path) -> None:
    machine = Sysfs().function("01:00.0", "10de:1b02", "0300", group=1)
    materialise(machine.nodes, tmp_path / "root")
    bundle.write(tmp_path / "gpuyard-host.pyz")
    command = [python, "-IB", str(tmp_path / "gpuyard-host.pyz"), "--root", str(tmp_path / "root"), "scan"]
    inventory = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=tmp_path).stdout)
    assert [f["product_name"] for f in inventory["functions"]] == ["GP102 [TITAN Xp]"]


WRITES_AN_ATTRIBUTE = """
import json, sys
from gpuyard.host.local_host import AttributeRefused, LocalHost
def main():
    host = LocalHost(sys.argv[1])
    host.write_attribute("there", "vfio-pci")
    try:
        host.write_attribute("missing", "1")
    except AttributeRefused as error:
        print(json.dumps([__file__, str(error)]))
"""


@pytest.mark.parametrize("python", pythons())
def test_from_memory_it_starts_the_process_that_writes_to_sysfs(python: str, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    done = over_stdin(python, zipapps.with_main(tmp_path, WRITES_AN_ATTRIBUTE), str(tmp_path))
    start, refusal = map(json.loads, done.stdout.splitlines())
    assert start["event"] == "start"
    assert refusal[0].startswith("/proc/self/fd/")
    assert refusal[1].endswith("/missing: No such file or directory")
    assert (tmp_path / "there").read_text() == "vfio-pci\n"


def test_arguments_pass_the_shell_unchanged(tmp_path: Path) -> None:
    words = ["it's", '"two words"', "$HOME `id` \\ !x *", "", "--note=ä;exit 1", "new\nline"]
    zipapp = zipapps.with_main(tmp_path, "import json, sys\ndef main():\n    print(json.dumps(sys.argv[1:]))\n")
    done = over_stdin(sys.executable, zipapp, *words)
    assert json.loads(done.stdout.splitlines()[1]) == words


def test_the_exit_code_is_the_verbs(tmp_path: Path) -> None:
    assert over_stdin(sys.executable, zipapps.with_main(tmp_path, "main = lambda: 3\n")).returncode == 3
