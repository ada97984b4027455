"""Writes small files and makes folders that only their owner may read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_private(path: Path, content: str | bytes) -> None:
    """Write a whole file of mode 0600 at once: a reader, or a next start after a crash, sees the old or the new one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value that json.dumps takes, as write_private does."""
    write_private(path, json.dumps(value, indent=2) + "\n")


def private_folder(path: Path) -> Path:
    """Make a folder of mode 0700, and its parents too where they are missing; return it."""
    if not path.parent.exists():
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return path
