"""The steps of a deployment, run with a stand-in for kolla-ansible that records its calls and fails on demand."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuyard.deployment.kolla.ansible_output import Failure, OutputReader, Redactor, secrets_in
from gpuyard.deployment.kolla.deploy import Wish, all_steps, chosen, wrong_release
from gpuyard.model.errors import UsageError
from tests.support.kolla import kolla_folder
from tests.support.sites import write_site

STAND_IN = """\
#!{python}
import json, os, signal, sys, time
words = sys.argv[1:]
if words == ["--version"]:
    print(os.environ.get("VERSION", "kolla-ansible 22.0.0"))
    sys.exit(0)
with open({calls!r}, "a") as calls:
    print(json.dumps(words), file=calls)
wanted = os.environ.get("FAIL", "")
print("PLAY [Apply role nova-cell] *****")
print("TASK [nova-cell : Copying over nova.conf] *****", flush=True)
print("the password is secret-of-nova")
if wanted and wanted in words:
    print('fatal: [gpu1]: FAILED! => {{"changed": false, "msg": "no template, secret-of-nova"}}')
    print("PLAY RECAP *****")
    sys.exit(2)
if os.environ.get("WAIT"):
    signal.signal(signal.SIGINT, lambda *_: (print("ERROR! User interrupted execution"), sys.exit(99)))
    open({calls!r} + ".waiting", "w").close()
    time.sleep(60)
"""


@dataclass(frozen=True)
class Place:
    """A site, a Kolla folder that is rendered for it, and the stand-in."""

    folder: Path

    @property
    def kolla(self) -> Path:
        return self.folder / "etc"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "gpuyard.cli.main", "site"]

    @property
    def options(self) -> list[str]:
        return ["--site", str(self.folder / "site.yaml"), "--kolla", str(self.kolla)]

    @property
    def deploy_words(self) -> list[str]:
        program, logs = str(self.folder / "bin/kolla-ansible"), str(self.folder / "logs")
        return [*self.command, "deploy", *self.options, "--kolla-ansible", program, "--logs", logs]

    def deploy(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        return subprocess.run([*self.deploy_words, *words], capture_output=True, text=True, env=environment)

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def logs(self) -> list[Path]:
        return sorted((self.folder / "logs").glob("*.log"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    document = {
        "site": "test",
        "release": "2026.1",
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"v100": {"models": ["10de:1db4"]}},
    }
    write_site(tmp_path, json.dumps(document))
    kolla_folder(tmp_path / "etc")
    (tmp_path / "etc/passwords.yml").write_text("nova_keystone_password: secret-of-nova\nshort: abc\n")
    program = tmp_path / "bin/kolla-ansible"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, calls=str(tmp_path / "calls")))
    program.chmod(0o755)
    place = Place(tmp_path)
    subprocess.run([*place.command, "render", *place.options], check=True, capture_output=True)
    return place


def set_stage(place: Place, stage: str) -> None:
    path = place.folder / "site.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pci_in_placement": stage}))
    subprocess.run([*place.command, "render", *place.options], check=True, capture_output=True)


def verbs(calls: list[list[str]]) -> list[str]:
    return [call[0] for call in calls]


def test_what_schedules_comes_before_hypervisors(place: Place) -> None:
    done = place.deploy("--yes")
    assert done.returncode == 0, done.stderr
    config = ["--configdir", str(place.kolla)]
    assert place.calls() == [
        ["prechecks", *config, "--tags", "nova,placement"],
        ["reconfigure", *config, "--tags", "placement"],
        ["reconfigure", *config, "--tags", "nova", "--limit", place.calls()[2][-1]],
        ["reconfigure", *config, "--tags", "nova-cell", "--limit", "compute"],
    ]
    assert place.calls()[2][-1].split(",")[:3] == ["nova-api", "nova-metadata", "nova-scheduler"]
    assert "[4/4] computes: done in 0:0" in done.stdout


def test_a_failure_stops_there_with_ansibles_reason_and_the_way_on(place: Place) -> None:
    done = place.deploy("--yes", "--limit", "gpu[1:2]", FAIL="nova-cell")
    assert done.returncode == 1
    assert verbs(place.calls()) == ["prechecks", "reconfigure"]
    assert "  gpu1: nova-cell : Copying over nova.conf: no template, *****\n" in done.stdout
    assert "\ngpuyard: step computes failed (exit code 2)" in done.stderr
    assert done.stderr.endswith("--limit 'gpu[1:2]' --from computes\n")
    again = place.deploy("--yes", "--limit", "gpu[1:2]", "--from", "computes")
    assert again.returncode == 0
    assert place.calls()[2][3:] == ["--tags", "nova-cell", "--limit", "gpu[1:2]"]
    assert verbs(place.calls()[2:]) == ["reconfigure"]


@pytest.mark.parametrize("stage", ["on", "off"])
def test_a_limit_keeps_from_the_rest_of_the_cloud_and_says_what_remains(place: Place, stage: str) -> None:
    set_stage(place, stage)
    done = place.deploy("--yes", "--limit", "gpu-server")
    assert done.returncode == 0, done.stderr
    config = ["--configdir", str(place.kolla)]
    assert place.calls() == [
        ["prechecks", *config, "--tags", "nova,placement"],
        ["reconfigure", *config, "--tags", "nova-cell", "--limit", "gpu-server"],
    ]
    lines = [line for line in done.stdout.splitlines() if line.startswith("not in this run, because of --limit: ")]
    assert len(lines) == (2 if stage == "on" else 4)  # before the question, and at the end
    remaining = [line.partition("limit: ")[2].split(": gpuyard ")[0] for line in lines[: len(lines) // 2]]
    assert (
        remaining
        == {
            "on": ["placement, control-plane; before the hypervisors"],
            "off": ["placement; before the hypervisors", "control-plane; when all hypervisors are done"],
        }[stage]
    )
    for line in lines[: len(lines) // 2]:
        words = shlex.split(line.partition(": gpuyard site deploy ")[2])
        assert "--limit" not in words
        again = subprocess.run([*place.command, "deploy", *words, "--yes"], capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
    assert [call[call.index("--tags") + 1] for call in place.calls()[2:]] == ["placement", "nova"]


def test_a_step_that_is_named_runs_with_a_limit_too(place: Place) -> None:
    done = place.deploy("--yes", "control-plane", "computes", "--limit", "gpu-server")
    assert done.returncode == 0, done.stderr
    assert [call[-3] for call in place.calls()] == ["nova", "nova-cell"]
    assert "not in this run" not in done.stdout


def test_named_steps_go_on_with_what_is_left_of_them(place: Place) -> None:
    set_stage(place, "off")
    done = place.deploy("--yes", "prechecks", "computes", "--limit", "gpu-server", FAIL="nova-cell")
    assert "go on with: gpuyard site deploy computes --site " in done.stderr
    assert "--from" not in done.stderr


def test_secrets_are_in_no_output_and_no_arguments_and_logs_are_ours_alone(place: Place) -> None:
    done = place.deploy("--yes", "control-plane", "computes", FAIL="nova-cell")
    logs = place.logs()
    assert [path.name.split("-", 2)[2] for path in logs] == ["1-control-plane.log", "2-computes.log"]
    assert "secret-of-nova" not in done.stdout + done.stderr + "".join(path.read_text() for path in logs)
    assert "secret-of-nova" not in json.dumps(place.calls())
    assert "the password is *****" in logs[0].read_text()
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}


def test_a_new_cloud_gets_everything(place: Place) -> None:
    assert place.deploy("--yes", "--full").returncode == 0
    assert verbs(place.calls()) == ["bootstrap-servers", "prechecks", "deploy", "post-deploy"]


def test_nothing_runs_before_the_folder_is_rendered(place: Place) -> None:
    (place.kolla / "config/nova.conf").unlink()
    done = place.deploy("--yes")
    assert done.returncode == 3
    command = f"run: gpuyard site render --site {place.folder / 'site.yaml'} --kolla {place.kolla}\n"
    assert done.stderr.endswith(command)
    assert place.calls() == []


def test_a_log_that_cannot_be_written_is_named(place: Place) -> None:
    (place.folder / "file").write_text("")
    done = place.deploy("--yes", "--logs", str(place.folder / "file" / "below"))
    assert (done.returncode, place.calls()) == (2, [])
    assert "cannot be written: Not a directory; name a folder for the output with --logs" in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "code", "said"),
    [
        ((), {}, 2, "nobody answered"),
        (("--yes",), {"VERSION": "kolla-ansible 20.6.0"}, 3, "deploys OpenStack 2025.1"),
        (("--yes", "nonsense"), {}, 2, "there are prechecks, placement, control-plane, computes"),
        (("--yes", "computes", "--from", "computes"), {}, 2, "not both"),
        (("--yes", "--full", "--tags", "nova"), {}, 2, "leave --tags out"),
        (("--yes", "--limit", "gpu1", "--tags", "placement"), {}, 2, "there is no step computes with these tags"),
        (("--yes", "--limit", "gpu1", "--from", "placement"), {}, 2, "step placement is for the whole cloud"),
        (("--yes", "--limit", "gpu1", "--from", "nonsense"), {}, 2, "there is no step 'nonsense'"),
        (("--yes", "--kolla-ansible", "/nowhere/kolla-ansible"), {}, 2, "is not there"),
        (("--yes", "--inventory", "/nowhere/hosts"), {}, 2, "no such inventory"),
    ],
)
def test_what_stands_in_the_way_is_said_before_anything_runs(
    place: Place, words: tuple[str, ...], variables: dict[str, str], code: int, said: str
) -> None:
    done = place.deploy(*words, **variables)
    assert (done.returncode, place.calls()) == (code, [])
    assert said in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_goes_on_to_kolla_ansible_and_is_reported(place: Place, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [*place.deploy_words, "--yes"], stdout=subprocess.PIPE, text=True, env={**os.environ, "WAIT": "1"}
    )
    deadline = time.monotonic() + 30
    while not (place.folder / "calls.waiting").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    text, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "[1/4] prechecks: interrupted after 0:0" in text
    assert text.rstrip().endswith("--from prechecks")
    assert len(place.calls()) == 1
    assert ("User interrupted" in place.logs()[0].read_text()) is (number == signal.SIGINT)


def test_tags_choose_the_services(tmp_path: Path) -> None:
    def names(tags: str) -> list[str]:
        return [step.name for step in all_steps(Wish(tmp_path, tags=tags), "compute")]

    assert names("placement") == ["prechecks", "placement"]
    assert names("nova") == ["prechecks", "control-plane", "computes"]
    assert names("nova,neutron,placement") == ["prechecks", "neutron-placement", "control-plane", "computes"]
    assert all_steps(Wish(tmp_path), "hypervisors")[-1].words[-1] == "hypervisors"


def test_until_placement_decides_hypervisors_come_first(tmp_path: Path) -> None:
    steps = all_steps(Wish(tmp_path, placement_decides=False), "compute")
    assert [step.name for step in steps] == ["prechecks", "placement", "computes", "control-plane"]


def test_steps_run_in_their_order_however_they_are_named(tmp_path: Path) -> None:
    steps = all_steps(Wish(tmp_path), "compute")
    assert [step.name for step in chosen(steps, ["control-plane", "prechecks"])] == ["prechecks", "control-plane"]
    with pytest.raises(UsageError, match="there is no step 'x'"):
        chosen(steps, [], "x")


def test_releases() -> None:
    assert wrong_release("kolla-ansible 22.0.0", "2026.1") == ""
    assert "deploys OpenStack 2025.2" in wrong_release("kolla-ansible 21.3.0", "2026.1")
    assert wrong_release("kolla-ansible 0.0.0.dev1", "2026.1") == ""


def read(text: str) -> OutputReader:
    reader = OutputReader()
    for line in text.splitlines():
        reader.feed(line)
    return reader


def test_reasons_in_what_ansible_prints() -> None:
    text = """\
PLAY [x] ***
TASK [nova : Start] ****
ok: [a]
fatal: [a]: FAILED! => {"msg": "ignored"}
...ignoring
failed: [b] (item=nova-api) => {"item": "nova-api", "msg": "non-zero return code", "stderr": "one\\ntwo"}
fatal: [c]: UNREACHABLE! => {"changed": false, "msg": "Failed to connect to the host via ssh: no route"}
fatal: [d -> e]: FAILED! => {
    "changed": false,
    "msg": "many\\nlines"
}
RUNNING HANDLER [nova : Restart] ****
fatal: [f]: FAILED! => not JSON
fatal: [g]: FAILED! => {"msg": "'Traceback (most recent call last):\\\\nKeyError: 1\\\\nDuring\\\\nValueError: 2\\\\n'"}
"""
    start, restart = "nova : Start", "nova : Restart"
    assert read(text).why() == (
        Failure("b", f"{start} (item nova-api)", "non-zero return code: one two"),
        Failure("c", start, "Failed to connect to the host via ssh: no route"),
        Failure("d -> e", start, "many lines"),
        Failure("f", restart, "not JSON"),
        Failure("g", restart, "KeyError: 1; ValueError: 2"),
    )


def test_reasons_outside_of_tasks() -> None:
    assert str(read("ERROR! the role 'x' was not found\nmore").why()[0]) == "the role 'x' was not found"
    assert str(read("[ERROR]: couldn't resolve module\n").why()[0]) == "couldn't resolve module"
    assert str(read("something\nelse went wrong\n\n").why()[0]) == "else went wrong"
    assert read("").why() == ()


def test_secrets_are_found_in_passwords_however_they_are_written() -> None:
    text = (
        "a: long-enough\nb: short\nc:\n"
        "key:\n  private: |\n    -----BEGIN-----\n    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
    )
    redact = Redactor(secrets_in(text))
    shown = redact("long-enough short -----BEGIN-----\\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    assert shown == "***** short *****"
    assert redact("x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa") == "x *****"
    assert secrets_in("$ANSIBLE_VAULT;1.1;AES256\n6162\n") == ("$ANSIBLE_VAULT;1.1;AES256 6162",)
    assert secrets_in("a: [") == ()
