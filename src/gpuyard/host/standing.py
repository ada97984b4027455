"""Reports how far a machine is on its way to a host of a cloud: its boot, the software that runs on it; and reboots it.

Kolla's containers are asked for at the container engine itself, in the words that docker and podman share.
"""

from __future__ import annotations

import os
import re
import subprocess
import syslog
import time
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from gpuyard.host.local_host import PATH
from gpuyard.host.tree import Tree
from gpuyard.host.watch import BOOT_ID
from gpuyard.model.errors import BlockedError

HOST_NAME = "proc/sys/kernel/hostname"
REBOOT_REQUIRED = ("run/reboot-required", "var/run/reboot-required")
"""What packages of Debian and Ubuntu leave when only a boot brings them out."""
OS_RELEASE = "etc/os-release"
RPM_FAMILY = frozenset({"rhel", "centos", "fedora"})
"""In ID or ID_LIKE of os-release: distributions whose packages are installed by dnf, and leave no such file."""
REBOOT_HINT = ("needs-restarting", "-r")
"""A command of dnf: it compares when packages such as kernel, glibc and systemd were installed with the last boot."""
REBOOT_HINT_SECONDS = 120
"""dnf 5 may fetch the repositories' metadata first."""
REBOOT_REQUIRED_TEXT = "Reboot is required"
"""Printed with exit code 1 (dnf-plugins-core, plugins/needs_restarting.py; dnf5, needs_restarting.cpp). Any failure of
dnf's, an unknown command included, has that exit code, too."""
MISSING_PLUGIN = re.compile(r"(dnf5?)-command\(needs-restarting\)")
"""How dnf names what would have to be installed for this command."""
PLUGIN_PACKAGES = {"dnf": "dnf-utils", "dnf5": "dnf5-plugins"}
ENGINES = ("docker", "podman")
ENGINE_SECONDS = 30
MOST_CONTAINERS = 1000
CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
RELEASE_TAG = re.compile(r"[!-~]{1,300}:(20[0-9]{2}\.[12])-[a-z]+-[a-z0-9.-]+", re.ASCII)
"""Kolla's openstack_tag: release, distribution, and its version."""
GUEST = re.compile(r"qemu-system-[!-~]+|qemu-kvm|kvm|qemu:[!-~]+", re.ASCII)
"""Programs of QEMU in distributions, and what libvirt has a guest called where `set_process_name` is on. The kernel
cuts names off after 15 characters."""
REPLACED = " (deleted)"
GUEST_MEMORY = "anon_inode:kvm-vm"
"""Of a virtual machine of KVM: where the link of its descriptor leads to (virt/kvm/kvm_main.c of Linux)."""
NOVA_COMPUTE = re.compile(r"nova-compute(?:: .{0,20})?", re.ASCII)
"""Its name, and what it calls itself where cotyledon starts it: ``nova-compute: master process``, cut off."""
INIT = "1"
MOST_PROCESSES = 1000
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
    releases: Tuple[str, ...] = ()
    """Of OpenStack, as the tags of images name them."""
    stopped: Tuple[str, ...] = ()
    """Names of containers that are there and do not run."""


@dataclass(frozen=True)
class RebootHint:
    """Whether the packages of this machine ask for a reboot."""

    required: bool = False
    problem: str = ""
    """Why that is not known, and what to do."""


def boot_id(tree: Tree) -> str:
    """Another one after each boot."""
    return (tree.read(BOOT_ID) or "").strip()


def reboot_hint(tree: Tree, program: str = "dnf") -> RebootHint:
    """Ask the packages of this machine: by their file on Debian and Ubuntu, by `program` on RHEL and its kin."""
    if any(tree.read(path) is not None for path in REBOOT_REQUIRED):
        return RebootHint(True)
    return _hint_of_dnf(program) if _is_rpm_family(tree) else RebootHint()


def _is_rpm_family(tree: Tree) -> bool:
    """Whether ID or ID_LIKE of os-release says so: ``ID="rocky"``, ``ID_LIKE="rhel centos fedora"``."""
    lines = (line.partition("=") for line in (tree.read(OS_RELEASE) or "").splitlines())
    names = {name for key, _, value in lines if key in ("ID", "ID_LIKE") for name in value.strip("\"' ").split()}
    return bool(names & RPM_FAMILY)


def _hint_of_dnf(program: str) -> RebootHint:
    try:
        done = subprocess.run(
            [program, *REBOOT_HINT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**_environment(), "LC_ALL": "C.UTF-8", "LANGUAGE": ""},
            timeout=REBOOT_HINT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _unknown_hint(f"{program} needs-restarting did not answer within {REBOOT_HINT_SECONDS} s; mend that")
    except OSError as error:
        return _unknown_hint(f"{program}: {error.strerror}; install dnf and dnf-utils")
    output, errors = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    if done.returncode == 0:
        return RebootHint()
    if done.returncode == 1 and REBOOT_REQUIRED_TEXT in output:
        return RebootHint(True)
    if missing := MISSING_PLUGIN.search(errors):
        package = PLUGIN_PACKAGES[missing.group(1)]
        return _unknown_hint(f"dnf has no needs-restarting; type 'dnf install {package}' there")
    lines = (errors.strip() or output.strip()).splitlines()
    reason = lines[-1][:200] if lines else f"ended with {done.returncode}"
    return _unknown_hint(f"{program} needs-restarting -r: {reason}; mend that")


def _unknown_hint(reason: str) -> RebootHint:
    return RebootHint(problem=f"whether packages ask for a reboot is not known: {reason}")


def look_at_engines(programs: Sequence[str] = ENGINES) -> Engine:
    """All container engines of this machine as one: Kolla's containers may be in any, whatever else is installed."""
    engines = [engine for engine in map(_engine, programs) if engine is not None]
    return Engine(
        engines[0].name if engines else "",
        tuple(sorted({name for engine in engines for name in engine.containers})),
        "; ".join(engine.problem for engine in engines if engine.problem),
        tuple(sorted({release for engine in engines for release in engine.releases})),
        tuple(sorted({name for engine in engines for name in engine.stopped})),
    )


def _engine(program: str) -> Optional[Engine]:
    """None where it is not installed."""
    try:
        runs = _listed(program, _ps(program))
        every = _listed(program, _ps(program, "--all"))
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        return Engine(program, (), f"{program} ps did not answer within {ENGINE_SECONDS} s")
    except OSError as error:
        return Engine(program, (), f"{program}: {error.strerror}")
    except BlockedError as error:
        return Engine(program, (), str(error))
    return replace(runs, stopped=tuple(name for name in every.containers if name not in runs.containers))


def _ps(program: str, *options: str) -> str:
    """Raises OSError, TimeoutExpired, and BlockedError with what the engine says."""
    done = subprocess.run(
        [program, "ps", *options, "--format", "{{.Names}} {{.Image}}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=_environment(),
        timeout=ENGINE_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BlockedError(f"{program} ps: {lines[-1][:200] if lines else f'ended with {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def _listed(program: str, output: str) -> Engine:
    """What ``ps`` printed: a name and an image a line."""
    rows = [line.split() for line in output.splitlines()]
    names = sorted(row[0] for row in rows if row and CONTAINER.fullmatch(row[0]))
    tags = (RELEASE_TAG.fullmatch(row[1]) for row in rows if len(row) == 2)
    releases = sorted({tag.group(1) for tag in tags if tag})
    return Engine(program, tuple(names[:MOST_CONTAINERS]), "", tuple(releases))


def hypervisor_processes(tree: Tree) -> Tuple[str, ...]:
    """Servers that run on this machine, and a nova-compute, which may start one at any moment.

    Containers hide neither: the machine's own /proc has the processes of all of them, and a guest runs on when
    the container that has started it is stopped.
    """
    names = {pid: _hypervisor_process(tree, pid) for pid in _processes(tree)}
    return tuple(f"{name} (process {pid})" for pid, name in names.items() if name)[:MOST_PROCESSES]


def _processes(tree: Tree) -> List[str]:
    return [name for name in tree.names("proc") if name.isdigit()]


def _hypervisor_process(tree: Tree, pid: str) -> str:
    """Return its name; empty for any other process.

    QEMU may call itself as libvirt says (`qemu:instance-00000001`), and its program may have been replaced since by an
    upgrade; so either of the two names is enough. A program with any other name is a guest's when it has a virtual
    machine of KVM open, which only root sees.
    """
    comm = tree.read(f"proc/{pid}/comm") or ""
    program = (tree.link(f"proc/{pid}/exe") or "").rpartition("/")[2]
    if program.endswith(REPLACED):
        program = program[: -len(REPLACED)]
    matches = (name for name in (program, comm) if GUEST.fullmatch(name) or NOVA_COMPUTE.fullmatch(name))
    return next(matches, "") or (program or comm or "a program" if _has_guest(tree, pid) else "")


def _has_guest(tree: Tree, pid: str) -> bool:
    return any(tree.link(f"proc/{pid}/fd/{name}") == GUEST_MEMORY for name in tree.names(f"proc/{pid}/fd"))


def refuse_reboot(tree: Tree) -> None:
    """Raise BlockedError where servers would go down, and where that cannot be seen."""
    if INIT not in _processes(tree):
        raise BlockedError(
            "the processes of this machine cannot be seen, so servers may run on it: run this outside of containers, "
            "with /proc mounted"
        )
    processes = hypervisor_processes(tree)
    if processes:
        more = f" and {len(processes) - 3} more" if len(processes) > 3 else ""
        raise BlockedError(
            f"servers would go down: {', '.join(processes[:3])}{more}; empty this machine, and reboot it yourself"
        )


def reboot_soon(tree: Tree, seconds: float = SOON_SECONDS, command: Sequence[str] = ("systemctl", "reboot")) -> None:
    """Have the machine reboot in good order a little later, whoever asked for it still being there or not.

    Who reboots looks once more for servers right before: one may have been started meanwhile. Then nothing happens, and
    the system's log says why. For a process without threads: it forks.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _reboot_here(tree, seconds, command)
    finally:
        os._exit(0)  # nothing of the caller is finished twice


def _reboot_here(tree: Tree, seconds: float, command: Sequence[str]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # ssh ends with them
        os.dup2(nothing, standard)
    time.sleep(seconds)
    try:
        refuse_reboot(tree)
        subprocess.run(list(command), env=_environment(), check=True)
    except (BlockedError, OSError, subprocess.SubprocessError) as error:
        syslog.syslog(syslog.LOG_ERR, f"gpuyard does not reboot this machine: {error}")


def _environment() -> Dict[str, str]:
    return {**os.environ, "PATH": f"{PATH}:{os.environ.get('PATH', '')}"}
