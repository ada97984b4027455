"""How far a machine is on its way to a host of a cloud: which boot it is in, and what runs on it in containers.

Kolla's containers are asked for at the container engine itself, in the words that docker and podman share.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from gpuyard.host.local_host import PATH
from gpuyard.host.tree import Tree
from gpuyard.host.watch import BOOT_ID

HOST_NAME = "proc/sys/kernel/hostname"
INTERFACES = "sys/class/net"
REBOOT_REQUIRED = ("run/reboot-required", "var/run/reboot-required")
"""What packages of Debian and Ubuntu leave when only a boot brings them out."""
ENGINES = ("docker", "podman")
ENGINE_SECONDS = 30
MOST_CONTAINERS = 1000
CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
SOON_SECONDS = 2
"""Until a reboot begins: the answer must be out before the network is gone."""


@dataclass(frozen=True)
class Engine:
    """A container engine, and the names of what runs in it."""

    name: str = ""
    """Empty: there is none."""
    containers: Tuple[str, ...] = ()
    problem: str = ""
    """Why it does not say what runs."""


def boot_id(tree: Tree) -> str:
    """Another one after each boot."""
    return (tree.read(BOOT_ID) or "").strip()


def asks_for_a_reboot(tree: Tree) -> bool:
    """Whether a package has said so."""
    return any(tree.read(path) is not None for path in REBOOT_REQUIRED)


def look_at_engine(programs: Sequence[str] = ENGINES) -> Engine:
    """The first engine that this machine has."""
    environment = {**os.environ, "PATH": f"{PATH}:{os.environ.get('PATH', '')}"}
    for program in programs:
        try:
            done = subprocess.run(
                [program, "ps", "--format", "{{.Names}}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=ENGINE_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            continue
        except subprocess.TimeoutExpired:
            return Engine(program, (), f"{program} ps did not answer within {ENGINE_SECONDS} s")
        except OSError as error:
            return Engine(program, (), f"{program}: {error.strerror}")
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return Engine(program, (), f"{program} ps: {lines[-1][:200] if lines else f'ended with {done.returncode}'}")
        names = [name for name in done.stdout.decode("utf-8", "replace").split() if CONTAINER.fullmatch(name)]
        return Engine(program, tuple(sorted(names)[:MOST_CONTAINERS]))
    return Engine()


def reboot_soon(seconds: int = SOON_SECONDS, command: Optional[Sequence[str]] = None) -> None:
    """Have the machine reboot in good order a little later, whoever asked for it still being there or not."""
    words = command or ("systemctl", "reboot")
    in_background = '(sleep "$0"; exec "$@") </dev/null >/dev/null 2>&1 &'
    subprocess.run(
        ["sh", "-c", in_background, str(seconds), *words],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{PATH}:{os.environ.get('PATH', '')}"},
        start_new_session=True,
        check=True,
    )
