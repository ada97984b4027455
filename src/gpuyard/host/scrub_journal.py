"""The journal of scrub orders that were begun and of results not yet taken: ``/var/lib/gpuyard/scrubs.json``.

An order is written down before anything is done, and its result until the portal has taken it. So after a crash at any
moment it is known which scrubs were begun and not ended: their outcome is unknown, and the portal is told so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Tuple

from gpuyard.host.local_host import STATE_FOLDER, HostAccess
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult

JOURNAL_FILE = f"{STATE_FOLDER}/scrubs.json"
FORMAT = 1
INTERRUPTED = "the scrub was interrupted: what came of it is not known"


@dataclass(frozen=True)
class ScrubJournal:
    begun: Tuple[ScrubOrder, ...] = ()
    results: Tuple[ScrubResult, ...] = ()
    """That the portal has not taken yet."""
    widths: Mapping[str, int] = field(default_factory=dict)
    """Lanes of the links of what is being scrubbed, from before: after a crash they may be fewer."""

    def begin(self, order: ScrubOrder, widths: Mapping[str, int]) -> ScrubJournal:
        widest = {address: max(width, self.widths.get(address, 0)) for address, width in widths.items()}
        return replace(self, begun=(*self.begun, order), widths={**self.widths, **widest})

    def end(self, result: ScrubResult, widths: Mapping[str, int]) -> ScrubJournal:
        """`widths`: those that it began with, which are of use no more."""
        return replace(
            self,
            begun=tuple(order for order in self.begun if order.id != result.order),
            results=(*self.results, result),
            widths={address: width for address, width in self.widths.items() if address not in widths},
        )

    def interrupted(self) -> ScrubJournal:
        """After a start: nothing of what was begun goes on."""
        lost = [ScrubResult(order.id, order.address, ScrubOutcome.UNKNOWN, INTERRUPTED) for order in self.begun]
        return replace(self, begun=(), results=(*self.results, *lost))

    def taken(self, results: Tuple[ScrubResult, ...]) -> ScrubJournal:
        return replace(self, results=tuple(result for result in self.results if result not in results))


def load(host: HostAccess) -> ScrubJournal:
    """Empty when there is none, or when nobody can read it: the portal asks again for what it misses."""
    try:
        data = json.loads(host.tree.read(JOURNAL_FILE) or "{}")
        if data.get("gpuyard_scrubs") != FORMAT:
            return ScrubJournal()
        return ScrubJournal(
            tuple(ScrubOrder(**row) for row in data["begun"]),
            tuple(result_of(row) for row in data["results"]),
            {str(address): int(width) for address, width in data["widths"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ScrubJournal()


def result_of(row: Dict[str, Any]) -> ScrubResult:
    lists = {name: tuple(row[name]) for name in ("functions", "evidence")}
    return ScrubResult(**{**row, **lists, "outcome": ScrubOutcome(row["outcome"])})


def save(host: HostAccess, journal: ScrubJournal) -> None:
    """Make it last. Raises GpuyardError."""
    data = {
        "gpuyard_scrubs": FORMAT,
        "begun": [{"id": order.id, "address": order.address} for order in journal.begun],
        "results": [result.as_dict() for result in journal.results],
        "widths": dict(journal.widths),
    }
    host.write_file(JOURNAL_FILE, json.dumps(data, indent=1) + "\n", 0o600)
