"""The quickstart's other half: a GPU of the lab that `make up` starts goes bad, is taken out of use, and comes back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.client.client import Client, Row
from gpuyard.client.portal import open_session
from gpuyard_lab import control, processes
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.hosts import HOSTS
from gpuyard_lab.portal import look
from gpuyard_lab.settings import LabSettings, remembered
from tests.support.ports import free_port_base

pytestmark = [pytest.mark.lab, pytest.mark.browser, pytest.mark.slow]
PATIENCE_S = 120.0


def until(condition: Callable[[], bool]) -> None:
    """Asks slowly: the portal answers nobody more than ten times a second for long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.3)


def lab(state: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["lab", *words, "--state", str(state)])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab with the example site, as `make up` starts it."""
    folder = tmp_path_factory.mktemp("health")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = lab(folder, "up", "--port-base", str(free_port_base()), "--port", str(port))
    assert up.exit_code == 0, up.output
    yield folder
    control.down(LabSettings(folder))


@pytest.fixture(scope="module")
def url(state: Path) -> str:
    served = look(state)
    assert served is not None
    return served.url


def client(state: Path, url: str, cloud: str) -> Client:
    running = remembered(state)
    assert running is not None
    return Client(open_session(cloud, url, running.clouds_file))


def health(admin: Client, gpu: str) -> str:
    return str(admin.gpu_health(gpu, 1)["gpu"]["state"])


def on_the_map(admin: Client, gpu: str) -> Row:
    host, _, address = gpu.partition("/")
    return next(row for row in admin.gpus(host=host) if row["address"] == address)


@pytest.fixture
def all_well(state: Path, url: str) -> None:
    """No GPU is out of use, and nobody has booked one: a second try of a test finds what its first one left."""
    admin, demo = client(state, url, ADMIN_CLOUD), client(state, url, DEMO_CLOUD)
    for booking in demo.bookings(state="active"):
        demo.act(booking["id"], "end")

    def well() -> bool:
        out = [row for row in admin.health() if row["state"] != "fine"]
        for row in out:
            gpu = f"{row['host']}/{row['address']}"
            lab(state, "gpu", "mend", gpu)
            if row["state"] == "in repair":
                admin.repair(gpu, "done", "mended")
            elif row["state"] in ("quarantined", "to be accepted"):
                admin.repair(gpu, "release", "mended")
        return not out

    until(well)


def test_hosts_are_heard_and_nothing_is_wrong_with_a_lab_that_has_just_started(state: Path, url: str) -> None:
    admin = client(state, url, ADMIN_CLOUD)
    until(lambda: len(admin.health()) == 17 and not any(row["silent"] for row in admin.health()))
    assert {row["state"] for row in admin.health()} == {"fine"}
    assert lab(state, "up").exit_code == 0
    assert lab(state, "status").exit_code == 0


@pytest.mark.usefixtures("all_well")
def test_a_gpu_goes_bad_at_a_command_and_comes_back(state: Path, url: str, chromium: Browser) -> None:
    admin, demo = client(state, url, ADMIN_CLOUD), client(state, url, DEMO_CLOUD)
    (booking,) = demo.create({"pool": "v100", "gpus": 1, **_now_for_an_hour(), "gpu": ""})
    until(lambda: demo.booking(booking["id"])[0]["state"] == "active")
    (gpu,) = demo.booking(booking["id"])[0]["gpu_names"]
    broken = lab(state, "gpu", "break", gpu)
    assert broken.exit_code == 0, broken.output

    until(lambda: health(admin, gpu) == "quarantined")
    until(lambda: demo.booking(booking["id"])[0]["gpu_names"] != [gpu])
    assert demo.booking(booking["id"])[0]["state"] == "active"
    until(lambda: on_the_map(admin, gpu)["state"] == "held")
    assert "0xff" in on_the_map(admin, gpu)["reason"]

    page = chromium.new_page()
    login = YAML(typ="safe").load(state / "clouds.yaml")["clouds"][ADMIN_CLOUD]["auth"]
    page.goto(f"{url}/login?next=/health")
    page.get_by_label("User").fill(login["username"])
    page.get_by_label("Password").fill(login["password"])
    page.get_by_role("button", name="Log in", exact=True).click()
    line = page.locator(".line", has_text=gpu)
    expect(line).to_contain_text("quarantined")
    expect(line).to_contain_text("its config space reads 0xff")
    line.get_by_role("button", name="Look after it").click()
    page.get_by_role("textbox").fill("will reseat it")
    page.get_by_role("dialog").get_by_role("button", name="Look after it").click()
    expect(line).to_contain_text(f"{login['username']} looks after it")

    mended = lab(state, "gpu", "mend", gpu)
    assert mended.exit_code == 0, mended.output
    line.get_by_role("button", name="Repaired").click()
    page.get_by_role("textbox").fill("reseated")
    page.get_by_role("button", name="It is well").click()
    expect(page.locator("#toast")).to_contain_text(f"GPU {gpu} is to be accepted.")
    demo.act(booking["id"], "end")  # nobody's GPU is released in the meantime

    (attempt,) = admin.accept([gpu])["tries"]
    until(lambda: admin.acceptance(attempt["batch"])["tries"][0]["over"])
    (tried,) = admin.acceptance(attempt["batch"])["tries"]
    assert (tried["state"], tried["driver"]) == ("passed", "stand-in"), tried["cause"]
    page.reload()
    expect(page.locator(".line", has_text=gpu)).to_have_count(0)
    page.goto(f"{url}/gpu?name={gpu}")
    expect(page.locator(".facts", has_text="passed: stand-in at 00000000:05:00.0")).to_be_visible()
    page.close()
    until(lambda: on_the_map(admin, gpu)["state"] in ("free", "booked"))
    events = admin.gpu_health(gpu)["events"]
    record = [event["after"] for event in events if event["after"] != event["before"]][:4]
    assert record == ["fine", "to be accepted", "in repair", "quarantined"]


def test_hosts_that_say_nothing_are_shown_and_healed(state: Path, url: str) -> None:
    processes.end(state, HOSTS)
    assert lab(state, "status").exit_code == 3
    assert lab(state, "up").exit_code == 0
    assert HOSTS in processes.leaders(processes.find(state))
    assert lab(state, "gpu", "break", "nowhere/0000:27:00.0").exit_code != 0
    assert lab(state, "gpu", "mend", "gpu-server/0000:ff:00.0").exit_code != 0


def _now_for_an_hour() -> dict[str, str]:
    now = datetime.now(UTC).replace(microsecond=0)
    return {"start": now.isoformat(), "end": (now + timedelta(hours=1)).isoformat()}
