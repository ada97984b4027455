"""Writes the packages of the releases that a lab can run, each in the version that it had when the release came out.

    uv run python -m tools.release_locks 2025.1

The services themselves are in the newest versions of their series, as `catalogue.py` has them; what they need is as
old as the release, since newer libraries break older services.
"""

from __future__ import annotations

import os
import subprocess
import sys

from gpuyard_lab.releases.catalogue import LAB_RELEASES, OLDEST_PYTHON, LabRelease, spoken

DATES = {
    "2024.1": "2024-04-10",
    "2024.2": "2024-10-09",
    "2025.1": "2025-04-10",
    "2025.2": "2025-10-08",
    "2026.1": "2026-04-08",
}
"""A week after each release."""
BESIDE = ("waitress", "psycopg2-binary", "PyMySQL", "setuptools<80", "legacy-cgi; python_version >= '3.13'")
"""What the lab's own code needs there. Older releases import pkg_resources, which setuptools has had until 80."""
LATER = {"2024.1": ("oslo.service==3.5.0",)}
"""What the newest versions of a series need that is younger than the release."""
HEAD = "# OpenStack {name}, by tools/release_locks.py\n"


def lock(release: LabRelease) -> str:
    """Ask PyPI through uv."""
    services = [f"{package}=={version}" for package, version in release.services.items()]
    later = LATER.get(release.name, ())
    young = [requirement.partition("==")[0].replace(".", "-") for requirement in (*services, *later)]
    command = [
        os.environ.get("UV", "uv"), "pip", "compile", "--quiet", "--universal", "--no-annotate", "--no-header",
        "--python-version", spoken(OLDEST_PYTHON), "--exclude-newer", DATES[release.name],
        *(word for name in young for word in ("--exclude-newer-package", f"{name}=2026-11-01")), "-",
    ]  # fmt: skip
    requirements = "\n".join([*services, *later, *BESIDE])
    return subprocess.run(command, input=requirements, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for name in sys.argv[1:] or LAB_RELEASES:
        found = LAB_RELEASES[name]
        found.lock.write_text(HEAD.format(name=name) + lock(found), encoding="utf-8")
        print(found.lock)
