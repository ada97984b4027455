"""A port that is in use is named before anything is started, with its holder and what to set."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from gpuyard.lab.errors import LabSettingsError
from gpuyard.lab.ports import free_port_base, require_free
from gpuyard.lab.settings import Lab


def test_free_ports_are_free() -> None:
    require_free(Lab(Path("/x"), port_base=free_port_base(range(23000, 24000, 5))))


def test_a_taken_port_is_named_with_its_holder() -> None:
    base = free_port_base(range(24000, 25000, 5))
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


def test_no_free_ports() -> None:
    with pytest.raises(LabSettingsError, match="no 5 free ports"):
        free_port_base([])
