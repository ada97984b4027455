"""The version of a build, which hatchling asks for: a tag's own, or that of the commit that is built.

Each build of other sources has another version, because pip leaves alone what has the version that it is to install.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEXT = "0.2.0"
"""The release that is being worked on."""
TAG = re.compile(r"v([0-9]+\.[0-9]+\.[0-9]+)")
SECONDS = 60.0
SOURCES = ("src", "lab", "pyproject.toml")
"""What goes into the packages. gpuyard and its lab have one version, so what changes one changes that of both."""


def build_version(root: Path = ROOT) -> str:
    """As in ``0.2.0.dev1234+g0a1b2c3d``: the number of commits up to this one, and which it is.

    What is not committed adds a digest of it. An sdist has the version that it was made with, and sources without git
    have a digest of all that goes into the packages.
    """
    metadata = root / "PKG-INFO"
    if metadata.is_file():
        match = re.search(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match[1]
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return f"{NEXT}.dev0+s{_digest_of_sources(root)}"
    commit, count = _git(root, "rev-parse", "--short=8", "HEAD"), _git(root, "rev-list", "--count", "HEAD")
    changes = _git(root, "diff", "HEAD", "--", *SOURCES)
    if commit is None or count is None or changes is None:
        return f"{NEXT}.dev0+s{_digest_of_sources(root)}"
    tag = TAG.fullmatch(_git(root, "describe", "--tags", "--exact-match", "--match", "v*", "HEAD") or "")
    if tag and not changes:
        return tag[1]
    dirty = f".d{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
    return f"{NEXT}.dev{count}+g{commit}{dirty}"


def _git(root: Path, *words: str) -> str | None:
    """What it printed; None when it cannot say."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()


def _digest_of_sources(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*(root / "src").rglob("*"), *(root / "lab").rglob("*")]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
