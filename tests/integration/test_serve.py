"""`gpuyard serve` on the real lab: a change in Nova reaches the feed and the page by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, expect

from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

PATIENCE = 30.0
"""Seconds; how long it really takes is measured in bench/."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(lab: RunningLab, site: Path | None = None, log: IO[str] | None = None) -> Iterator[str]:
    """The portal in a process of its own; gives its address."""
    with serving_process(lab, site, log) as (address, _):
        yield address


@contextmanager
def serving_process(
    lab: RunningLab, site: Path | None = None, log: IO[str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(lab.status.clouds_file)}
    command = [sys.executable, "-m", "gpuyard.cli.main", "serve", "--os-cloud", ADMIN_CLOUD, "--port", str(port)]
    with subprocess.Popen([*command, "--site", str(site or lab.lab.site_file)], env=environment, stderr=log) as process:
        try:
            wait_for(lambda: ready(port), process)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            assert process.wait(60) == 0  # its loops finish what they are at


def ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(true: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    end = monotonic() + PATIENCE
    while not true():
        assert process is None or process.poll() is None, "the server has ended"
        assert monotonic() < end, "waited in vain"
        sleep(0.1)


def gpus(address: str, query: str = "") -> list[dict[str, object]]:
    with urlopen(f"{address}/v1/gpus{query}", timeout=10) as answer:
        rows: list[dict[str, object]] = json.load(answer)["gpus"]
        return rows


def test_the_feed_and_the_api_follow_nova(lab: RunningLab, exercise: Exercise) -> None:
    with serving(lab) as address, urlopen(f"{address}/events", timeout=PATIENCE) as feed:
        assert {gpu["state"] for gpu in gpus(address)} == {"free"}
        boot = exercise.boot("k40c.2cores")
        line = ""
        while boot.name not in line:
            line = feed.readline().decode()
        wait_for(lambda: [gpu["state"] for gpu in gpus(address, "?host=hyper18")] == ["claimed"])
        exercise.delete([boot.server_id])
        wait_for(lambda: [gpu["state"] for gpu in gpus(address, "?host=hyper18")] == ["free"])


def hosts(address: str) -> set[object]:
    return {gpu["host"] for gpu in gpus(address)}


@pytest.mark.usefixtures("applied")
def test_a_changed_site_file_is_read_again(lab: RunningLab, tmp_path: Path) -> None:
    """In the same process, on the same socket; one that is wrong is refused, and what was read before stays."""
    site, log = tmp_path / "site.yaml", tmp_path / "log"
    served = lab.lab.site_file
    assert served is not None
    text = re.sub(r"recording: (?!/)", f"recording: {served.parent}/", served.read_text())
    without = re.sub(r"^  (hyper18|k40c\.2cores):.*\n", "", text, flags=re.MULTILINE)  # the flavor runs there only
    site.write_text(text)
    with log.open("w") as to, serving_process(lab, site, to) as (address, process):
        assert "hyper18" in hosts(address)
        site.write_text(without)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "hyper18" not in hosts(address), process)
        assert ready(int(address.rpartition(":")[2]))
        site.write_text(text + "nonsense: 1\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "is refused" in log.read_text(), process)
        assert hosts(address)
        assert "hyper18" not in hosts(address)
        site.write_text(text)  # nothing is left to apply, so no signal is needed
        wait_for(lambda: "hyper18" in hosts(address), process)
    (changes,) = re.findall(r"was read again; what changed: (.*hosts\.hyper18.*)", log.read_text())[:1]
    assert "flavors.k40c.2cores" in changes


@pytest.mark.browser
def test_the_page_follows_nova(lab: RunningLab, exercise: Exercise, chromium: Browser) -> None:
    with serving(lab) as address, chromium.new_page() as page:
        page.goto(address)
        for host in ("gpu-server", "cld-dfa-gpu-01", "cld-dfa-gpu-02", "cld-dfa-gpu-03", "hyper18", "c4130"):
            expect(page.get_by_role("heading", name=host)).to_be_visible()
        boot = exercise.boot("gpu_pair-a")
        expect(page.get_by_text(boot.name)).to_have_count(2, timeout=PATIENCE * 1000)
        exercise.delete([boot.server_id])
        expect(page.get_by_text(boot.name)).to_have_count(0, timeout=PATIENCE * 1000)
