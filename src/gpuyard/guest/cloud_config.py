"""User data for cloud-init: files and what is run, as text that Nova takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

MOST_BYTES = 65_535
"""Of the user data in base64: Nova takes no more."""
FOLDER = "/var/lib/gpuyard"
"""In the server: our scripts."""
GPU_CHECK = "gpu-check.sh"
"""Of this package: the check of the GPUs that an image may replace by one of its own."""


def cloud_config(document: Mapping[str, object]) -> str:
    """As cloud-init reads it."""
    out = StringIO()
    yaml = YAML()
    yaml.width = 100_000
    yaml.dump(dict(document), out)
    return f"#cloud-config\n{out.getvalue()}"


def guest_file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    """An entry of ``write_files``."""
    shown = LiteralScalarString(content) if "\n" in content else content
    return {"path": path, "permissions": permissions, "owner": "root:root", "content": shown}


@cache
def script(package: str, name: str) -> str:
    """The text of a script that comes with a package: ``gpuyard.guest``."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
