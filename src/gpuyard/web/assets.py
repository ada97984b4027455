"""Loads the pages' files and templates. They are read once, from the package, and nothing is loaded from outside."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePath

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpuyard import installed_version

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the files in the folder, by suffix."""


DOCUMENTATION = Path(__file__).parent / "documentation.tar.xz"
"""The archive that `make docs-site` writes, and that wheels contain."""


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    assets_by_name = {}
    for entry in (files("gpuyard.web") / "static").iterdir():
        kind = MEDIA_TYPES.get(PurePath(entry.name).suffix)
        if kind:
            assets_by_name[entry.name] = Asset(entry.read_bytes(), kind)
    return assets_by_name


@cache
def documentation(archive: Path = DOCUMENTATION) -> dict[str, bytes]:
    """Return the documentation as a site: every file by its path, about 6 MiB. Empty where the package has none."""
    if not archive.exists():
        return {}
    with tarfile.open(archive) as file:
        entries = [entry for entry in file if entry.isfile()]
        return {entry.name: content.read() for entry in entries if (content := file.extractfile(entry)) is not None}


@cache
def templates() -> Environment:
    # Everything is escaped, whatever a template is called: names of servers are chosen by their users.
    environment = Environment(
        loader=PackageLoader("gpuyard.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["documented"] = bool(documentation())
    return environment


@cache
def build() -> str:
    """Return the name of this version of the pages. It is in the addresses of assets, so that they can be cached for
    ever, and in the pages, so that a page that stays open while gpuyard is upgraded loads itself again."""
    digest = hashlib.sha256(installed_version().encode())
    for name, asset in sorted(assets().items()):
        digest.update(name.encode() + asset.content)
    for name in sorted(templates().list_templates()):
        digest.update((files("gpuyard.web") / "templates" / name).read_bytes())
    return digest.hexdigest()[:12]


def render(template: str, **values: object) -> str:
    """Return a page or a part of one as HTML."""
    return templates().get_template(template).render(build=build(), version=installed_version(), **values)
