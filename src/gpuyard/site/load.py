"""Reads ``site.yaml`` and the recordings that it names; every problem comes with file, line and what to write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from gpuyard.host.recording import replay_file
from gpuyard.model.errors import UsageError
from gpuyard.model.host import Inventory
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.problems import Problem, SiteError, located, of_validation
from gpuyard.site.schema import Site


@dataclass(frozen=True)
class LoadedSite:
    """A site without problems, the inventories of its hosts, and what it compiles to."""

    path: Path
    site: Site
    inventories: dict[str, Inventory]
    compiled: CompiledSite


def load_site(path: Path) -> LoadedSite:
    """Read, check and compile a site. Raises SiteError with all problems found, UsageError when it cannot be read."""
    text = _read(path)
    try:
        site = Site.model_validate(_plain(_parse(path, text)))
    except ValidationError as error:
        document = _parse(path, text, places=True)
        raise located(str(path), document, of_validation(error, document)) from None
    inventories, problems = _inventories(path, site)
    if problems:  # what else there is to say would follow from the missing hosts
        raise located(str(path), _parse(path, text, places=True), problems)
    compiled, problems = compile_site(site, inventories)
    if problems:
        raise located(str(path), _parse(path, text, places=True), problems)
    return LoadedSite(path, site, inventories, compiled)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; name the site file with --site or GPUYARD_SITE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _parse(path: Path, text: str, places: bool = False) -> Any:
    """The document; with `places`, which takes longer, it knows the line of each of its parts."""
    try:
        document = YAML(typ="rt").load(text) if places else YAML(typ="safe", pure=True).load(text)
    except DuplicateKeyError as error:
        raise SiteError([f"{path}:{_line(error)}: {error.problem}; keep one of them"]) from None
    except MarkedYAMLError as error:
        raise SiteError([f"{path}:{_line(error)}: not YAML: {error.problem}"]) from None
    except YAMLError as error:
        raise SiteError([f"{path}:1: not YAML: {error}"]) from None
    if document is None:
        raise SiteError([f"{path}:1: the file is empty; start with 'site: NAME'"])
    return document


def _line(error: MarkedYAMLError) -> int:
    return error.problem_mark.line + 1 if error.problem_mark is not None else 1


def _plain(node: Any) -> Any:
    """The document without ruamel's types and comments."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    return node


def _inventories(path: Path, site: Site) -> tuple[dict[str, Inventory], list[Problem]]:
    inventories: dict[str, Inventory] = {}
    problems: list[Problem] = []
    for name, host in site.hosts.items():
        try:
            inventories[name] = replay_file(path.parent / host.recording)
        except UsageError as error:
            problems.append(Problem(("hosts", name, "recording"), str(error)))
    return inventories, problems
