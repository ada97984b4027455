"""The fleet over a real OpenSSH server on the loopback: what works, and every way in which a host can fail."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.host import fleet
from gpuyard.host.fleet import Ending, Event, FleetOptions, Outcome, Progress
from tests.support import sshd, zipapps

NAMES = ["gpu1", "gpu2", "gpu3"]

SAYS_WHERE = """
import json, os, sys, tempfile
def main():
    print("a line of the host's own")
    print(json.dumps({"event": "step", "done": 1, "of": 2, "text": "halfway"}), flush=True)
    seen = {"arguments": sys.argv[1:], "uid": os.getuid(), "cwd": os.getcwd(), "python": sys.executable}
    seen["places"] = [os.environ["HOME"], tempfile.gettempdir()]
    print(json.dumps({"event": "result", "exit": 3, **seen}))
    return 3
"""
HANGS = """
import json, os, time
def main():
    print(json.dumps({"event": "step", "done": 1, "of": 2, "text": "unbind"}), flush=True)
    if "gpu2" == os.environ["HOST_ALIAS"]:
        while True:  # ends with the connection
            print("still here", flush=True)
            time.sleep(0.1)
    print(json.dumps({"event": "result", "exit": 0}))
"""

BREAKS_OFF = """
import os, pathlib, signal, time
def main():
    above = os.getppid()
    while not pathlib.Path(f"/proc/{above}/comm").read_text().startswith("sshd"):
        above = int(pathlib.Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(above, signal.SIGKILL)
    time.sleep(1)
"""
OLD_PYTHON = """#!/bin/sh
exec {real} -IB -c 'import sys; sys.version_info = (3, 6, 8); exec(sys.argv.pop(1))' "$3"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    if why := sshd.missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    with sshd.running(tmp_path_factory.mktemp("sshd"), NAMES) as running:
        yield running


@pytest.fixture
def options(server: sshd.Sshd) -> FleetOptions:
    return FleetOptions(ssh=server.ssh, python=sys.executable, seconds=60, connect_seconds=5)


def one(options: FleetOptions, zipapp: bytes | None = None, *verb: str) -> Outcome:
    return fleet.run(["gpu1"], verb or ["scan"], options, zipapp=zipapp)["gpu1"]


def test_a_verb_runs_on_every_host_and_tells_how_it_goes(options: FleetOptions, tmp_path: Path) -> None:
    events: list[Event] = []
    zipapp = zipapps.with_main(tmp_path, SAYS_WHERE)
    outcomes = fleet.run([*NAMES, "gpu1"], ["check", "--note", "it's $HOME"], options, events.append, zipapp)
    assert list(outcomes) == NAMES
    assert fleet.worst(outcomes) == 3
    for host, outcome in outcomes.items():
        assert (outcome.ending, outcome.exit, outcome.reason) == (Ending.DONE, 3, "")
        assert outcome.result["arguments"] == ["check", "--note", "it's $HOME"]
        assert outcome.noise == ("a line of the host's own",)
        steps = [Progress(host, "connecting"), Progress(host, "connected"), Progress(host, "halfway", 1, 2)]
        assert [event for event in events if event.host == host] == [*steps, outcome]


def test_the_real_zipapp_checks_a_host(options: FleetOptions) -> None:
    """Which is this machine: whatever it has, there is an answer about its GPUs."""
    outcome = one(options, None, "check", "--json")
    assert outcome.ending is Ending.DONE, outcome
    assert "gpus" in [finding["code"] for finding in outcome.result["findings"]]
    usage = one(options, None, "check", "--colour")
    assert (usage.ending, usage.exit) == (Ending.FAILED, 1)
    assert "unrecognized arguments: --colour" in usage.reason


def test_nothing_stays_behind(options: FleetOptions, tmp_path: Path) -> None:
    """Files that a run would leave are in the home folder or the folder for temporary files."""
    places = [tmp_path / "home", tmp_path / "temporary"]
    for folder in (*places, tmp_path / "server"):
        folder.mkdir()
    with sshd.running(tmp_path / "server", ["gpu1"], "SetEnv HOME={} TMPDIR={}\n".format(*places)) as server:
        outcome = one(replace(options, ssh=server.ssh), zipapps.with_main(tmp_path, SAYS_WHERE))
    assert (outcome.ending, outcome.result["places"]) == (Ending.DONE, [str(folder) for folder in places])
    assert [os.listdir(folder) for folder in places] == [[], []]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh"])
def test_every_login_shell_hands_the_words_on(shell: str, options: FleetOptions, tmp_path: Path) -> None:
    if not (path := shutil.which(shell)):
        pytest.skip(f"no {shell} here")
    words = ["--note", 'it\'s "x" $HOME `id` * ~ ; a\\b', ""]
    with sshd.running(tmp_path, ["gpu1"], f'ForceCommand exec {path} -c "$SSH_ORIGINAL_COMMAND"\n') as server:
        outcome = one(replace(options, ssh=server.ssh), zipapps.with_main(tmp_path, SAYS_WHERE), *words)
    assert outcome.result["arguments"] == words


def test_sudo(options: FleetOptions, tmp_path: Path) -> None:
    if not shutil.which("sudo") or os.geteuid():
        pytest.skip("needs sudo, and to be root so that it asks for no password")
    assert one(replace(options, sudo=True), zipapps.with_main(tmp_path, SAYS_WHERE)).result["uid"] == 0
    outcome = one(replace(options, sudo=True, python="no-such-python"))
    assert (outcome.ending, outcome.exit) == (Ending.NO_PYTHON, 1)


def test_a_host_that_hangs_blocks_nobody(options: FleetOptions, tmp_path: Path) -> None:
    """Not even when there is room for one at a time only: its time runs out and the next one has its turn."""
    zipapp = zipapps.with_main(tmp_path, HANGS)
    outcomes = fleet.run(NAMES, ["apply"], replace(options, seconds=3, at_once=1), zipapp=zipapp)
    assert [outcome.ending for outcome in outcomes.values()] == [Ending.DONE, Ending.TIMED_OUT, Ending.DONE]
    assert outcomes["gpu2"].reason == "no result after 3 s; it was at: unbind"
    assert outcomes["gpu2"].noise[-1] == "still here"
    assert 3 <= outcomes["gpu2"].seconds < 10


def test_a_silent_port_and_a_closed_one(options: FleetOptions, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {"silent": silent.getsockname()[1], "closed": sshd.free_port()}
        blocks = "".join(f"Host {name}\n    Port {port}\n" for name, port in ports.items())
        (tmp_path / "config").write_text(blocks + Path(options.ssh[-1]).read_text())
        options = replace(options, ssh=("ssh", "-F", str(tmp_path / "config")), connect_seconds=2)
        outcomes = fleet.run(["silent", "gpu1", "closed", "no-such-host.invalid"], ["scan"], options)
    assert [outcome.ending for outcome in outcomes.values()].count(Ending.UNREACHABLE) == 3
    assert "timed out" in outcomes["silent"].reason
    assert "Connection refused" in outcomes["closed"].reason
    assert outcomes["gpu1"].ending is not Ending.UNREACHABLE


def test_a_jump_host_of_the_configuration(options: FleetOptions, tmp_path: Path) -> None:
    """And its helper process ends when the time is up."""
    config = tmp_path / "config"
    config.write_text("Host gpu1\n    ProxyJump gpu2\n" + Path(options.ssh[-1]).read_text())
    options = replace(options, ssh=("ssh", "-F", str(config)))
    assert one(options, zipapps.with_main(tmp_path / "says", SAYS_WHERE)).exit == 3
    zipapp = zipapps.with_main(tmp_path / "hangs", HANGS.replace("gpu2", "gpu1"))
    assert one(replace(options, seconds=4), zipapp).ending is Ending.TIMED_OUT
    assert str(config) not in subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout


def test_a_master_connection_of_the_users_stays_his(options: FleetOptions, tmp_path: Path) -> None:
    control = f"ControlMaster=auto,ControlPersist=30,ControlPath={tmp_path}/%n".split(",")
    options = replace(options, ssh=(*options.ssh, *(word for setting in control for word in ("-o", setting))))
    zipapp = zipapps.with_main(tmp_path, SAYS_WHERE)
    try:
        assert [one(options, zipapp).exit for _ in range(2)] == [3, 3]
        assert (tmp_path / "gpu1").is_socket()
    finally:
        subprocess.run([*options.ssh, "-O", "exit", "gpu1"], check=True, capture_output=True)


def test_a_key_that_is_not_let_in_and_a_host_key_that_is_not_known(options: FleetOptions, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "user_key"], check=True)
    (tmp_path / "config").write_text(
        re.sub("IdentityFile .*", f"IdentityFile {tmp_path}/user_key", Path(options.ssh[-1]).read_text())
    )
    refused = one(replace(options, ssh=("ssh", "-F", str(tmp_path / "config"))))
    assert (refused.ending, refused.exit) == (Ending.REFUSED, 1)
    assert "Permission denied" in refused.reason
    unknown = one(replace(options, ssh=(*options.ssh, "-o", "UserKnownHostsFile=none")))
    assert unknown.ending is Ending.REFUSED
    assert "host key is unknown" in unknown.reason


def test_no_python(options: FleetOptions, tmp_path: Path) -> None:
    missing = one(replace(options, python="/no/python3"))
    assert missing.ending is Ending.NO_PYTHON
    assert "/no/python3" in missing.reason
    old = tmp_path / "old python"
    old.write_text(OLD_PYTHON.format(real=sys.executable))
    old.chmod(0o755)
    outcome = one(replace(options, python=str(old)))
    assert outcome.ending is Ending.NO_PYTHON
    assert outcome.reason == f"{old} is 3.6.8 there, 3.9 or newer is needed: name another one"


@pytest.mark.parametrize(
    ("main", "reason"),
    [
        ("def main():\n    return {}['gpu']\n", "KeyError: 'gpu'"),
        ("import sys\ndef main():\n    sys.exit('gpuyard-host: no such GPU')\n", "gpuyard-host: no such GPU"),
        ("import os\ndef main():\n    os.kill(os.getpid(), 9)\n", "a signal ended it there"),
        ("main = int\n", "ended with 0"),
    ],
)
def test_a_verb_that_ends_without_a_result(main: str, reason: str, options: FleetOptions, tmp_path: Path) -> None:
    outcome = one(options, zipapps.with_main(tmp_path, main))
    assert (outcome.ending, outcome.exit) == (Ending.FAILED, 1)
    assert reason in outcome.reason


def test_a_connection_that_breaks(options: FleetOptions, tmp_path: Path) -> None:
    outcome = one(options, zipapps.with_main(tmp_path, BREAKS_OFF))
    assert outcome.ending is Ending.UNREACHABLE, outcome
    assert outcome.reason == "the connection broke: Connection to 127.0.0.1 closed by remote host."


def test_what_is_interrupted_leaves_no_ssh_running(options: FleetOptions, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(Path(options.ssh[-1]).read_text())

    def interrupt(event: Event) -> None:
        if event == Progress("gpu2", "unbind", 1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.run(
            ["gpu2"],
            ["apply"],
            replace(options, ssh=("ssh", "-F", str(config))),
            interrupt,
            zipapps.with_main(tmp_path, HANGS),
        )
    assert str(config) not in subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
