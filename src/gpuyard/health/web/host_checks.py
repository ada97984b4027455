"""Runs the checks of `gpuyard host check` on the recordings of a site's hosts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gpuyard.host.checks import Machine, check
from gpuyard.host.judge import judge
from gpuyard.host.recording import replay_tree
from gpuyard.model.errors import UsageError
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.load import LoadedSite

KEPT = 64
"""Hosts whose findings are remembered: they change with the site file only."""


class RecordedChecks:
    """Findings of recorded hosts, cached for 64 of them. Safe to use from several threads."""

    def __init__(self, site: LoadedSite) -> None:
        self._site = site
        self.of = lru_cache(KEPT)(self._check)

    def _check(self, host: str) -> Sequence[Finding]:
        """The worst first; of a host of the site whose recording cannot be read (any more) that it cannot."""
        site_host = self._site.site.hosts.get(host)
        if site_host is None:
            return ()
        path = self._site.path.parent / site_host.recording
        try:
            tree, inventory = replay_tree(path.read_text(encoding="utf-8"), str(path))
            findings = check(Machine(tree, inventory, judge(inventory)))
        except (OSError, UsageError, ValueError) as error:
            return (Finding("recording", Severity.UNKNOWN, "", f"the recording cannot be read: {error}"),)
        return tuple(sorted(findings, key=lambda finding: finding.severity.rank))
