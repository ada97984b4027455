"""Writes the example site as the lab runs it: the file that comes with the lab, and runners for the GitHub beside the
lab.

The runners' part names ports and files of one lab, so each lab has a file of its own.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from gpuyard_lab.files import write_private
from gpuyard_lab.plan import EXAMPLE_SITE
from gpuyard_lab.releases.catalogue import OWN, lab_release
from gpuyard_lab.settings import EXAMPLE, Lab

RUNNERS = EXAMPLE_SITE.with_name("runners.yaml")
HEAD = f"""# Written by 'gpuyard lab up' of {EXAMPLE_SITE}
# and {RUNNERS.name} beside it: what is changed here is lost. Copy it, and name the copy with --site.
"""


def planned_example(release: str, folder: Path) -> Path:
    """Write the example site for a release into a folder, to plan the lab's hosts from it: with runners, which have
    Nova options of their own, and without a lab's ports and files. Returns the file. Raises LabSettingsError."""
    if release != OWN:
        lab_release(release)  # else the site would be blamed, in a file that nobody knows
    file = folder / EXAMPLE_SITE.name
    runners = RUNNERS.read_text(encoding="utf-8").replace("{url}", "http://127.0.0.1").replace("{state}", str(folder))
    file.write_text(_of(release, EXAMPLE_SITE.read_text(encoding="utf-8")) + runners, encoding="utf-8")
    return file


def write_example(lab: Lab) -> None:
    """Write the site file of a lab that runs the example, and the secrets that it names. Files that are right already
    are left alone: the portal watches the site file."""
    if lab.site != EXAMPLE or lab.site_file is None:
        return
    for path in (lab.github_token, lab.github_secret):
        if not path.exists():
            write_private(path, secrets.token_hex(20) + "\n")
    text = HEAD + _of(lab.release, EXAMPLE_SITE.read_text(encoding="utf-8")) + RUNNERS.read_text(encoding="utf-8")
    text = text.replace("{url}", lab.github_url).replace("{state}", str(lab.state))
    if not _is(lab.site_file, text):
        write_private(lab.site_file, text)


def _of(release: str, text: str) -> str:
    """The example for a release, to be read from anywhere."""
    text = text.replace("recordings/", f"{EXAMPLE_SITE.parent}/recordings/")
    return text.replace(f'release: "{OWN}"', f'release: "{release}"')


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text
