"""`gpuyard serve` without a cloud: a changed site file takes over in the same process, on the same socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.sites import flavor, site
from tests.support.sysfs import epyc
from tests.unit.server.test_portal_server import until

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from gpuyard.server.serving import ServeOptions, serve
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.calls import CloudCalls
from gpuyard.web.settings import PortalSettings
from gpuyard.site.load import load_site

class Silent:
    name, auth_url, counted = "silent", "http://127.0.0.1:9", CloudCalls()
    def __getattr__(self, name):
        raise CloudError("the cloud does not answer")

database = "sqlite:///" + sys.argv[2]
serve(ServeOptions("127.0.0.1", 0, 1.0, database, False, PortalSettings()), load_site(Path(sys.argv[1])), Silent())
print("cleaned up", flush=True)
"""


def alive(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().read() == b"ok\n"


@pytest.mark.parametrize("booking", [{}, {"booking": {}, "flavors": {"one": flavor(gpus={"v100": 1})}}])
def test_a_changed_site_file_takes_over_and_a_wrong_one_does_not(tmp_path: Path, booking: dict[str, object]) -> None:
    loaded = site(tmp_path, booking, {"one": epyc(), "two": epyc()})
    text = loaded.path.read_text()
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", PROGRAM, str(loaded.path), str(tmp_path / "ledger.db")]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout
            first = process.stdout.readline()
            assert "on 2 hosts" in first, log.read_text()
            port = int(first.split("http://127.0.0.1:")[1].split()[0])
            assert alive(port)
            site(tmp_path, booking, {"one": epyc()})
            process.send_signal(signal.SIGHUP)
            assert "on 1 host, at " in process.stdout.readline(), log.read_text()
            assert alive(port)
            loaded.path.write_text("nonsense")
            process.send_signal(signal.SIGHUP)
            until(lambda: "is refused; what was read before stays" in log.read_text())
            loaded.path.write_text(text)
            process.send_signal(signal.SIGHUP)
            assert "on 2 hosts" in process.stdout.readline(), log.read_text()
            assert alive(port)
            process.terminate()
            assert process.wait(60) == 0
            assert process.stdout.read() == "cleaned up\n", log.read_text()
        finally:
            process.kill()
    assert "what changed: hosts.two.recording: two.json -> (none)" in log.read_text()
