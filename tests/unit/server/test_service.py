"""The portal as a service: what it tells systemd, how it ends, what its unit forbids it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpuyard.database.engine import parse_url
from gpuyard.database.migrate import migrate
from gpuyard.guest import agent
from gpuyard.host.units import scrub_unit, watch_unit
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.openstack.errors import CloudError
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.server.checking import check_serving
from gpuyard.server.schema_modules import SCHEMA_MODULES
from gpuyard.server.server import DRAIN, FINISH, bind
from gpuyard.server.serving import ServeOptions
from gpuyard.server.units import portal_unit
from gpuyard.web.notify import Manager
from gpuyard.web.settings import PortalSettings
from tests.support.sites import flavor, site
from tests.unit.server.test_portal_server import ROOT, hear, page, running, until

PROGRAM = """
import sys, time
from pathlib import Path
from gpuyard.runtime import control_loops
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, run
from gpuyard.web.notify import Manager
from tests.support.inventories import plain_sources

folder = Path(sys.argv[1])
control_loops.STUCK = 0.5
Driver.stuck.__defaults__ = (0.5,)

def wait_while(name):
    while (folder / name).exists():
        time.sleep(0.02)

def step():
    if (folder / "busy").exists():
        (folder / "in step").touch()
        wait_while("busy")
        (folder / "finished").touch()

driver = Driver()
driver.register(Loop("steps", "", 0.1, step))
app = create_app(plain_sources(driver=driver))

@app.get("/slow")
def slow():
    (folder / "asked").touch()
    wait_while("busy")
    return {"answer": "whole"}

with bind("127.0.0.1", 0) as listener:  # as `serving.serve`, which hands it from one site file to the next
    run(app, driver, listener, "test", manager=Manager())
print("cleaned up", flush=True)
"""


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(10)

    def hear(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes for a time, once what is here already was heard."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(4096)
            return False
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(10)

    def hear_of(self, line: str) -> None:
        while line not in self.hear():
            pass

    def close(self) -> None:
        self._socket.close()


@contextmanager
def process(folder: Path, watchdog: float = 0) -> Iterator[tuple[subprocess.Popen[str], int, Systemd]]:
    with closing(Systemd(folder)) as systemd:
        more = {"NOTIFY_SOCKET": str(systemd.path), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        if watchdog:
            more["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env={**os.environ, **more}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as started:  # fmt: skip
            try:
                assert started.stdout
                line = started.stdout.readline()
                yield started, int(line.split("http://127.0.0.1:")[1].split()[0]), systemd
            finally:
                started.kill()


def test_it_is_ready_when_it_serves_and_says_that_it_stops(tmp_path: Path) -> None:
    with process(tmp_path) as (started, port, systemd):
        assert systemd.hear() == ["READY=1", f"STATUS=serves at http://127.0.0.1:{port}"]
        started.terminate()
        assert systemd.hear()[0] == "STOPPING=1"
        assert started.wait(20) == 0


def test_a_signal_lets_requests_and_loops_finish_and_ends_streams(tmp_path: Path) -> None:
    answers: list[tuple[int, bytes]] = []

    def ask(port: int) -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", "/slow")
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))

    with process(tmp_path) as (started, port, _), closing(page(port)) as stream:
        hear(stream, "event: pulse")
        (tmp_path / "busy").touch()
        asking = threading.Thread(target=ask, args=(port,))
        asking.start()
        until(lambda: (tmp_path / "asked").exists() and (tmp_path / "in step").exists())
        started.send_signal(signal.SIGTERM)
        while stream.recv(65536):
            pass
        until(lambda: refused(port))
        assert not answers, "it is refused while others still get their answers, and not when all is over"
        assert started.poll() is None
        (tmp_path / "busy").unlink()
        asking.join(20)
        assert started.wait(20) == 0
        assert started.stdout
        assert started.stdout.read() == "cleaned up\n"
    assert answers == [(200, b'{"answer":"whole"}')]
    assert (tmp_path / "finished").exists()


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_the_watchdog_is_fed_only_while_loops_go_on(tmp_path: Path) -> None:
    with process(tmp_path, watchdog=0.3) as (started, _, systemd):
        systemd.hear_of("READY=1")
        for _ in range(3):
            systemd.hear_of("WATCHDOG=1")
        assert started.stdout
        (tmp_path / "busy").touch()
        next(line for line in started.stdout if "loops do not go on: steps" in line)
        until(lambda: systemd.quiet(1.0))
        (tmp_path / "busy").unlink()
        until(lambda: (tmp_path / "finished").exists())
        systemd.hear_of("WATCHDOG=1")
        started.terminate()
        assert started.wait(20) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_whose_thread_has_ended_is_stuck() -> None:
    def ends() -> None:
        raise SystemExit

    driver = Driver()
    driver.register(Loop("ends", "", 60.0, ends))
    driver.register(Loop("lives", "", 60.0, lambda: None))
    driver.start()
    until(lambda: driver.stuck() == ["ends"])
    assert driver.stop() == []
    assert driver.stuck() == []


def test_nobody_is_told_without_a_manager(tmp_path: Path) -> None:
    assert Manager({}).watchdog == 0
    assert Manager({"WATCHDOG_USEC": "1000000"}).watchdog == 0
    environment = {"NOTIFY_SOCKET": "@gpuyard-test", "WATCHDOG_USEC": "1000000"}
    assert Manager(environment).watchdog == 1.0
    assert Manager({**environment, "WATCHDOG_PID": "1"}).watchdog == 0
    Manager({}).ready()
    Manager({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(f"\0gpuyard-test-{os.getpid()}")
        Manager({"NOTIFY_SOCKET": f"@gpuyard-test-{os.getpid()}"}).reloading()
        first, second = listener.recv(4096).decode().splitlines()
    assert first == "RELOADING=1"
    assert 0 <= time.monotonic_ns() // 1000 - int(second.removeprefix("MONOTONIC_USEC=")) < 60_000_000


# Units

UNITS = {
    "gpuyard.service": (portal_unit(Path("/opt/gpuyard/bin/gpuyard")), 2.0),
    "gpuyard-watch.service": (watch_unit("https://gpus.example.org", "gpu-1", "", "10s"), 2.0),
    "gpuyard-agent.service": ((Path(agent.__file__).parent / "gpuyard-agent.service").read_text(), 2.0),
    # It resets devices: root, all of /sys, all of /proc. What is left to forbid is little.
    "gpuyard-scrub.service": (scrub_unit("https://gpus.example.org", "gpu-1", ""), 7.1),
}
"""Every unit that serves or that hosts and guests run, and the exposure that it may have. That of runners is not here:
what jobs of strangers run in has nothing that a unit could keep from them."""


@pytest.mark.parametrize("name", UNITS)
def test_units_are_exposed_no_more_than_they_must_be(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        assert os.environ.get("CI") != "true", "apt-get install systemd"
        pytest.skip("no systemd-analyze")
    text, most = UNITS[name]
    (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(tmp_path / name)]
    done = subprocess.run([*command, f"--threshold={round(most * 10)}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_unit_is_what_the_how_to_says() -> None:
    page, text = (ROOT / "docs/how-to/run-as-a-service.md").read_text(), UNITS["gpuyard.service"][0]
    for name in ("LoadCredential=gpuyard:/etc/gpuyard/credentials", "EnvironmentFile=-/etc/default/gpuyard"):
        assert f"\n{name}\n" in text
        assert name.split("=")[-1].lstrip("-").split(":")[-1] in page
    assert "\nExecStart=/opt/gpuyard/bin/gpuyard serve --site /etc/gpuyard/site.yaml $GPUYARD_OPTIONS\n" in text
    stops, feeds = (int(re.findall(rf"^{name}=([0-9]+)$", text, re.M)[0]) for name in ("TimeoutStopSec", "WatchdogSec"))
    assert stops > DRAIN + FINISH, "or systemd would kill what is about to end"
    assert feeds >= 60, "a site file that takes over from another starts no other loop of events for some seconds"
    assert f"RestartPreventExitStatus={UsageError.exit_code}\n" in text


def test_no_unit_is_forgotten() -> None:
    shipped = {path.name for path in (ROOT / "src").rglob("*.service")}
    assert shipped - set(UNITS) == {"gpuyard-runner.service", "gpuyard-image-check.service"}


def test_a_program_that_the_unit_would_not_see_is_refused(tmp_path: Path) -> None:
    for program in ("/root/.local/bin/gpuyard", "/home/ada/bin/gpuyard", "/tmp/gpuyard"):  # noqa: S108
        with pytest.raises(UsageError, match="install gpuyard elsewhere, as in python3 -m venv /opt/gpuyard"):
            portal_unit(Path(program))
    with pytest.raises(UsageError, match="a unit cannot have that"):
        portal_unit(Path("/opt/my %i/gpuyard"))


# --check-config


class Silent:
    """A cloud that does not answer."""

    name, auth_url = "silent", "http://127.0.0.1:9"

    def __getattr__(self, name: str) -> object:
        raise CloudError("the cloud does not answer")


def looked(tmp_path: Path, **more: object) -> tuple[list[str], GpuyardError]:
    """What was said, and what it ended with, of a site with bookings."""
    loaded = site(tmp_path, {"booking": {}, "flavors": {"one": flavor(gpus={"v100": 1})}})
    options = ServeOptions("127.0.0.1", 0, 1.0, f"sqlite:///{tmp_path}/site.db", False, PortalSettings())
    lines: list[str] = []
    with pytest.raises(GpuyardError, match="it cannot serve like this; nothing was changed") as caught:
        check_serving(replace(options, **more), loaded, Silent(), lines.append)  # type: ignore[arg-type]
    return lines, caught.value


def test_all_that_is_wrong_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    lines, error = looked(tmp_path)
    assert [line.split(":")[:2] for line in lines[1:]] == [
        ["ok", " options"], ["ok", " secrets"], ["ok", " database"], ["wrong", " cloud"], ["ok", " port"],
    ]  # fmt: skip
    assert lines[3] == "ok: database: will be made when it starts"
    assert lines[4] == "wrong: cloud: the cloud does not answer"
    assert error.exit_code == 1
    assert not (tmp_path / "site.db").exists()
    lines, error = looked(tmp_path, host="0.0.0.0")  # noqa: S104
    assert lines[1].startswith("wrong: options: 0.0.0.0 can be reached from other machines")
    assert error.exit_code == 2


def test_an_old_database_and_a_port_that_is_taken(tmp_path: Path) -> None:
    migrate(parse_url(f"sqlite:///{tmp_path}/site.db"), SCHEMA_MODULES[0], "0004")
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        lines, _ = looked(tmp_path, port=port)
        assert lines[3] == "ok: database: will be brought up to date: ledger 0004 -> 0005"
        assert lines[5].startswith(f"wrong: port: port {port} of 127.0.0.1 is taken by another program")
    lines, error = looked(tmp_path, upgrade=False)
    assert lines[3].startswith("wrong: database: of an older release: ledger 0004 -> 0005")
    assert error.exit_code == 3
    with running() as portal:
        lines, _ = looked(tmp_path, port=portal.port)
        assert lines[5] == f"ok: port: port {portal.port} has a portal already, which is this service where it runs"
