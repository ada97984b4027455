"""The linter: reads any nova.conf and says what would go wrong with GPUs, with file, line, reason and fix. Pure.

Texts go in, findings come out. It never looks at a machine or a cloud, and never raises on the content of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuyard.diagnosis.lint import (
    alias_checks,
    flavor_checks,
    host_checks,
    names,
    scheduler,
    service_checks,
    spec_checks,
)
from gpuyard.diagnosis.lint.layout import config_files, placement_views, views, with_inventories
from gpuyard.diagnosis.lint.model import FlavorText, LintInput, unique
from gpuyard.model.finding import Finding
from gpuyard.model.host import Inventory
from gpuyard.nova.release import Release


def subject_of(
    files: Mapping[str, str],
    release: Release,
    service: str | None = None,
    recorded: Mapping[str, Inventory] | None = None,
    flavors: Sequence[FlavorText] = (),
    flavors_from: str = "flavors",
    base: str = "",
) -> tuple[LintInput, list[str]]:
    """Put together the subject: path -> text of each file, and name -> inventory of each recorded host.

    Relative paths are seen from the folder `base`. The second part of the result are the recordings that belong to none
    of the files.
    """
    read = tuple(file for path, text in files.items() for file in config_files(path, text, service, base))
    all_views, unused = with_inventories(views(read), recorded or {})
    return LintInput(read, all_views, release, tuple(flavors), flavors_from, placement_views(read)), unused


def lint(subject: LintInput) -> list[Finding]:
    """Return all findings, in the order of the files and their lines, flavors last."""
    position = {file.path: index for index, file in enumerate(subject.files)}

    def place(item: Finding) -> tuple[int, int, int]:
        file, line = item.payload["file"], item.payload["line"]
        return position.get(file, len(position)), line or 0, item.severity.rank

    return sorted(unique(_findings(subject)), key=place)


def _findings(subject: LintInput) -> Iterator[Finding]:
    for file in subject.files:
        yield from names.check_file(file, subject.release)
    for view in subject.views:
        yield from names.check_view(view)
    for module in (spec_checks, host_checks, alias_checks, scheduler, service_checks, flavor_checks):
        yield from module.check(subject)
