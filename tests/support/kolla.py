"""The real kolla-ansible, from its released wheel in a virtual environment of its own, and folders for it to work on.

GPUYARD_TEST_KOLLA names the folder where the environment is kept between runs; ~/.cache/gpuyard-tests otherwise.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.support import uv

# The collections that kolla-ansible needs come from the `ansible` wheel: same code, and one index less to reach.
PACKAGES = ("kolla-ansible==22.0.0", "ansible-core==2.19.14")
COLLECTIONS = ("ansible==12.3.0",)
OLDER = ("20.6.0", "21.3.0")
"""Further releases, of which variables, templates and filters are evaluated."""
CACHE = "GPUYARD_TEST_KOLLA"
KOLLA_USER = {"network_interface": "lo", "neutron_external_interface": "lo", "kolla_internal_vip_address": "127.0.0.1"}

MERGER = """
import importlib.util, io, json, sys
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template
init_plugin_loader()  # for filters of collections
spec = importlib.util.spec_from_file_location("merge_configs", sys.argv[1])
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)
for line in sys.stdin:
    request = json.loads(line)
    action = object.__new__(plugin.ActionModule)
    action._loader = DataLoader()
    action._templar = Templar(action._loader, variables=request["variables"])
    if "template" in request:
        variables = dict(request["variables"])
        for file in request["files"]:  # as -e @FILE
            variables.update(action._loader.load_from_file(file, trusted_as_template=True))
        templar = Templar(action._loader, variables=variables)
        print(json.dumps({"text": templar.template(trust_as_template(request["template"]))}), flush=True)
        continue
    config = plugin.OverrideConfigParser()
    try:
        for source in request["sources"]:
            action.read_config(source, config)
        text = io.StringIO()
        config.write(text)
        answer = {"text": text.getvalue()}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""


class NoKolla(Exception):
    """It cannot be installed here."""


@dataclass(frozen=True)
class Kolla:
    """An installed kolla-ansible. One of OLDER has files alone, for the Ansible in `folder` to evaluate."""

    folder: Path
    older: Path | None = None
    """Where the files of another release are."""

    @property
    def program(self) -> Path:
        return self.folder / "bin/kolla-ansible"

    @property
    def ansible(self) -> Path:
        """Its playbooks and roles."""
        return (self.older or self.folder) / "share/kolla-ansible/ansible"

    def tasks(self, role: str) -> list[dict[str, Any]]:
        text = (self.ansible / f"roles/{role}/tasks/config.yml").read_text()
        tasks: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(text)
        return tasks

    def sources(self, role: str) -> list[str]:
        """The files that the role merges for a service, as its task names them."""
        merges = [task["merge_configs"]["sources"] for task in self.tasks(role) if "merge_configs" in task]
        assert len(merges) == 1
        return [str(source) for source in merges[0]]

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), *words],
            stdin=subprocess.DEVNULL,  # Ansible refuses one that does not block
            capture_output=True,
            text=True,
            env=self.environment(**variables),
        )

    def environment(self, **variables: str) -> dict[str, str]:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        # Filters import the package kolla_ansible, which must be of the same release as they.
        modules = {} if self.older is None else {"PYTHONPATH": str(self.older)}
        return {**os.environ, "PATH": path, "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8", **modules, **variables}


def install() -> Kolla:
    """Install it once. Raises NoKolla when the index cannot be reached."""
    home = Path(os.environ.get(CACHE) or Path.home() / ".cache/gpuyard-tests")
    home.mkdir(parents=True, exist_ok=True)
    version = re.sub(r"[^0-9.]+", "-", "".join(PACKAGES)).strip("-")
    folder = home / f"kolla-ansible{version}-python3.{sys.version_info.minor}"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _command([sys.executable, "-m", "venv", "--without-pip", str(folder)])
            _install(folder, PACKAGES)
            _install(folder, COLLECTIONS, "--no-deps")
            (folder / "complete").touch()
    return Kolla(folder)


def install_older(version: str) -> Kolla:
    """The files of one of OLDER, beside the newest one. Raises NoKolla when the index cannot be reached."""
    newest = install()
    folder = newest.folder.parent / f"kolla-ansible-{version}-files"
    with (newest.folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            words = ["pip", "install", "--quiet", "--no-deps", "--python", str(newest.folder / "bin/python")]
            _command([uv.program(), *words, "--target", str(folder), f"kolla-ansible=={version}"])
            (folder / "complete").touch()
    return Kolla(newest.folder, folder)


def _install(folder: Path, packages: Sequence[str], *options: str) -> None:
    _command([uv.program(), "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *options, *packages])


def _command(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoKolla(str(error)) from None
    if done.returncode:
        raise NoKolla(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")


class Merger:
    """kolla-ansible's merge_configs with Ansible's templating, in a process that answers many times."""

    def __init__(self, kolla: Kolla) -> None:
        plugin = kolla.ansible / "action_plugins/merge_configs.py"
        self.kolla = kolla
        self.process = subprocess.Popen(
            [str(kolla.folder / "bin/python"), "-c", MERGER, str(plugin)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kolla.environment(ANSIBLE_FILTER_PLUGINS=str(kolla.ansible / "filter_plugins")),
        )

    def merge(self, sources: Sequence[str], variables: Mapping[str, Any] | None = None) -> str:
        """The merged file. Raises ValueError with Ansible's error."""
        answer = self._answer({"sources": list(sources), "variables": dict(variables or {})})
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["text"])

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin)
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def template(self, text: str, files: Sequence[Path], variables: Mapping[str, Any]) -> str:
        """A template's text, with variables of files that are passed as kolla-ansible passes globals.yml."""
        request = {"template": text, "files": [str(path) for path in files], "variables": dict(variables)}
        answer = self._answer(request)["text"]
        return "" if answer is None else str(answer)  # Ansible makes None of an empty text

    def service(
        self, role: str, service: str, host: str, custom: Path, base: Path, variables: Mapping[str, Any] | None = None
    ) -> str:
        """What a service on a host would get, with `base` in the place of the role's own template."""
        names = {"node_custom_config": str(custom), "item.key": service, "inventory_hostname": host}
        template, *overrides = self.kolla.sources(role)
        assert template.startswith("{{ role_path }}/templates/")
        return self.merge([str(base), *(_filled(source, names) for source in overrides)], variables)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


def _filled(source: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        source = source.replace(f"{{{{ {name} }}}}", value)
    assert "{{" not in source, source
    return source


def kolla_folder(folder: Path, globals_text: str = "", **overrides: str) -> Path:
    """A configuration folder: globals.yml, and override files, where '__' stands for '/' and '_conf' for '.conf'."""
    (folder / "config").mkdir(parents=True, exist_ok=True)
    (folder / "globals.yml").write_text(globals_text or '---\nkolla_base_distro: "ubuntu"\n')
    for name, text in overrides.items():
        write_override(folder, name.replace("__", "/").replace("_conf", ".conf"), text)
    return folder


def write_override(folder: Path, path: str, text: str) -> Path:
    file = folder / "config" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def local_inventory(kolla: Kolla, path: Path, computes: Sequence[str]) -> Path:
    """Kolla's own example of an inventory, on this machine; without a load balancer, whose play needs no test here."""
    text = (kolla.ansible / "inventory/multinode").read_text()
    text = re.sub(r"^(?:control|network|compute|monitoring|storage)\d+\n", "", text, flags=re.MULTILINE)
    for group, hosts in (("control", ["control01"]), ("network", ["control01"]), ("compute", computes)):
        text = text.replace(f"[{group}]\n", f"[{group}]\n" + "".join(f"{host}\n" for host in hosts), 1)
    text = text.replace("[loadbalancer:children]\nnetwork\n", "[loadbalancer:children]\n")
    path.write_text(
        f"{text}\n[all:vars]\nansible_connection=local\nansible_python_interpreter={kolla.folder}/bin/python\n"
    )
    return path
