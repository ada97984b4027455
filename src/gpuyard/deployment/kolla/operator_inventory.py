"""Reads the operator's Ansible inventory by ``ansible-inventory``."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.model.errors import GpuyardError, UsageError

SECONDS = 120.0


@dataclass(frozen=True)
class KollaInventory:
    """Hypervisors, and the variables that the inventory sets for hosts. They may hold secrets: never print one."""

    computes: tuple[str, ...]
    variables: Mapping[str, Mapping[str, Any]]


def read_inventory(files: Sequence[Path], group: str, program: Path | None = None) -> KollaInventory:
    """Read an inventory by ``ansible-inventory`` (`program`: that one). Raises UsageError or GpuyardError when it
    fails."""
    for path in files:
        if not path.exists():
            raise UsageError(f"{path}: there is no such inventory")
    words = [str(program or "ansible-inventory"), "--list"]
    words += [word for path in files for word in ("--inventory", str(path))]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
    except FileNotFoundError:
        raise GpuyardError(
            f"{words[0]} is not in PATH; run this where kolla-ansible is installed (activate its virtual environment)"
        ) from None
    except OSError as error:
        raise GpuyardError(f"{words[0]} does not run: {error.strerror}; install kolla-ansible again") from None
    except subprocess.TimeoutExpired:
        raise GpuyardError(f"{words[0]} did not answer within {SECONDS:.0f} s") from None
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        hint = "; ANSIBLE_VAULT_PASSWORD_FILE names the file with the password" if "vault" in done.stderr else ""
        raise UsageError(f"ansible-inventory cannot read {', '.join(map(str, files))}: {reason}{hint}")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise GpuyardError(
            f"{words[0]} printed something that is not JSON; run it yourself: {shlex.join(words)}"
        ) from None
    return parse_inventory(document, group)


def parse_inventory(document: Mapping[str, Any], group: str) -> KollaInventory:
    """Parse the output of ``ansible-inventory --list``."""
    return KollaInventory(tuple(_members(document, group)), document.get("_meta", {}).get("hostvars", {}))


def _members(document: Mapping[str, Any], group: str) -> list[str]:
    """Hosts of a group and of the groups in it, once each."""
    hosts: dict[str, None] = {}
    waiting, visited = [group], set()
    while waiting:
        name = waiting.pop(0)
        if name not in visited:
            visited.add(name)
            members = document.get(name, {})
            hosts.update(dict.fromkeys(members.get("hosts", ())))
            waiting += members.get("children", ())
    return list(hosts)


def inventory_names(hosts: Sequence[str], computes: Sequence[str], group: str) -> tuple[dict[str, str], list[str]]:
    """Return host of the site -> its name in the inventory, and all problems.

    That is the same name, or the only one that is the same up to the first dot: Nova may know a host by its full
    name.
    """
    names: dict[str, str] = {}
    problems = []
    for host in hosts:
        short = [name for name in computes if name.split(".")[0] == host.split(".")[0]]
        match = [name for name in computes if name == host] or short
        if len(match) == 1:
            names[host] = match[0]
        else:
            have = ", ".join(computes[:8]) + (", ..." if len(computes) > 8 else "")
            reason = f"could be {' or '.join(match)}" if match else f"is none of its hosts: {have or 'it has none'}"
            problems.append(f"host {host} of the site is not in group {group} of the inventory: it {reason}")
    taken: dict[str, str] = {}
    for host, name in names.items():
        if name in taken:
            problems.append(f"hosts {taken[name]} and {host} of the site would both be {name} of the inventory")
        taken[name] = host
    return names, problems
