"""The services of a hypervisor and of a guest, under systemd with all that their units forbid, in a booted Debian.

One server plays both: it has a GPU on its PCI bus, watches it and asks for scrubs, and its agent says how that is. They
speak TLS with a portal outside, which switches the server off when it has heard them all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.dashboard.sources import Sources
from gpuyard.guest import agent
from gpuyard.health.controllers.agent_service import ENROL, AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.scrubs import ScrubService
from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.store.guests import GuestStore
from gpuyard.health.tokens import new_token
from gpuyard.host import bundle
from gpuyard.host.units import SCRUB_TOKEN, WATCH_TOKEN, ZIPAPP, scrub_unit, watch_unit
from gpuyard.model.gpu import Gpu, GpuRole
from gpuyard.model.world import Server, Snapshot
from gpuyard.server.app import create_app
from gpuyard.site.health_rules import SiteHealth
from gpuyard.web.store import PortalStore
from tests.support.certificates import certificate
from tests.support.inventories import driver, filled
from tests.support.ledgers import open_ledger
from tests.support.on_request import only_by
from tests.support.people import people
from tests.support.scripted_http import ScriptedAnswer, scripted_http
from tests.support.served import RealClock, serving
from tests.support.tls_gateway import tls_gateway
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.cloud_server import GATEWAY, CloudServer
from tests.virtual_hypervisor.config_drive import UUID

pytestmark = [pytest.mark.virtual, pytest.mark.slow, only_by("machine", "five minutes")]
HOST, ADDRESS = "gpu-vm", "0000:01:00.0"
GPU = Gpu(HOST, ADDRESS, "v100", "Tesla V100 PCIe 16GB", "10de:1db4", GpuRole.LONE, "CUSTOM_GPU_V100", 1)
UNITS = ("gpuyard-watch", "gpuyard-scrub", "gpuyard-agent")
DYNAMIC = range(61184, 65520)
"""Ids of users that systemd makes for as long as a service runs."""
AUTHORITY = "/etc/gpuyard/ca.pem"
HEARD = {f"/v1/hosts/{HOST}/looks": 3, f"/v1/hosts/{HOST}/scrubs": 2, "/v1/agents/samples": 2}
"""How often each must have been heard."""

USER_DATA = """\
#!/bin/sh
exec >/dev/ttyS0 2>&1
mount -o ro /dev/sr0 /mnt
systemctl daemon-reload
systemctl enable --now {units}
python3 - <<'END'
import time, urllib.request
for _ in range(120):
    try:
        if urllib.request.urlopen("{done}").read() == b"done":
            break
    except OSError:
        pass
    time.sleep(2)
END
for unit in {units}; do
    uid=$(stat -c %u /proc/$(systemctl show -P MainPID $unit))
    echo "unit: $unit $(systemctl is-active $unit) $(systemctl show -P NRestarts $unit) $uid"
done
journalctl --no-pager -o cat -u gpuyard-watch -u gpuyard-scrub -u gpuyard-agent | sed 's/^/journal: /'
poweroff
"""
DROP_IN = f"""\
[Service]
Environment=SSL_CERT_FILE={AUTHORITY} GPUYARD_AGENT_METADATA=/mnt/openstack/latest/meta_data.json
"""


class Listener:
    """Counts what was answered with success, before everything else of the portal."""

    def __init__(self, app: ASGIApp, heard: Counter[str]) -> None:
        self._app, self._heard = app, heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                self._heard[scope["path"] if int(str(message["status"])) < 300 else f"refused {scope['path']}"] += 1
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)  # type: ignore[arg-type]


@dataclass
class Watched:
    """The portal, and the server when it is off again."""

    server: CloudServer
    heard: Counter[str]
    store: HealthStore
    agents: AgentService


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    build = testing.prepared()
    image = testing.cloud(build)
    folder = tmp_path_factory.mktemp("services")
    clock = RealClock()
    ledger = open_ledger(folder, None, clock)
    rules = SiteHealth.model_validate({"agent": {"projects": ["physics"], "period": 1}})
    health = HealthService(HealthStore(ledger.database), ledger, rules, clock)
    server = Server(UUID, "training", "ACTIVE", HOST, "physics", "ada", "gpu", user_id="u", project_id="p-physics")
    snapshot = Snapshot(clock(), {}, frozenset(), {GPU.provider_name: UUID}, frozenset(), {}, {UUID: server})
    agents = AgentService(health, GuestStore(ledger.database), [GPU], lambda: snapshot, rules, clock)
    heard: Counter[str] = Counter()
    with served(ledger, health, agents, folder, heard) as port, scripted_http() as http:
        http.on(
            "GET",
            "/done",
            lambda _: ScriptedAnswer(
                body=b"done" if all(heard[path] >= least for path, least in HEARD.items()) else b""
            ),
        )
        yield Watched(boot(folder, build, image, port, http.url, health.store), heard, health.store, agents)
    ledger.close()


def unheard(heard: Counter[str]) -> set[str]:
    return {path for path, least in HEARD.items() if heard[path] < least}


@contextmanager
def served(
    ledger: Ledger, health: HealthService, agents: AgentService, folder: Path, heard: Counter[str]
) -> Iterator[int]:
    """The portal's port, with TLS."""
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=[GPU],
            now=RealClock(),
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=people(),
            health=HealthServices(health, scrubs=ScrubService(health, ledger, [GPU], {"v100"})),
            agents=agents,
        ),
        [GATEWAY],
    )
    app.add_middleware(Listener, heard=heard)
    made = certificate(folder, GATEWAY)
    with serving(app) as url, tls_gateway(made.context(), int(url.rpartition(":")[2])) as port:
        yield port


def token(store: HealthStore, purpose: str, subject: str) -> str:
    text, digest = new_token(purpose)
    store.add_token(HealthToken(digest, purpose, subject, RealClock()()))
    return text


def boot(folder: Path, build: Build, image: Path, port: int, done: str, store: HealthStore) -> CloudServer:
    """On, until the portal has heard all of it or two minutes are over."""
    url = f"https://{GATEWAY}:{port}"
    code = token(store, ENROL, UUID)
    done = f"{done.replace('127.0.0.1', GATEWAY)}/done"
    script = USER_DATA.format(units=" ".join(UNITS), done=done)
    drive = testing.drive(folder, "training", script, {"gpuyard_agent": f"{url} {code}"})
    parts = Path(agent.__file__).parent
    units = {
        "gpuyard-watch": watch_unit(url, HOST, AUTHORITY, "2s"),
        "gpuyard-scrub": scrub_unit(url, HOST, AUTHORITY),
        "gpuyard-agent": (parts / "gpuyard-agent.service").read_text(),
    }
    texts = {
        **{f"/etc/systemd/system/{name}.service": text for name, text in units.items()},
        "/etc/systemd/system/gpuyard-agent.service.d/here.conf": DROP_IN,
        "/usr/local/lib/gpuyard-agent/gpuyard_agent.py": (parts / "gpuyard_agent.py").read_text(),
        AUTHORITY: (folder / "ca.pem").read_text(),
    }
    secrets = {path: token(store, purpose, HOST) for path, purpose in ((WATCH_TOKEN, "watch"), (SCRUB_TOKEN, "scrub"))}
    baked = {
        **{path[1:]: (0o644, text.encode()) for path, text in texts.items()},
        **{path[1:]: (0o600, f"{text}\n".encode()) for path, text in secrets.items()},
        ZIPAPP[1:]: (0o755, bundle.build()),
    }
    server = CloudServer(build, image, folder, drive, baked)
    server.boot()
    server.disk.unlink()
    return server


def test_all_units_are_up_and_nobody_is_root_who_need_not_be(watched: Watched) -> None:
    lines = [line.split()[1:] for line in watched.server.console.splitlines() if line.startswith("unit: ")]
    assert [line[:3] for line in lines] == [[unit, "active", "0"] for unit in UNITS], watched.server.console
    watch, scrub, guest = (int(line[3]) for line in lines)
    assert (watch in DYNAMIC, scrub, guest in DYNAMIC) == (True, 0, True)


def test_the_portal_hears_them(watched: Watched) -> None:
    assert unheard(watched.heard) == set(), watched.server.console
    assert [path for path in watched.heard if path.startswith("refused")] == []


def test_the_watch_sees_the_gpu(watched: Watched) -> None:
    word = watched.store.host(HOST)
    assert word is not None
    look = json.loads(word.look)
    (gpu,) = look["gpus"]
    assert (word.host, gpu["address"], gpu["ids"], gpu["present"]) == (HOST, ADDRESS, "10de:1db4", True)
    assert gpu["config"] == "de10b41d"
    assert look["kernel"]


def test_the_agent_sees_the_gpu_without_a_driver(watched: Watched) -> None:
    guest = watched.agents.guest(UUID)
    assert guest is not None
    assert (guest.seen, guest.cards, guest.driver) == (1, {}, "")
