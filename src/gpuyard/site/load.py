"""Reads ``site.yaml`` and the recordings that it names; every problem comes with file, line and what to write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from gpuyard.host.recording import replay_file
from gpuyard.model.errors import UsageError
from gpuyard.model.host import Inventory
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.document import Bounds, DocumentError, values
from gpuyard.site.problems import Problem, SiteError, located, of_validation
from gpuyard.site.schema import Site

MAX_MIB = 4
BOUNDS = Bounds(values=200_000)


@dataclass(frozen=True)
class LoadedSite:
    """A site without problems, the inventories of its hosts, and its compiled form."""

    path: Path
    site: Site
    inventories: dict[str, Inventory]
    compiled: CompiledSite


def load_site(path: Path) -> LoadedSite:
    """Read, check and compile a site. Raises SiteError with all problems found, UsageError when it cannot be read."""
    site, text = _read_site(path)
    inventories, problems = _inventories(path, site)
    if problems:  # what else there is to say would follow from the missing hosts
        raise located(str(path), _parse(path, text, places=True), problems)
    compiled, problems = compile_site(site, inventories)
    if problems:
        raise located(str(path), _parse(path, text, places=True), problems)
    return LoadedSite(path, site, inventories, compiled)


def read_site(path: Path) -> Site:
    """Read a site file, whether its recordings are there already or not. Raises SiteError, UsageError."""
    return _read_site(path)[0]


def _read_site(path: Path) -> tuple[Site, str]:
    text = _read(path)
    try:
        return Site.model_validate(_plain(path, _parse(path, text))), text
    except ValidationError as error:
        document = _parse(path, text, places=True)
        raise located(str(path), document, of_validation(error, document)) from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read((MAX_MIB << 20) + 1)
        if len(text) > MAX_MIB << 20:
            raise UsageError(f"{path}: larger than {MAX_MIB} MiB, which no site file is; is it the right file?")
        return text.decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; name the site file with --site or GPUYARD_SITE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _parse(path: Path, text: str, places: bool = False) -> Any:
    """The document; with `places`, which takes longer, it knows the line of each of its parts."""
    try:
        document = YAML(typ="rt").load(text) if places else values(text, BOUNDS)
    except DocumentError as error:
        raise SiteError([f"{path}:{error.line}: {error.problem}"]) from None
    if document is None:
        raise SiteError([f"{path}:1: the file is empty; start with 'site: NAME'"])
    return document


def _plain(path: Path, node: Any) -> Any:
    """The document with text for keys. Raises SiteError for keys that are the same as text."""
    if isinstance(node, dict):
        keys = [str(key) for key in node]
        if twice := sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []:
            raise SiteError([f"{path}:1: the key {twice[0]} is there twice, once with quotes; keep one of them"])
        return {str(key): _plain(path, value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(path, value) for value in node]
    return node


def _inventories(path: Path, site: Site) -> tuple[dict[str, Inventory], list[Problem]]:
    inventories: dict[str, Inventory] = {}
    problems: list[Problem] = []
    for name, host in site.hosts.items():
        try:
            inventory = replay_file(path.parent / host.recording)
            if host.disk is not None:
                inventory = replace(inventory, facts=replace(inventory.facts, disk_gib=host.disk))
            inventories[name] = inventory
        except (UsageError, ValueError) as error:
            problems.append(Problem(("hosts", name, "recording"), str(error)))
    return inventories, problems
