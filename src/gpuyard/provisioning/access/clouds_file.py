"""Reads and writes gpuyard's entries of a clouds.yaml: only its owner may read it, and entries of others stay."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.runtime.config_files import replace_file

Entries = Mapping[str, Mapping[str, Any]]


def read_clouds(path: Path) -> dict[str, Any]:
    """Return clouds by name; none when there is no such file. Raises UsageError."""
    return dict(_document(path)["clouds"])


def write_clouds(path: Path, entries: Entries, like: Path | None = None) -> None:
    """Put clouds into a file, in place of those that have their names. `like`: take the others from there. Readers see
    the old file or the new one. Raises UsageError and GpuyardError."""
    document = _document(like or path)
    document["clouds"].update(entries)
    text = io.StringIO()
    path = path.resolve()  # a link stays a link
    YAML().dump(document, text)
    try:
        replace_file(path, text.getvalue().encode(), mode=0o600)
    except OSError as error:
        raise GpuyardError(f"{path} cannot be written: {error.strerror}") from None


def _document(path: Path) -> Any:
    try:
        document = YAML().load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"clouds": {}}
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no YAML"  # whose message would quote secrets
        raise UsageError(f"{path} cannot be read: {why}") from None
    clouds = document.get("clouds") if isinstance(document, dict) else None
    if not isinstance(clouds, dict) or not all(isinstance(cloud, dict) for cloud in clouds.values()):
        raise UsageError(f"{path} has no 'clouds:' with the clouds by name; name another file with --clouds")
    return document
