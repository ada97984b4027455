"""Checks that the ports of a lab are free, and otherwise says which process has them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from gpuyard_lab.catalog import ADDRESS, APIS
from gpuyard_lab.errors import LabSettingsError
from gpuyard_lab.settings import PORT_BASE_VARIABLE, Lab

LISTENING = "0A"


def require_free(lab: Lab) -> None:
    """Raise LabSettingsError when a port is taken, naming it, its holder where that can be seen, and what to set."""
    last = lab.port_base + len(APIS) - 1
    remedy = (
        f"the lab needs the ports {lab.port_base} to {last}: choose others with --port-base or {PORT_BASE_VARIABLE}"
    )
    for api in APIS:
        require_free_port(lab.port(api.name), api.name, remedy)


def require_free_port(port: int, user: str, remedy: str) -> None:
    """Raise LabSettingsError when one port, which `user` wants, is taken; `remedy` says what to set."""
    if not is_free(port):
        holder = _holder(port)
        raise LabSettingsError(f"port {port}, for {user}, is in use{f' by {holder}' if holder else ''}; {remedy}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port now."""
    with socket.socket() as probe:
        # As servers do it: without, a port counts as taken for a minute after a lab has left it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    """Name and id of the process that listens on a port; empty when it belongs to somebody else."""
    sockets = _listening_sockets(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and sockets & _open_files(process):
            with suppress(OSError):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return ""


def _open_files(process: Path) -> set[str]:
    """Return what the descriptors of a process lead to, as far as it is still there and may be looked at."""
    files = set()
    with suppress(OSError):
        for descriptor in os.listdir(process / "fd"):
            with suppress(OSError):
                files.add(os.readlink(process / "fd" / descriptor))
    return files


def _listening_sockets(port: int) -> set[str]:
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets
