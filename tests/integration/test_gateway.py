"""openstacksdk and the portal through the gateway, with the lab's services behind it; test_gateway_attacks.py has what
does not come through."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gpuyard.dashboard.sources import Sources
from gpuyard.deployment.gateway.steps import endpoint_commands
from gpuyard.deployment.gateway.tree import tree
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.openstack.people import KeystonePeople
from gpuyard.server.app import create_app
from gpuyard.site.gateway_rules import SiteGateway
from gpuyard.web.portal_context import utc_now
from gpuyard.web.store import PortalStore
from gpuyard_lab.catalog import APIS
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.credentials import DEMO, passwords
from tests.integration.conftest import RunningLab
from tests.integration.test_gateway_attacks import CLOUD, PORTAL, need_root
from tests.support import gateway_net as nets
from tests.support.gateway_net import CLIENTS, Net, until
from tests.support.gateways import WIREGUARD
from tests.support.inventories import GPUS, STATUSES, driver, filled
from tests.support.ledgers import open_ledger
from tests.support.portals import ROOMY
from tests.support.served import RealClock, serving
from tests.support.sites import site

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OUTSIDE = "outside"
"""A region of the lab's catalogue with public addresses that are the gateway's: nobody else is led there."""
PORTS = {"identity": 5000, "compute": 8774, "image": 9292, "network": 9696}
LOOK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import openstack
cloud = openstack.connect(cloud="outside")
done = {"project": cloud.current_project.name, "flavors": len(list(cloud.compute.flavors()))}
done["keystone"] = cloud.session.get(sys.argv[1] + "/v3").json()["version"]["links"][0]["href"]
"""
USE = """
with open("image", "wb") as file:
    file.write(b"a" * (8 << 20))
image = cloud.create_image("gateway", filename="image", disk_format="raw", container_format="bare", wait=True)
done["image"] = [image.status, image.size, len(cloud.image.download_image(image).content)]
flavor = cloud.compute.find_flavor("gpu_tiny", ignore_missing=False)
tiny = cloud.image.find_image("tiny", ignore_missing=False)
servers = []
try:
    for name in ("gateway-0", "gateway-1"):
        one = cloud.compute.create_server(name=name, flavor_id=flavor.id, image_id=tiny.id, networks="none")
        servers.append(one)
    done["states"] = [cloud.compute.wait_for_server(one, wait=120).status for one in servers]
    page = cloud.compute.get("/servers/detail?limit=1").json()
    done["next"] = page["servers_links"][0]["href"]
    done["all"] = sorted(one.name for one in cloud.compute.servers(limit=1) if one.name.startswith("gateway-"))
    done["console"] = cloud.compute.get_server_console_output(servers[0]) is not None
    done["networks"] = len(list(cloud.network.networks()))
    done["ids"] = cloud.compute.get("/flavors").headers["x-openstack-request-id"][:4]
    done["admin"] = cloud.compute.get("/os-services").status_code
finally:
    for one in servers:
        cloud.compute.delete_server(one)
    for one in servers:
        cloud.compute.wait_for_delete(one, wait=120)
    cloud.image.delete_image(image)
"""
TELL = "print(json.dumps(done))"


@dataclass
class Outside:
    net: Net
    inventory: InventoryCache
    project: str
    password: str

    def sdk(self, folder: Path, script: str) -> dict[str, Any]:
        """What openstacksdk has done on the client's machine."""
        auth = {
            "auth_url": f"https://{CLOUD}:5000/v3", "username": DEMO, "password": self.password,
            "project_name": "demo", "user_domain_id": "default", "project_domain_id": "default",
        }  # fmt: skip
        cloud = {"auth": auth, "region_name": OUTSIDE, "cacert": str(self.net.authority)}
        (folder / "clouds.yaml").write_text(json.dumps({"clouds": {"outside": cloud}}))
        variable = f"OS_CLIENT_CONFIG_FILE={folder / 'clouds.yaml'}"
        command = ["env", variable, sys.executable, "-c", script, f"https://{CLOUD}:5000"]
        output = self.net.run("client", *command, cwd=folder, timeout=300)
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result


@contextmanager
def in_the_catalogue(operator: CloudApi, gateway: SiteGateway) -> Iterator[None]:
    """What the rendered commands set, in a region of its own."""
    kinds_by_url = dict(re.findall(r"--url (\S+) .* --service (\S+) ", "\n".join(endpoint_commands(gateway))))
    urls = {kind: url for url, kind in kinds_by_url.items()}
    assert urls.keys() == {*PORTS, "gpu"}
    operator.request("PUT", "identity", f"/regions/{OUTSIDE}", {"region": {}})
    made = []
    try:
        for service in operator.get("identity", "/services")["services"]:
            if service["type"] in PORTS:
                endpoint = {"service_id": service["id"], "interface": "public", "region_id": OUTSIDE}
                body = {"endpoint": {**endpoint, "url": urls[service["type"]]}}
                made.append(operator.request("POST", "identity", "/endpoints", body)["endpoint"]["id"])
        yield
    finally:
        for id in made:
            operator.request("DELETE", "identity", f"/endpoints/{id}")
        operator.request("DELETE", "identity", f"/regions/{OUTSIDE}")


@contextmanager
def portal(folder: Path, people: KeystonePeople) -> Iterator[tuple[InventoryCache, int]]:
    ledger, inventory = open_ledger(folder, clock=RealClock()), filled()
    settings = replace(ROOMY, public_url=f"https://{PORTAL}", trusted_gateways=("127.0.0.1",))
    app = create_app(
        Sources(
            inventory=inventory,
            driver=driver(),
            site_name="lab",
            gpus=GPUS,
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=people,
            settings=settings,
        ),
        [PORTAL],
    )
    with serving(app) as url:
        yield inventory, int(url.rpartition(":")[2])


def document(net: Net, tunnel: dict[str, Any]) -> dict[str, Any]:
    services = {kind: {"public": f"{CLOUD}:{port}", "behind": f"{nets.VIP}:{port}"} for kind, port in PORTS.items()}
    return {"portal": {"public": PORTAL, "behind": f"{nets.VIP}:8080"}, "services": services, **tunnel}


def over_wireguard(net: Net) -> SiteGateway:
    keys = {end: subprocess.check_output(["wg", "genkey"], text=True).strip() for end in ("gateway", "cloud")}
    ends = {
        end: {**WIREGUARD[end], "key": subprocess.check_output(["wg", "pubkey"], input=key, text=True).strip()}
        for end, key in keys.items()
    }
    loaded = site(
        net.folder, {"gateway": document(net, {"wireguard": {"endpoint": f"{nets.VPN_GATEWAY}:51820", **ends}})}
    )
    nets.write_tree(net.folder, tree(loaded.site))
    nets.wireguard_up(net, net.folder, keys)
    assert loaded.site.gateway is not None
    return loaded.site.gateway


def over_ssh(net: Net) -> SiteGateway:
    keys = {}
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", net.folder / name], check=True)
        keys[name] = (net.folder / f"{name}.pub").read_text().strip()
    tunnel = {"endpoint": f"{nets.VPN_GATEWAY}:22", "host_key": keys["host"], "key": keys["key"]}
    loaded = site(net.folder, {"gateway": document(net, {"ssh": tunnel})})
    nets.write_tree(net.folder, tree(loaded.site))
    nets.ssh_up(net, net.folder, net.folder / "key", net.folder / "host")
    assert loaded.site.gateway is not None
    return loaded.site.gateway


@pytest.fixture(scope="module", params=["wireguard", "ssh"])
def outside(request: pytest.FixtureRequest, lab: RunningLab, operator: CloudApi, applied: None) -> Iterator[Outside]:
    need_root()
    people = KeystonePeople(connect(ADMIN_CLOUD))
    with tempfile.TemporaryDirectory(prefix="gpuyard-gateway-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with portal(folder, people) as (inventory, port), nets.machines(folder, [CLOUD, PORTAL]) as net:
            for api in APIS:
                if api.type in PORTS:
                    nets.relay(net, PORTS[api.type], lab.lab.port(api.name))
            nets.relay(net, 8080, port)
            gateway = over_wireguard(net) if request.param == "wireguard" else over_ssh(net)
            nets.nginx_up(net, folder, folder / "log")
            with in_the_catalogue(operator, gateway):
                project = operator.get("identity", "/projects", name="demo")["projects"][0]["id"]
                yield Outside(net, inventory, project, passwords(lab.lab)[DEMO])


def test_openstacksdk_works_from_outside(outside: Outside, tmp_path: Path) -> None:
    over_ssh = "ssh" in outside.net.processes  # which is no other way for what comes out of it
    done = outside.sdk(tmp_path, LOOK + TELL if over_ssh else LOOK + USE + TELL)
    assert (done["project"], done["keystone"]) == ("demo", f"https://{CLOUD}:5000/v3/")
    if over_ssh:
        return
    assert done["states"] == ["ACTIVE", "ACTIVE"]
    assert done["all"] == ["gateway-0", "gateway-1"]
    # What services say of themselves leads through the gateway, too.
    assert done["next"].startswith(f"https://{CLOUD}:8774/v2.1/servers/detail?limit=1&marker=")
    assert done["image"] == ["active", 8 << 20, 8 << 20]
    assert (done["ids"], done["console"], done["admin"]) == ("req-", True, 403)
    assert done["flavors"] > 0


def test_people_log_in_see_the_map_and_hear_what_happens(outside: Outside) -> None:
    net = outside.net
    form = urlencode({"user": DEMO, "password": outside.password, "domain": "Default"}).encode()
    kind = "application/x-www-form-urlencoded"
    page = net.http("GET", PORTAL, 443, "/gpus", CLIENTS[0])
    assert page.status in (302, 303, 307)
    assert not page.headers["location"].startswith("http://")
    wrong = net.http(
        "POST", PORTAL, 443, "/login", CLIENTS[0], form.replace(b"password=", b"password=x"), Content_Type=kind
    )
    assert wrong.status in (401, 403)
    entered = net.http("POST", PORTAL, 443, "/login", CLIENTS[0], form, Content_Type=kind, Origin=f"https://{PORTAL}")
    assert entered.status == 303, entered
    cookie = entered.headers["set-cookie"]
    assert "secure" in cookie.lower()
    session = cookie.partition(";")[0]
    page = net.http("GET", PORTAL, 443, "/", CLIENTS[0], Cookie=session)
    assert page.status == 200
    assert GPUS[0].host.encode() in page.body
    assert page.headers["strict-transport-security"]
    turn = re.findall(rb'data-version="([^"]+)"', page.body)
    with net.tls(PORTAL, 443, CLIENTS[0]) as line:
        line.sendall(f"GET /events HTTP/1.1\r\nHost: {PORTAL}\r\nCookie: {session}\r\n\r\n".encode())
        line.settimeout(10)
        heard = line.recv(65536)
        assert b" 200 " in heard
        outside.inventory.publish(utc_now(), [replace(STATUSES[0], reason="it changed just now"), *STATUSES[1:]])

        def told() -> bool:
            nonlocal heard
            with suppress(TimeoutError):
                heard += line.recv(65536)
            return b"it changed just now" in heard

        until(told, f"the page heard nothing; turn {turn}")
    sessions = net.http("GET", PORTAL, 443, "/v1/me", CLIENTS[0], Cookie=session)
    assert json.loads(sessions.body)["user"]["name"] == DEMO


@pytest.mark.parametrize("outside", ["ssh"], indirect=True)
def test_the_key_of_the_tunnel_opens_nothing_else(outside: Outside) -> None:
    """Whoever has the cloud's key of SSH can listen at the ports of the doors, and nothing more."""
    net = outside.net
    config = net.folder / "cloud/etc/gpuyard/tunnel/ssh_config"
    ssh = ["ssh", "-F", str(config), "-i", str(net.folder / "key"), "-o", "ClearAllForwardings=yes"]
    for words in (["gateway", "true"], ["gateway"], ["-s", "gateway", "sftp"], ["-tt", "gateway"]):
        done = subprocess.run(
            net.command("cloud", *ssh, *words), capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode != 0
        assert "session" in done.stderr or "open failed" in done.stderr, done.stderr
    command = [word for word in ssh if word not in ("-o", "ClearAllForwardings=yes")]
    bare = net.folder / "bare"
    bare.write_text(
        "".join(line for line in config.read_text().splitlines(keepends=True) if "RemoteForward" not in line)
    )
    command[command.index("-F") + 1] = str(bare)
    for forward in ("127.0.0.1:16000", "0.0.0.0:15000", "127.0.0.1:22", "/run/gpuyard-gateway.sock"):
        done = subprocess.run(
            net.command("cloud", *command, "-N", "-R", f"{forward}:127.0.0.1:9", "gateway"),
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "forwarding failed" in done.stderr, done.stderr
    with subprocess.Popen(
        net.command("cloud", *command, "-W", "127.0.0.1:80", "gateway"), stderr=subprocess.PIPE
    ) as process:
        assert process.wait(20) != 0
        assert process.stderr is not None
        assert b"prohibited" in process.stderr.read()
