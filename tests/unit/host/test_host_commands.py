"""The verbs as they run on a host: what they print, for people and for programs, and how they end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.console.prepare import findings_of
from gpuyard.host.__main__ import execute, main
from gpuyard.host.fleet import Ending, Outcome
from gpuyard.host.local_host import LocalHost
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.recording import dumps, record
from gpuyard.host.tree import FileTree
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity
from tests.support.hypervisors import titan_xp
from tests.support.sysfs import Sysfs, names, write
from tests.unit.host.test_scan import materialise


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's folders, in which nothing acts on what is written to sysfs, and without tools that make boot files."""
    nodes = titan_xp().nodes
    del nodes["usr"]
    materialise(nodes, tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def answer(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """A verb's exit code, and its lines as JSON."""

    def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
        code = main(["--root", str(root), *words, "--json"])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def names_in(root: Path) -> list[str]:
    """Everything below it but /run, which has the lock and is empty after a boot."""
    names = (str(path.relative_to(root)) for path in root.rglob("*"))
    return sorted(name for name in names if not name.startswith("run"))


Answer = Callable[..., tuple[int, list[dict[str, Any]]]]


def test_a_plan_shows_diffs_and_drivers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(root), "plan"]) == 0
    text = capsys.readouterr().out
    assert f"+ create file /{LIST_FILE}\n    # names the 4 functions that go to VMs, by address\n" in text
    assert "    +++ /etc/gpuyard/passthrough\n" in text
    assert "    +0000:01:00.0 10de:1b02 vfio-pci\n" in text
    assert "~ bind group 13\n" in text
    assert "    0000:01:00.1: snd_hda_intel -> vfio-pci\n" in text


def test_apply_tells_its_steps_and_what_waits_for_a_reboot(answer: Answer, root: Path) -> None:
    code, lines = answer("apply", "--yes", "--no-live", "--keep", "02:00.0")
    *steps, result = lines
    assert code == result["exit"] == 0
    assert [step["done"] for step in steps] == list(range(len(steps)))
    assert steps[0] == {"event": "step", "done": 0, "of": len(steps), "text": f"create file /{LIST_FILE}"}
    assert result["changed"]
    assert result["reboot"] == ["0000:01:00.0 with vfio-pci", "0000:01:00.1 with vfio-pci"]
    assert (root / "usr/local/lib/gpuyard/passthrough").stat().st_mode & 0o777 == 0o755
    assert (root / "var/lib/gpuyard/journal.json").stat().st_mode & 0o777 == 0o600


def test_a_second_apply_changes_nothing_and_undo_leaves_nothing(answer: Answer, root: Path) -> None:
    before = names_in(root)
    answer("apply", "--yes", "--no-live")
    code, (result,) = answer("apply", "--yes", "--no-live")
    assert (code, result["changed"]) == (0, False)
    code, (result,) = answer("undo", "--dry-run")
    assert [step["sign"] for step in result["steps"]].count("-") > 3
    code, (*_, result) = answer("undo", "--yes")
    assert (code, result["changed"]) == (0, True)
    assert names_in(root) == before


def test_a_write_that_nothing_acts_on_is_not_taken_for_a_success(answer: Answer) -> None:
    """This root has no kernel: the driver links do not change, however well the writes end."""
    code, lines = answer("apply", "--yes")
    assert code == 1
    assert lines[-1]["event"] == "result"
    assert "there is no such command" in lines[-1]["error"] or "would change this machine" in lines[-1]["error"]


def test_without_anybody_to_ask_nothing_is_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names_in(root)
    with pytest.raises(BlockedError, match="nobody to ask here; say --yes"):
        execute(["--root", str(root), "apply"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(BlockedError, match="nothing was changed"):
        execute(["--root", str(root), "apply"])
    assert names_in(root) == before


def test_a_refused_plan_ends_with_3_and_its_reasons(answer: Answer) -> None:
    code, (result,) = answer("plan", "--only", "77:00.0")
    assert code == result["exit"] == 3
    assert "no GPU at 0000:77:00.0" in result["refusals"][0]
    code, (result,) = answer("apply", "--yes", "--only", "77:00.0")
    assert code == 3
    assert "the plan cannot be applied" in result["error"]


def test_commands_are_not_run_for_another_root(answer: Answer, root: Path) -> None:
    (root / "usr/sbin").mkdir(parents=True)
    (root / "usr/sbin/update-initramfs").touch()
    code, (result,) = answer("apply", "--yes", "--no-live")
    assert code == 3
    assert result["error"].startswith("run update-initramfs -u -k all: cannot be done below")
    assert not (root / LIST_FILE).exists()


def test_bad_words_are_usage_errors(root: Path) -> None:
    with pytest.raises(UsageError, match="no PCI address"):
        execute(["--root", str(root), "plan", "--keep", "gpu0"])


def test_verify_compares_with_a_recording(answer: Answer, root: Path, tmp_path: Path) -> None:
    recording = tmp_path / "gpu1.json"
    recording.write_text(dumps(record(FileTree(str(root)), names(), "test")))
    (root / "sys/bus/pci/devices/0000:02:00.0").unlink()
    code, (result,) = answer("verify", "--against", str(recording))
    assert code == 3
    assert any("02:00.0" in finding["reason"] for finding in result["findings"])
    _, (result,) = answer("verify", "--recording")
    assert result["recording"]["gpuyard_recording"] == 1


def test_the_program_prints_no_traceback(root: Path) -> None:
    (root / "var/lib/gpuyard").mkdir(parents=True)
    (root / "var/lib/gpuyard/journal.json").write_text("{")
    command = [sys.executable, "-m", "gpuyard.host", "--root", str(root), "plan"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gpuyard-host: /var/lib/gpuyard/journal.json is damaged")


def test_two_at_once_do_not_meet(answer: Answer, root: Path) -> None:
    with LocalHost(str(root)).lock():
        code, (result,) = answer("apply", "--yes", "--no-live")
        assert code == 1
        assert result["error"] == "another gpuyard is changing this host: wait until it has ended"
        assert answer("plan")[0] == 0, "looking is always allowed"
    assert answer("apply", "--yes", "--no-live")[0] == 0


def test_a_plan_that_has_changed_since_it_was_agreed_to_is_not_carried_out(answer: Answer, root: Path) -> None:
    _, (shown,) = answer("plan", "--no-live")
    code, (result,) = answer("apply", "--yes", "--no-live", "--keep", "01:00.0", "--expect", shown["digest"])
    assert code == 3
    assert "the host is not as it was when the plan was shown" in result["error"]
    assert not (root / LIST_FILE).exists()
    assert answer("apply", "--yes", "--no-live", "--expect", shown["digest"])[0] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--keep", "68:00.0"], "--keep 68:00.0: there is no GPU at it; GPUs are at: 0000:01:00.0, 0000:02:00.0"),
        (["--keep", "01:00.1"], "--keep 01:00.1: there is no GPU at it"),
        (["--give", "99:00.0"], "--give 99:00.0: there is nothing at it to give"),
        (["--give", "01:00.1"], "--give 01:00.1: it goes with the GPU that it shares a group with: name that one"),
    ],
)
def test_a_mistyped_address_gives_nothing_away(root: Path, words: list[str], reason: str) -> None:
    for verb in (["plan"], ["apply", "--yes", "--no-live"]):
        with pytest.raises(UsageError, match=re.escape(reason)):
            execute(["--root", str(root), *verb, *words])
    assert not (root / LIST_FILE).exists()


def test_a_root_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    for verb in ("check", "plan", "scan"):
        with pytest.raises(UsageError, match="has no folder sys"):
            execute(["--root", str(tmp_path / "nowhere"), verb])


def test_a_machine_without_gpus_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Sysfs().function("41:00.0", "8086:1563", "0200"), tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Intel(R) Xeon(R)\n")
    assert execute(["--root", str(tmp_path), "plan"]) == 0
    out = capsys.readouterr().out
    assert out == "nothing to give away: there is no GPU on the PCI bus; gpuyard host check says more\n"


def test_a_bus_that_cannot_be_read_is_no_machine_without_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sys").mkdir()
    assert execute(["--root", str(tmp_path), "plan"]) == 3
    assert "refused: no PCI function is to be seen" in capsys.readouterr().out


FIELDS = {"code", "severity", "object", "reason", "remedy", "payload"}


@pytest.mark.parametrize("verb", ["check", "verify"])
def test_findings_have_the_same_fields_everywhere(answer: Answer, root: Path, verb: str) -> None:
    code, (result,) = answer(verb)
    shown = CliRunner().invoke(app, ["host", verb, "--root", str(root), "-f", "json"])
    assert json.loads(shown.stdout) == result["findings"]
    assert shown.exit_code == code
    assert {key for finding in result["findings"] for key in finding} == FIELDS


def test_findings_of_many_hosts_are_one_list_with_the_host_as_object() -> None:
    finding = Finding("iommu", Severity.OK, "", "the IOMMU is on")
    good = Outcome("gpu1", Ending.DONE, 0, result={"findings": [finding.as_dict()]})
    assert findings_of(good) == [replace(finding, object="gpu1")]
    (lost,) = findings_of(Outcome("gpu2", Ending.UNREACHABLE, 1, "no route to host"))
    assert (lost.code, lost.object, lost.reason) == ("no-answer", "gpu2", "unreachable: no route to host")
    (failed,) = findings_of(Outcome("gpu3", Ending.DONE, 1, "broken", {"error": "broken"}))
    assert failed.severity is Severity.ERROR


@pytest.mark.parametrize("made_up", [[{}], [1], 7, [{"code": "x", "severity": "fatal"}], {"a": 1}])
def test_what_a_host_makes_up_is_no_traceback(made_up: object) -> None:
    (finding,) = findings_of(Outcome("gpu1", Ending.DONE, 0, result={"findings": made_up}))
    assert finding.code == "no-answer"


CHECKS = {
    "in the file that goes to hosts": "from gpuyard.host.__main__ import main; main(['--root', root, 'check'])",
    "as a command": "from typer.testing import CliRunner; from gpuyard.cli.main import app\n"
    "CliRunner().invoke(app, ['host', 'check', '--root', root])",
}


@pytest.mark.parametrize("call", CHECKS.values(), ids=CHECKS)
def test_a_check_imports_nothing_that_only_others_need(root: Path, call: str) -> None:
    """The file that goes to hosts has no bytecode, and is compiled at each call."""
    program = f"import sys\nroot = sys.argv[1]\n{call}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "gpuyard.host.checks" in modules
    of_others = {"recording", "standing", "scrub", "watch_loop", "portal_client", "network", "fleet", "report"}
    of_others |= {"preparation.plan", "preparation.preparation", "preparation.apply", "checks.prepared"}
    assert not modules & ({f"gpuyard.host.{name}" for name in of_others} | {"gpuyard.client.rows", "openstack"})
    assert not modules & {"http.client", "ssl"}


def test_a_recording_without_a_gpu_says_so(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare/sys/bus/pci/devices").mkdir(parents=True)
    for bare, warns in ((tmp_path / "bare", True), (root, False)):
        assert main(["--root", str(bare), "record", "-o", str(tmp_path / "on-the-host.json")]) == 0
        written = CliRunner().invoke(app, ["host", "record", "-o", str(tmp_path / "out.json"), "--root", str(bare)])
        assert written.exit_code == 0
        for said in (capsys.readouterr().err, written.stderr):
            assert ("there is no GPU in this recording" in said) == warns
