"""Servers of the lab that are played: user data in, console and power state out, through Nova's own API."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.runners.console import read
from gpuyard.runners.user_data import user_data
from gpuyard_lab.github.__main__ import play
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.server import ForgeServer
from tests.integration.conftest import RunningLab
from tests.support.forges import PERSON, Asker
from tests.support.guest_rules import ANY_JOB

pytestmark = pytest.mark.lab


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    server = ForgeServer()
    server.standin.forge.personal_tokens[PERSON] = "octocat"
    server.standin.forge.add_repository("demo/science")
    with server:
        yield server


@pytest.fixture
def guests(lab: RunningLab) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=play, args=(lab.lab.guests, Faults(), ended))
    thread.start()
    yield
    ended.set()
    thread.join()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return result


def test_a_server_runs_the_job_of_its_user_data_and_switches_itself_off(
    lab: RunningLab, github: ForgeServer, guests: None
) -> None:
    job = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=1, name="train")]).jobs[0]
    jit = Asker(None, github.standin).jit("one", ["gpu"])  # type: ignore[arg-type]
    text = user_data("one", jit["encoded_jit_config"], 0, ANY_JOB)
    compute, image = lab.demo.compute, next(iter(lab.demo.image.images()))
    flavor = lab.admin.compute.create_flavor(name="guest", vcpus=1, ram=64, disk=1)
    server = compute.create_server(
        name="one", flavor_id=flavor.id, image_id=image.id, networks="none",
        user_data=base64.b64encode(text.encode()).decode(),
    )  # fmt: skip
    try:
        until(lambda: compute.get_server(server.id).status == "SHUTOFF")
        console = read(compute.get_server_console_output(server.id)["output"])
        assert (console.online, console.result, console.over) == (True, "Succeeded", True)
        assert "Running job: train" in console.log
        assert github.standin.forge.jobs[job].conclusion == "success"
        folder = Path(lab.lab.guests) / server.id
        assert folder.exists()
    finally:
        compute.delete_server(server.id)
        compute.wait_for_delete(server)
        lab.admin.compute.delete_flavor(flavor)
    until(lambda: not folder.exists())
