"""Builds the documentation as a site, in dist/docs, and packs it for the portal. `make docs-site` runs it; a warning is
an error."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
from html.parser import HTMLParser
from pathlib import Path

from gpuyard.web.assets import DOCUMENTATION
from gpuyard.web.documentation import INLINE_SCRIPTS

ROOT = Path(__file__).parents[1]
SITE = ROOT / "dist/docs"
LEFT_OUT = (".buildinfo", ".doctrees", ".nojekyll")


class _InlineScripts(HTMLParser):
    """What a page runs that is written in it, not loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and "src" not in dict(attrs)

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.add(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def hashes_of_scripts(pages: list[str]) -> list[str]:
    """As a Content-Security-Policy names them, so that these and no others run."""
    parser = _InlineScripts()
    for page in pages:
        parser.feed(page)
    digests = (hashlib.sha256(script.encode()).digest() for script in parser.found)
    return sorted(f"sha256-{base64.b64encode(digest).decode()}" for digest in digests)


WRAPPER = '<div class="table-wrapper '
"""Where a table begins that scrolls by itself, in the pages of the theme."""


def reachable(page: str) -> str:
    """The page with tables that are scrolled with keys, too, and have a name for it."""
    return page.replace(WRAPPER, WRAPPER.replace("<div ", '<div tabindex="0" role="group" aria-label="Table" '))


def build(site: Path) -> int:
    """Exit code of Sphinx."""
    shutil.rmtree(site, ignore_errors=True)
    words = ["-b", "html", "-W", "--keep-going", "-q", "-d", str(site / ".doctrees")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words, str(ROOT / "docs"), str(site)]).returncode
    if done == 0:
        for path in site.rglob("*.html"):
            path.write_text(reachable(path.read_text()))
        pages = [path.read_text() for path in sorted(site.rglob("*.html"))]
        (site / INLINE_SCRIPTS).write_text("\n".join(hashes_of_scripts(pages)) + "\n")
    return done


def pack(site: Path, archive: Path) -> None:
    """The same bytes for the same site: all pages repeat the navigation, so together they take a quarter of what they
    take one by one."""
    with tarfile.open(archive, "w:xz") as file:
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site)
            if path.is_file() and name.parts[0] not in LEFT_OUT:
                entry = tarfile.TarInfo(name.as_posix())
                content = path.read_bytes()
                entry.size = len(content)
                file.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    if failed := build(SITE):
        sys.exit(failed)
    pack(SITE, DOCUMENTATION)
