"""The input of the linter: files, views, recordings and flavors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuyard.model.finding import Finding
from gpuyard.nova.config import ConfigFile, View
from gpuyard.nova.release import Release


@dataclass(frozen=True)
class FlavorText:
    """A flavor as far as the linter looks at it."""

    name: str
    extra_specs: dict[str, str]


@dataclass(frozen=True)
class LintInput:
    """The files, views and flavors that are checked."""

    files: tuple[ConfigFile, ...]
    views: tuple[View, ...]
    release: Release
    flavors: tuple[FlavorText, ...] = ()
    flavors_from: str = "flavors"
    """The source of the flavors: a file or a cloud."""
    placement: tuple[View, ...] = field(default_factory=tuple)
    """Placement's own configuration, if it was given."""

    def of(self, service: str) -> list[View]:
        return [view for view in self.views if view.serves(service)]


def unique(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without repetitions: a line in a file that several services read is found once for each."""
    return list(dict.fromkeys(findings))
