"""A port that is in use is named before anything is started, with its holder and what to set."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.ports import require_free
from gpuyard_lab.settings import Lab
from tests.support.ports import free_port_base

ROOT = Path(__file__).parents[3]


def test_free_ports_are_free() -> None:
    require_free(Lab(Path("/x"), port_base=free_port_base()))


def test_a_taken_port_is_named_with_its_holder() -> None:
    base = free_port_base()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 2))
        taken.listen()
        expected = (
            rf"port {base + 2}, for glance, is in use by .+ \(process {os.getpid()}\); the lab needs the ports "
            rf"{base} to {base + 4}: choose others with --port-base or GPUYARD_LAB_PORT_BASE"
        )
        with pytest.raises(LabSettingsError) as error:
            require_free(Lab(Path("/x"), port_base=base))
    assert re.fullmatch(expected, str(error.value))
    assert error.value.exit_code == 2


def test_who_asks_in_the_same_second_gets_others() -> None:
    command = "from tests.support.ports import free_port_base; print(free_port_base(), flush=True); input()"
    with ExitStack() as running:
        processes = [
            running.enter_context(
                subprocess.Popen([sys.executable, "-c", command], text=True, stdin=PIPE, stdout=PIPE, cwd=ROOT)
            )
            for _ in range(3)
        ]
        given = {int(process.stdout.readline()) for process in processes if process.stdout}
        assert len(given) == 3
        for process in processes:
            process.communicate("")
    assert free_port_base(given) in given, "they are free again"
