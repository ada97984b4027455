"""How long it takes from a click to a server that is ACTIVE, on a lab of its own: by the portal's page, and by
``openstack server create --wait`` as the peer, in turns.

python -m bench.launch
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from fastapi.testclient import TestClient
from tests.integration.test_portal_bookings import app_for
from tests.support.portals import Browser

from bench.lab import running_lab
from bench.table import Measured, finish, show, sized
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.personal import KeystonePersonalClouds
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD, demo_login
from gpuyard_lab.settings import Lab

FLAVOR = "k40c.2cores"
(RUNS,) = sized((10,), (2,))
PAGE_LIMIT_S = 1.0
NAME = "bench-launch"


def main() -> None:
    with running_lab() as (running, _), tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        operator = connect(ADMIN_CLOUD, running.lab.clouds_file)
        app = app_for(KeystonePeople(operator), Path(folder), KeystonePersonalClouds(operator))
        browser = Browser(TestClient(app, raise_server_exceptions=False, follow_redirects=False))
        browser.log_in(*demo_login(running.lab.clouds_file))
        forms, answers, pages, commands = [], [], [], []
        for _ in range(RUNS):
            form, answer, active = by_page(browser)
            forms.append(form)
            answers.append(answer)
            pages.append(active)
            clear(operator)
            commands.append(by_command(running.lab))
            clear(operator)
    rows = [
        Measured("the form", "s", forms, PAGE_LIMIT_S),
        Measured("its answer", "s", answers),
        Measured("page: from the click to ACTIVE", "s", pages),
        Measured("openstack server create --wait: to ACTIVE", "s", commands),
    ]
    show(f"A server of {FLAVOR} is started", rows)
    ratio = sum(pages) / sum(commands)
    show("Against the command", [Measured("page / command, from the click to ACTIVE", "", [ratio], 1.0)])


def by_page(browser: Browser) -> tuple[float, float, float]:
    """Return the seconds until the form is there, until it is answered, and from the click until the server's page has
    its state ACTIVE, asked twice a second."""
    began = monotonic()
    page = browser.client.get("/launch", params={"flavor": FLAVOR}).text
    form = monotonic() - began
    fields = dict(re.findall(r'name="(form|flavor)" value="([^"]+)"', page))
    (image,) = re.findall(
        r'<option value="([^"]+)" selected', page.partition('id="image"')[2].partition("</select>")[0]
    )
    began = monotonic()
    sent = browser.client.post("/launch", data={**fields, "name": NAME, "image": image, "network": "", "key": ""})
    answered = monotonic() - began
    assert sent.status_code == 303, sent.text
    while "is-free" not in browser.client.get(f"/{sent.headers['location']}").text:
        sleep(0.5)
    return form, answered, monotonic() - began


def by_command(lab: Lab) -> float:
    """Return the seconds that the command takes, Python's start and the log-in included."""
    program = str(Path(sys.executable).parent / "openstack")
    environment = {"OS_CLIENT_CONFIG_FILE": str(lab.clouds_file), "PATH": "/usr/bin:/bin"}
    create = ["--os-cloud", DEMO_CLOUD, "server", "create", "--flavor", FLAVOR, "--image", "tiny", "--no-network"]
    command = [program, *create, "--wait", NAME]
    began = monotonic()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return monotonic() - began


def clear(operator: CloudApi) -> None:
    """Delete the servers of this measurement, and wait until they are gone."""
    while rows := operator.get("compute", "/servers", all_tenants=True, name=f"^{NAME}$")["servers"]:
        for row in rows:
            with suppress(CloudError):  # it is gone by itself, from the last round
                operator.request("DELETE", "compute", f"/servers/{row['id']}")
        sleep(0.5)


if __name__ == "__main__":
    main()
    sys.exit(finish())
