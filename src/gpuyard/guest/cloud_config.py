"""Makes user data for cloud-init, files and commands, as text that Nova takes. Pure, but for scripts of our
packages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

MOST_BYTES = 65_535
"""The longest user data in base64, in bytes: Nova takes no more."""
FOLDER = "/var/lib/gpuyard"
"""The folder in the server for our scripts."""
GPU_CHECK = "gpu-check.sh"
"""The script of this package that checks the GPUs; an image may replace it by one of its own."""


def cloud_config(document: Mapping[str, object]) -> str:
    """Format a document as cloud-init reads it."""
    out = StringIO()
    yaml = YAML()
    yaml.width = 100_000
    yaml.dump(dict(document), out)
    return f"#cloud-config\n{out.getvalue()}"


def guest_file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    """Return an entry of ``write_files``."""
    shown = LiteralScalarString(content) if "\n" in content else content
    return {"path": path, "permissions": permissions, "owner": "root:root", "content": shown}


@cache
def script(package: str, name: str) -> str:
    """Return the text of a script that comes with a package, as ``gpuyard.guest``."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
