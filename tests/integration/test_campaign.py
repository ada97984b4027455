"""A campaign over ten hosts as an operator types it: the real program, API, store and loops, and real commands. The
cloud is a small one, hosts say how they are when the test says so, and a server that accepts a GPU always passes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.drain.campaign.planner import CampaignDrain, CampaignWork
from gpuyard.health.acceptance import TryState
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.records import HealthEvent, HealthState
from gpuyard.health.store.tries import TryStore
from gpuyard.model.booking import Ask, Booking
from gpuyard.model.errors import GpuyardError
from gpuyard.model.host_report import GpuReport, HostReport
from gpuyard.model.world import Server
from gpuyard.site.compile import CompiledSite
from tests.support.ledgers import ROOT
from tests.support.served import served, write_clouds
from tests.support.sites import flavor, plain_site, site
from tests.support.sysfs import TITAN_XP, Sysfs
from tests.unit.health.test_health_controller import ADA, MUST, Ward

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
HOSTS = [f"gpu-{number:02d}" for number in range(1, 11)]
ADDRESS = "0000:01:00.0"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> CompiledSite:
    machine = Sysfs().function("01:00.0", TITAN_XP, "0300", 13, driver="vfio-pci", boot_vga="0")
    document = {
        "pools": {"xp": {"models": [TITAN_XP]}},
        "flavors": {"gpu": flavor(gpus={"xp": 1})},
        "projects": {"physics": {}, "art": {}},
        "booking": MUST,
        "health": {"acceptance": {"required": ["kernel"]}},
    }
    return site(tmp_path_factory.mktemp("ten"), document, dict.fromkeys(HOSTS, machine)).compiled


@dataclass
class Tenfold(Ward):
    """Ten hosts; `wait` is what goes on while a campaign waits."""

    kernels: dict[str, str] = field(default_factory=dict)
    boots: int = 0
    waits: int = 0
    meanwhile: Callable[[], None] = lambda: None
    """What people do while a campaign waits."""
    out: list[set[str]] = field(default_factory=list)
    """Hosts that were out of use, at each look."""

    def open(self) -> None:
        super().open()
        self.now = datetime.now(UTC)
        self.tries = TryStore(self.ledger.database)
        acceptance = AcceptanceService(self.service.store, self.tries, self.ledger, lambda: self.now)
        self.services = replace(self.watched.services, acceptance=acceptance)
        self.looks = HostReportIntake(self.service, frozenset(HOSTS))

    def hear(self, host: str) -> None:
        self.boots += 1
        gpu = GpuReport(ADDRESS, True, TITAN_XP, "021bde10", "vfio-pci", in_use=False)
        look = HostReport(host, f"boot-{self.boots}", 1, "", self.kernels.get(host, "6.1"), "bios", "8.2", (gpu,))
        self.looks.hear(host, json.dumps(look.as_dict()).encode())

    def turn(self) -> None:
        self.now = max(self.now, datetime.now(UTC)) + timedelta(seconds=2)
        checked = [host for host, state in self.states().items() if state is MaintenanceState.CHECKING]
        for host in checked if self.boots else HOSTS:
            self.hear(host)
        self.watched.bookings.run()
        self.health.run()
        self.watched.maintenance.run()
        for attempt in self.tries.open():  # what acceptance makes of a server that found nothing wrong
            gpu = self.service.gpu(attempt.gpu)
            fine = replace(
                gpu, state=HealthState.FINE, since=self.now, accepted=self.now, software=self.service.software(gpu.host)
            )
            event = HealthEvent(
                gpu.host, gpu.address, gpu.card, self.now, gpu.state, HealthState.FINE, "a server on it"
            )
            assert self.service.store.put(fine, event)
            assert self.tries.put(replace(attempt, state=TryState.PASSED, since=self.now))
        self.out.append({view.maintenance.host for view in self.watched.maintenance.views()})

    def wait(self) -> None:
        self.waits += 1
        assert self.waits < 400, "it waits for ever"
        self.meanwhile()
        self.turn()
        time.sleep(0.02)

    def states(self) -> dict[str, MaintenanceState]:
        """Of the last maintenance of each host that had one."""
        views = self.watched.maintenance.views(past=True)
        return {view.maintenance.host: view.maintenance.state for view in reversed(views)}


@dataclass
class Operator:
    """Who types, in a folder with a file of a campaign."""

    folder: Path
    world: Tenfold

    def write(self, run: str, **more: Any) -> None:
        document = {"campaign": "k", "comment": "kernel 6.12", "hosts": HOSTS, "run": run, **more}
        (self.folder / "k.yaml").write_text(json.dumps(document))

    def type(self, verb: str, *words: str) -> tuple[int, str]:
        """The exit code, and what was printed with the words of the error."""
        line = ["host", "campaign", verb, str(self.folder / "k.yaml"), "--state", str(self.folder / "state"), *words]
        result = CliRunner().invoke(app, line)
        if isinstance(result.exception, GpuyardError):
            return result.exception.exit_code, result.output + str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, result.output

    def plan(self) -> dict[str, dict[str, Any]]:
        code, text = self.type("plan", "--os-cloud", "root", "--timezone", "UTC", "-f", "json")
        assert code == 0, text
        return {row["Host"]: row for row in json.loads(text)}

    def run(self) -> tuple[int, str]:
        return self.type("run", "--yes", "--os-cloud", "root")

    def worked(self) -> list[str]:
        path = self.folder / "worked"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def operator(tmp_path: Path, ten: CompiledSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    world = Tenfold(tmp_path, ten, datetime.now(UTC))
    world.turn()
    for gpu in world.service.store.gpus():  # accepted with the kernel that it has
        world.service.store.put(replace(gpu, accepted=world.now, software=world.service.software(gpu.host)))
    world.turn()
    monkeypatch.setattr("gpuyard.drain.cli.campaign.pause", world.wait)
    monkeypatch.delenv("GPUYARD_URL", raising=False)
    with served(world.ledger, (ROOT,), health=world.services) as url:
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(write_clouds(tmp_path, url, (ROOT,))))
        yield Operator(tmp_path, world)
    world.store.close()


def script(operator: Operator, text: str) -> str:
    """A command that writes down for which host it was run."""
    path = operator.folder / "change.sh"
    path.write_text(f"#!/bin/sh\necho $1 >> {operator.folder}/worked\n{text}\n")
    path.chmod(0o755)
    return f"{path} {{host}}"


def test_after_a_canary_that_fails_no_other_of_ten_hosts_is_touched(operator: Operator) -> None:
    operator.write(script(operator, "echo 'dpkg: broken'; exit 2"), at_once=3, canary="gpu-04")
    code, text = operator.run()
    assert code == 1
    assert "0 of 10 hosts are back; not done:" in text
    assert "gpu-04: failed: its command ended with 2; its output is in " in text
    assert "gpu-10: waiting: not begun: stopped after gpu-04 failed" in text
    assert "go on with: gpuyard host campaign run" in text
    assert operator.worked() == ["gpu-04"]
    assert operator.world.states() == {"gpu-04": MaintenanceState.IN_WORK}, (
        "nobody gets a GPU of it; the others never knew"
    )
    (log,) = (operator.folder / "state/k").glob("gpu-04-*.log")
    assert log.read_text() == "dpkg: broken\n"

    shown = operator.plan()
    assert shown["gpu-04"]["Next"].startswith("work: once more, after a failure: its command ended with 2")
    assert shown["gpu-01"]["Next"] == "waits for the canary gpu-04, which is empty"
    operator.write(script(operator, "exit 0"), at_once=3, canary="gpu-04")
    code, text = operator.run()
    assert (code, text.splitlines()[-1]) == (0, "All 10 hosts are back.")
    assert operator.worked() == ["gpu-04", "gpu-04", *operator.worked()[2:]]
    assert sorted(operator.worked()[1:]) == HOSTS
    assert set(operator.world.states().values()) == {MaintenanceState.BACK}


def test_ten_hosts_one_first_then_three_at_once_each_accepted_before_the_next(operator: Operator) -> None:
    world = operator.world
    operator.write(script(operator, ""), at_once=3)
    world.meanwhile = lambda: world.kernels.update(dict.fromkeys(operator.worked(), "6.12"))
    code, text = operator.run()
    assert (code, text.splitlines()[-1]) == (0, "All 10 hosts are back."), text
    assert operator.worked()[0] == "gpu-01"
    assert sorted(operator.worked()) == HOSTS, "each once"
    assert max(map(len, world.out)) == 3
    begins = [line.split()[1].rstrip(":") for line in text.splitlines() if " begin: " in line]
    assert begins == HOSTS
    assert text.index("gpu-01: back") < text.index("gpu-02: waiting: begin")
    accepted = [line for line in text.splitlines() if "accepting: accept: 0000:01:00.0: to be accepted" in line]
    assert len(accepted) == 10
    assert all(gpu.software.kernel == "6.12" for gpu in world.service.store.gpus())
    assert operator.run()[1].splitlines()[-1] == "All 10 hosts are back.", "again there is nothing to do"
    assert len(operator.worked()) == 10


def test_the_plan_says_who_would_lose_by_it_and_changes_nothing(operator: Operator) -> None:
    world = operator.world
    now = world.now.replace(microsecond=0)
    stays = world.ledger.create(Ask("xp", now, now + 30 * HOUR, gpu=f"gpu-02/{ADDRESS}"), ADA)[0]
    moves = world.ledger.create(Ask("xp", now + HOUR, now + 3 * HOUR), ADA)[0]
    world.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider_of("gpu-02")], world.now)
    world.turn()
    world.turn()
    place = {lane.id: lane.host for lane in world.ledger.lanes()}
    operator.write(script(operator, ""), canary="gpu-02", at_once=9)
    before = state_of(world, [stays, moves])
    shown = operator.plan()
    assert state_of(world, [stays, moves]) == before
    assert shown["gpu-02"]["Next"] == "begin: the canary, before all others"
    assert shown["gpu-02"]["In the way"].startswith(f"server s1; booking {stays.id} of ada until ")
    other = place[world.ledger.get(moves.id).lanes[0]]
    assert shown[other]["Moves"] == 1
    assert {row["Moves"] for host, row in shown.items() if host not in (other, "gpu-02")} == {""}
    assert world.states() == {}
    starts = sorted({row["Out from"] for row in shown.values()})
    assert len(starts) == 2, "the canary, and then nine at once"


def provider_of(host: str) -> str:
    return f"{host}_{ADDRESS}"


def state_of(world: Tenfold, bookings: Sequence[Booking]) -> list[object]:
    return [world.ledger.get(booking.id) for booking in bookings] + [
        world.ledger.lanes(),
        world.store.take_undelivered("x", world.now, 9),
    ]


@dataclass
class Moves:
    """Stands for a CampaignDrains: Nova and its servers, which leave at once."""

    world: Tenfold
    servers: dict[str, str]
    log: list[str] = field(default_factory=list)
    closed_hosts: set[str] = field(default_factory=set)
    moved: str = ""

    def look(self, host: str, may_go_down: Collection[str] = ()) -> CampaignDrain:
        first = f"{self.servers[host]}: migrate to gpu-09: it has room" if host in self.servers else ""
        move = CampaignWork.ENDED if host == self.moved else CampaignWork.NONE
        return CampaignDrain(host in self.closed_hosts, first, move=move)

    def foresee(self, host: str) -> tuple[str, ...]:
        return tuple(f"server {name}: migrate to gpu-09" for where, name in self.servers.items() if where == host)

    def close(self, host: str) -> None:
        self.closed_hosts.add(host)
        self.log.append(f"close {host}")

    def drain(self, host: str) -> None:
        self.moved = host
        self.log.append(f"move {self.servers.pop(host)}")
        self.world.cloud.holders.clear()
        self.world.cloud.servers.clear()

    def closed(self, host: str) -> tuple[bool, bool]:
        return host in self.closed_hosts, True

    def open(self, host: str) -> None:
        assert self.world.states()[host] is MaintenanceState.CHECKING
        self.closed_hosts.remove(host)
        self.log.append(f"open {host}")


def test_servers_are_moved_off_a_host_when_the_file_says_so(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = operator.world
    world.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider_of("gpu-02")], world.now)
    world.turn()
    operator.write(script(operator, ""), hosts=["gpu-01", "gpu-02"], drain="move")
    code, text = operator.type("plan", "--os-cloud", "root", "--site", str(plain_site()))
    assert code == 2, text
    assert "campaign k: the site has no host 'gpu-01'" in text
    moves = Moves(world, {"gpu-02": "s1"})
    monkeypatch.setattr("gpuyard.drain.cli.campaign._drains", lambda *given: moves)
    assert operator.plan()["gpu-02"]["In the way"] == "server s1: migrate to gpu-09"
    code, text = operator.run()
    assert (code, text.splitlines()[-1]) == (0, "All 2 hosts are back."), text
    assert moves.log == ["close gpu-01", "open gpu-01", "close gpu-02", "move s1", "open gpu-02"]
    assert "gpu-02: draining: drain: s1: migrate to gpu-09: it has room" in text
    assert operator.worked() == ["gpu-01", "gpu-02"]


def test_a_host_that_is_used_is_waited_for_and_one_of_somebody_else_is_left_out(operator: Operator) -> None:
    world = operator.world
    world.watched.maintenance.plan("gpu-03", world.now, world.now + HOUR, "a fan", ROOT)
    world.cloud.boot("s1", ADA.user_id, ADA.project_id, [provider_of("gpu-02")], world.now)
    world.cloud.servers["web"] = Server("web", "web", "ACTIVE", "gpu-02", "physics", "ada", "no-gpu")
    world.turn()
    operator.write(script(operator, ""), hosts=["gpu-01", "gpu-02", "gpu-03", "gpu-04"])
    alone = [0]

    def released() -> None:
        if world.states().get("gpu-02") is MaintenanceState.DRAINING and len(operator.worked()) == 2:
            world.cloud.holders.clear()
            world.cloud.servers.pop("s1", None)
            alone[0] += 1
        if alone[0] > 10:
            world.cloud.servers.clear()

    world.meanwhile = released
    code, text = operator.run()
    assert code == 3
    assert operator.worked() == ["gpu-01", "gpu-04", "gpu-02"], "who hurts nobody is before who does"
    assert "gpu-02: draining: waits for s1, web" in text
    assert "gpu-02: draining: waits for web" in text, "a reboot would end it as well"
    assert alone[0] > 10
    assert "gpu-03: taken: a fan, until " in text
    assert "3 of 4 hosts are back; not done:" in text


def test_a_host_that_does_not_exist_is_refused_before_anything_begins(operator: Operator) -> None:
    operator.write(script(operator, ""), hosts=["gpu-01", "gpu-99"])
    code, text = operator.run()
    assert code == 3
    assert "there is no host 'gpu-99' with GPUs of the site" in text
    assert operator.world.states() == {}
    operator.write("no-such-program {host}")
    code, text = operator.run()
    assert (code, "there is no program no-such-program on this machine" in text) == (2, True)


def test_it_is_stopped_and_its_status_is_shown(operator: Operator) -> None:
    world = operator.world
    operator.write(script(operator, f"while [ ! -e {operator.folder}/go ]; do sleep 0.05; done"))
    assert operator.type("stop")[0] == 3, "there is nothing to stop"
    outputs: list[tuple[int, str]] = []

    def stopping() -> None:
        if operator.worked() and not outputs:
            outputs.append(operator.type("stop"))
            outputs.append(operator.type("status", "--os-cloud", "root"))
            outputs.append(operator.run())
            (operator.folder / "go").touch()

    world.meanwhile = stopping
    code, text = operator.run()
    assert outputs[0][0] == 0
    assert "0 of 10 hosts are back; a run is under way." in outputs[1][1]
    assert "gpu-01 | at work" in outputs[1][1]
    assert (outputs[2][0], "run of campaign k is under way" in outputs[2][1]) == (1, True)
    assert code == 3
    assert "gpu-02: waiting: not begun: stopped by" in text
    assert "1 of 10 hosts are back" in text
    assert operator.worked() == ["gpu-01"]
    assert "no run is under way" in operator.type("status", "--os-cloud", "root")[1]


def test_killed_while_a_command_runs_it_goes_on_and_runs_nothing_twice(operator: Operator) -> None:
    """With kill -9, in a process of its own; the command goes on meanwhile."""
    world = operator.world
    operator.write(script(operator, f"while [ ! -e {operator.folder}/go ]; do sleep 0.05; done"), hosts=HOSTS[:2])
    line = [
        sys.executable,
        "-m",
        "gpuyard.cli.main",
        "host",
        "campaign",
        "run",
        str(operator.folder / "k.yaml"),
        "--yes",
    ]
    line += ["--state", str(operator.folder / "state"), "--os-cloud", "root"]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    end = time.monotonic() + 180
    while not operator.worked():
        assert time.monotonic() < end
        assert process.poll() is None
        world.turn()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    assert process.communicate()[0]
    world.meanwhile = (operator.folder / "go").touch
    code, text = operator.run()
    assert (code, text.splitlines()[-1]) == (0, "All 2 hosts are back."), text
    assert "gpu-01: at work: its command runs, output in " in text
    assert operator.worked() == ["gpu-01", "gpu-02"]


def test_by_hand_somebody_says_when_each_host_is_done(operator: Operator) -> None:
    world = operator.world
    operator.write("", hosts=HOSTS[:2], by_hand=True)

    def done() -> None:
        for view in world.watched.maintenance.views():
            if view.maintenance.state is MaintenanceState.IN_WORK:
                result = CliRunner().invoke(
                    app, ["host", "maintenance", "done", view.maintenance.host, "--os-cloud", "root"]
                )
                assert result.exit_code == 0, result.output

    world.meanwhile = done
    code, text = operator.run()
    assert (code, text.splitlines()[-1]) == (0, "All 2 hosts are back."), text
    assert "gpu-01: by hand: it is empty; waits until somebody says 'gpuyard host maintenance done gpu-01'" in text
