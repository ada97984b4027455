"""What a host says is not trusted, and every way to fail has its name. integration/test_ssh.py has the real thing."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.host import fleet
from gpuyard.host.fleet import Ending, FleetOptions, Outcome
from gpuyard.model.errors import GpuyardError, UsageError

PLAIN, SUDO = FleetOptions(), FleetOptions(sudo=True)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ({"event": "start", "python": [3, 11, 2]}, {"event": "start", "python": [3, 11, 2]}),
        ({"event": "step", "done": 1, "of": 2, "text": "a\tb\n"}, {"event": "step", "done": 1, "of": 2, "text": "a b"}),
        (
            {"event": "result", "exit": 3, "more": [{"a\x1b": 1.5}]},
            {"event": "result", "exit": 3, "more": [{r"a\x1b": 1.5}]},
        ),
        (
            {"event": "result", "exit": 0, "diff": "-a\n+\tb\x07"},
            {"event": "result", "exit": 0, "diff": "-a\n+\tb\\x07"},
        ),
        ({"event": "start", "python": "3.11"}, None),
        ({"event": "start", "python": []}, None),
        ({"event": "step", "done": "1", "of": 2, "text": ""}, None),
        ({"event": "step", "done": 1, "of": 2}, None),
        ({"event": "result"}, None),
        ({"event": "result", "exit": True}, None),
        ({"event": "result", "exit": 256}, None),
        ({"event": ["result"], "exit": 0}, None),
        ({"exit": 0}, None),
        ([1], None),
    ],
)
def test_only_whole_events_are_taken(line: object, event: object) -> None:
    assert fleet.parse_event(json.dumps(line).encode()) == event


@given(st.binary())
def test_anything_else_is_no_event(line: bytes) -> None:
    assert fleet.parse_event(line) is None


def test_a_line_that_is_nested_too_deeply_is_no_event() -> None:
    assert fleet.parse_event(b'{"event": "result", "exit": 0, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}") is None


@pytest.mark.parametrize(
    ("status", "python", "said", "options", "ending", "reason"),
    [
        (
            255,
            None,
            "ssh: connect to host a port 22: Connection refused",
            PLAIN,
            Ending.UNREACHABLE,
            "Connection refused",
        ),
        (
            255,
            None,
            "ssh: Could not resolve hostname a: Name or service not known",
            PLAIN,
            Ending.UNREACHABLE,
            "resolve",
        ),
        (255, None, "", PLAIN, Ending.UNREACHABLE, "ended with 255"),
        (
            255,
            (3, 11, 2),
            "Timeout, server a not responding.",
            PLAIN,
            Ending.UNREACHABLE,
            "the connection broke: Timeout",
        ),
        (255, (3, 11, 2), "", PLAIN, Ending.FAILED, "a signal ended it there"),
        (255, None, "a@b: Permission denied (publickey).", PLAIN, Ending.REFUSED, "a key that needs no password"),
        (255, None, "Host key verification failed.", PLAIN, Ending.REFUSED, "host key"),
        (1, None, "sudo: a password is required", SUDO, Ending.REFUSED, "sudo without a password"),
        (1, None, "sudo: a password is required", PLAIN, Ending.FAILED, "password"),
        (1, None, "sudo: python3: command not found", SUDO, Ending.NO_PYTHON, "install Python"),
        (127, None, "sh: 1: python3: not found", PLAIN, Ending.NO_PYTHON, "install Python"),
        (126, None, "bash: line 1: /tmp/python: Permission denied", PLAIN, Ending.NO_PYTHON, "install Python"),
        (1, (3, 6, 8), "", PLAIN, Ending.NO_PYTHON, "python3 is 3.6.8 there"),
        (1, (3, 9, 2), "Traceback:\nKeyError: 'x'", PLAIN, Ending.FAILED, "KeyError: 'x'"),
        (127, (3, 9, 2), "grubby: command not found", PLAIN, Ending.FAILED, "grubby"),
        (-9, (3, 9, 2), "", PLAIN, Ending.FAILED, "signal 9"),
    ],
)
def test_why_there_is_no_result(
    status: int, python: tuple[int, ...] | None, said: str, options: FleetOptions, ending: Ending, reason: str
) -> None:
    explanation = fleet.explain(status, python, said.splitlines(), [], options)
    assert explanation[0] is ending
    assert reason in explanation[1]


@pytest.mark.parametrize("host", ["gpu1", "root@gpu1.example.org", "a@b@gpu1", "::1", "u@fe80::1%eth0", "10.0.0.1"])
def test_what_ssh_may_be_given(host: str) -> None:
    assert fleet.HOST_NAME.fullmatch(host)


@pytest.mark.parametrize("host", ["-oProxyCommand=id", "a@-oProxyCommand=id", "a b", "", "a;id", "$(id)", "gpu1\n"])
def test_what_ssh_must_not_see(host: str) -> None:
    with pytest.raises(UsageError, match="no host that ssh can be given"):
        fleet.run(["gpu1", host], ["scan"])


def test_without_ssh_the_reason_is_said() -> None:
    with pytest.raises(GpuyardError, match="cannot start /no/ssh: No such file or directory; the OpenSSH client"):
        fleet.run(["gpu1"], ["scan"], FleetOptions(ssh=("/no/ssh",)))


def test_the_users_options_come_before_ours() -> None:
    command = fleet.command("gpu1", ["scan"], FleetOptions(ssh=("ssh", "-o", "ConnectTimeout=1"), sudo=True))
    assert command.index("ConnectTimeout=1") < command.index("ConnectTimeout=10") < command.index("--")
    assert command[-2] == "gpu1"
    assert command[-1].startswith("sudo -n python3 -IB -c ")


def test_an_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nhead -c 60000000 /dev/zero | tr '\\0' x\necho >&2 done\nexit 1\n")
    program.chmod(stat.S_IRWXU)
    outcome = fleet.run(["gpu1"], ["scan"], FleetOptions(ssh=(str(program),)))["gpu1"]
    assert (outcome.ending, outcome.reason) == (Ending.FAILED, "done")
    assert [len(line) for line in outcome.noise] == [fleet.NOISE_WIDTH, len("done")]


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0, 0], 0), ([0, 3], 3), ([3, 2], 2), ([3, 1, 2], 1), ([1, 9], 9)]
)
def test_the_worst_exit_code(codes: list[int], code: int) -> None:
    assert fleet.worst({str(i): Outcome(str(i), Ending.DONE, exit_code) for i, exit_code in enumerate(codes)}) == code


SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "begin $2" >> {log}
[ $2 = slow ] && sleep 0.5
sleep 0.05
echo "end $2" >> {log}
code=0
case $2 in bad*) code=1 ;; blocked*) code=3 ;; esac
echo "{{\\"event\\": \\"result\\", \\"exit\\": $code}}"
exit $code
"""


@pytest.fixture
def ssh(tmp_path: Path) -> FleetOptions:
    """Hosts named bad... fail, blocked... are blocked, and slow takes its time; `log` beside it has who was at work."""
    program = tmp_path / "ssh"
    program.write_text(SSH.format(log=tmp_path / "log"))
    program.chmod(stat.S_IRWXU)
    return FleetOptions(ssh=(str(program),), at_once=2, stop=True)


def at_work(options: FleetOptions) -> list[str]:
    return Path(options.ssh[0]).with_name("log").read_text().splitlines()


def test_the_canary_is_first_and_alone(ssh: FleetOptions) -> None:
    outcomes = fleet.run(["a", "b", "slow", "c"], ["apply"], replace(ssh, canary="slow"), zipapp=b"")
    assert list(outcomes) == ["a", "b", "slow", "c"], "as they were named"
    assert {outcome.ending for outcome in outcomes.values()} == {Ending.DONE}
    assert at_work(ssh)[:2] == ["begin slow", "end slow"]


@pytest.mark.parametrize(("canary", "code"), [("bad", 1), ("blocked", 3)])
def test_after_a_canary_that_fails_no_host_begins(ssh: FleetOptions, canary: str, code: int) -> None:
    events: list[object] = []
    options = replace(ssh, canary=canary, stop=False)
    outcomes = fleet.run(["a", "b", canary], ["apply"], options, events.append, zipapp=b"")
    assert at_work(ssh) == [f"begin {canary}", f"end {canary}"]
    assert [outcomes[name].ending for name in ("a", "b")] == [Ending.NOT_TRIED] * 2
    assert outcomes["a"].reason == f"stopped after {canary} failed"
    assert fleet.worst(outcomes) == code
    assert sum(isinstance(event, Outcome) for event in events) == 3


def test_after_one_fails_none_begins_and_those_at_work_end(ssh: FleetOptions) -> None:
    outcomes = fleet.run(["slow", "bad", "a", "b"], ["apply"], ssh, zipapp=b"")
    assert [outcome.ending for outcome in outcomes.values()] == [
        Ending.DONE,
        Ending.DONE,
        Ending.NOT_TRIED,
        Ending.NOT_TRIED,
    ]
    assert at_work(ssh)[-1] == "end slow"


def test_whoever_wants_goes_on(ssh: FleetOptions) -> None:
    outcomes = fleet.run(["bad", "a", "b"], ["apply"], replace(ssh, stop=False), zipapp=b"")
    assert [outcome.exit for outcome in outcomes.values()] == [1, 0, 0]


@given(
    codes=st.lists(st.sampled_from([0, 0, 0, 1, 3]), min_size=1, max_size=5),
    canary=st.integers(-1, 4),
    at_once=st.integers(1, 3),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_more_at_once_and_none_after_a_failure(
    ssh: FleetOptions, codes: list[int], canary: int, at_once: int
) -> None:
    Path(ssh.ssh[0]).with_name("log").unlink(missing_ok=True)
    names = [f"{['good', 'bad', '', 'blocked'][code]}{number}" for number, code in enumerate(codes)]
    first = names[canary] if 0 <= canary < len(names) else ""
    outcomes = fleet.run(names, ["apply"], replace(ssh, canary=first, at_once=at_once), zipapp=b"")
    working: set[str] = set()
    for line in at_work(ssh):
        what, name = line.split()
        if what == "begin":
            working.add(name)
        else:
            working.discard(name)
        assert len(working) <= at_once
    begun = [line.split()[1] for line in at_work(ssh) if line.startswith("begin")]
    assert begun[0] == (first or begun[0])
    assert sorted(begun) == sorted(name for name, outcome in outcomes.items() if outcome.ending is Ending.DONE)
    if any(codes):
        code = fleet.worst(outcomes)
        assert code == fleet.worst(
            {name: outcome for name, outcome in outcomes.items() if outcome.ending is Ending.DONE}
        )
    if first and outcomes[first].exit:
        assert begun == [first]


def test_a_canary_must_be_one_of_the_hosts(ssh: FleetOptions) -> None:
    with pytest.raises(UsageError, match="gpu9 is not one of the hosts: a"):
        fleet.run(["a"], ["apply"], replace(ssh, canary="gpu9"), zipapp=b"")
