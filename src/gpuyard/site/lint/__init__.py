"""The linter: reads any nova.conf and says what would go wrong with GPUs, with file, line, reason and fix.

Pure: texts in, findings out. It never looks at a machine or a cloud, and never raises on what a file says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuyard.model.host import Inventory
from gpuyard.site.lint import (
    alias_checks,
    flavor_checks,
    host_checks,
    names,
    scheduler,
    service_checks,
    spec_checks,
)
from gpuyard.site.lint.layout import config_file, placement_views, views, with_inventories
from gpuyard.site.lint.model import Finding, FlavorText, Severity, Subject, unique
from gpuyard.site.release import Release

ORDER = list(Severity)


def subject_of(
    files: Mapping[str, str],
    release: Release,
    service: str | None = None,
    recorded: Mapping[str, Inventory] | None = None,
    flavors: Sequence[FlavorText] = (),
    flavors_from: str = "flavors",
    base: str = "",
) -> tuple[Subject, list[str]]:
    """Put together what is to be looked at: path -> text of each file, and name -> inventory of each recorded host.

    Relative paths are seen from the folder `base`. The second part of the answer are the recordings that belong to
    none of the files.
    """
    read = tuple(config_file(path, text, service, base) for path, text in files.items())
    seen, unused = with_inventories(views(read), recorded or {})
    return Subject(read, seen, release, tuple(flavors), flavors_from, placement_views(read)), unused


def lint(subject: Subject) -> list[Finding]:
    """All findings, in the order of the files and their lines, flavors last."""
    position = {file.path: index for index, file in enumerate(subject.files)}
    return sorted(
        unique(_findings(subject)),
        key=lambda item: (position.get(item.file, len(position)), item.line or 0, ORDER.index(item.severity)),
    )


def _findings(subject: Subject) -> Iterator[Finding]:
    for file in subject.files:
        yield from names.check_file(file)
    for view in subject.views:
        yield from names.check_view(view)
    for module in (spec_checks, host_checks, alias_checks, scheduler, service_checks, flavor_checks):
        yield from module.check(subject)
