"""Reads Kolla's variables where they are written down: globals.yml, globals.d, and the inventory's host variables.

kolla-ansible passes globals.yml and then each file of globals.d, by name, as extra variables: a later one wins over
an earlier one, and all of them over the inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from gpuyard.model.errors import UsageError
from gpuyard.site.deploy_rules import truth_of


@dataclass(frozen=True)
class Variable:
    """A value, and the file and line that state it; line 0 where there is none."""

    name: str
    value: Any
    source: str
    line: int = 0

    @property
    def place(self) -> str:
        return f"{self.source} line {self.line}" if self.line else self.source

    @property
    def truth(self) -> bool | None:
        """The value as Ansible's ``bool``. None when only Ansible can tell, because it is Jinja2."""
        return truth_of(self.value)


@dataclass(frozen=True)
class Variables:
    extra: Mapping[str, Variable] = field(default_factory=dict)
    """Variables of globals.yml and globals.d."""
    of_hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Inventory host -> name -> value; empty without an inventory."""

    def all(self, name: str) -> tuple[Variable, ...]:
        """Return the variable: one for every host, or those of the inventory host by host."""
        if name in self.extra:
            return (self.extra[name],)
        return tuple(
            Variable(name, values[name], f"the inventory, of host {host},")
            for host, values in self.of_hosts.items()
            if name in values
        )


def read_variables(files: Iterable[tuple[str, str]]) -> dict[str, Variable]:
    """Read variables from (name, text) of files in the order in which they are passed. Raises UsageError for invalid
    YAML."""
    variables: dict[str, Variable] = {}
    for source, text in files:
        document = _parse(source, text)
        for key, value in document.items():
            variables[str(key)] = Variable(str(key), value, source, document.lc.key(key)[0] + 1)
    return variables


def _parse(source: str, text: str) -> CommentedMap:
    if text.startswith("$ANSIBLE_VAULT"):
        raise UsageError(f"{source} is encrypted as a whole; encrypt the secret values in it instead, or passwords.yml")
    yaml = YAML(typ="rt", pure=True)  # which also takes Ansible's own tags: !vault, !unsafe
    try:
        document = yaml.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise UsageError(f"{source} line {line}: not YAML: {error.problem}") from None
    except YAMLError as error:
        raise UsageError(f"{source}: not YAML: {error}") from None
    if document is None:
        return CommentedMap()
    if not isinstance(document, CommentedMap):
        raise UsageError(f"{source}: expected 'name: value' lines, as in Kolla's example of globals.yml")
    return document


NODE_CONFIG = re.compile(r"\{\{\s*(node_config|CONFIG_DIR)\s*\}\}")


def custom_config(variables: Mapping[str, Variable], folder: str) -> str:
    """Return Kolla's node_custom_config: the folder with the overrides. Raises UsageError when only Ansible could
    tell."""
    config = _resolved(variables.get("node_config"), folder, folder)
    return _resolved(variables.get("node_custom_config"), f"{config}/config", config)


def _resolved(variable: Variable | None, default: str, config: str) -> str:
    if variable is None:
        return default
    path = NODE_CONFIG.sub(lambda match: config, str(variable.value))
    if "{{" in path or "{%" in path:
        raise UsageError(
            f"{variable.place}: {variable.name} is {variable.value!r}, which only Ansible can resolve; write the path"
        )
    return path
