"""Watches a site file: when it changes, logs the changes, and has the new site taken up or refuses it.

A change is taken up only when nothing of it is left to apply to the cloud: otherwise the portal would count on
flavors and limits that are not there yet. SIGHUP skips that check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

from gpuyard.model.booking import lasting
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.plan import differences
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite, load_site

LOG = logging.getLogger(__name__)
MOST_LINES = 30
"""Most changes that the log lists."""

Stamp = tuple[tuple[int, int] | None, ...]
"""Time of change and size of the site file and of its recordings; None for one that is not there."""


class SiteWatch:
    """Watches the file of one loaded site.

    A change is taken up when nothing of it is left to apply to the cloud, so that flavors and limits are there
    before the portal counts on them. When it is `forced`, that is not checked. A file that cannot be read or served
    is refused once, and checked again when it changes again.
    """

    def __init__(
        self,
        loaded: LoadedSite,
        left_to_apply: Callable[[CompiledSite], Sequence[str]],
        take_over: Callable[[LoadedSite], None],
    ) -> None:
        """`take_over` may raise GpuyardError, which refuses."""
        self._loaded = loaded
        self._left_to_apply = left_to_apply
        self._take_over = take_over
        self._known = stamp_of(loaded)
        self._waits: Stamp = ()
        self.forced = False

    def look(self) -> None:
        """Read the file again if it has changed. Raises CloudError when the cloud cannot be asked what is left."""
        forced, self.forced = self.forced, False
        stamp = stamp_of(self._loaded)
        if stamp == self._known and not forced:
            return
        path = self._loaded.path
        try:
            new = load_site(path)
            changed = changes(self._loaded, new)
            if not changed:
                self._known = stamp
                LOG.warning("%s was read again: nothing has changed", path)
                return
            if new.site.site != self._loaded.site.site:
                raise UsageError(f"the site is called {new.site.site} now: restart gpuyard serve for another site")
        except GpuyardError as error:
            self._refuse(stamp, error)
            return
        if not forced and (left := self._left_to_apply(new.compiled)):
            if self._waits != stamp:
                LOG.warning(
                    "%s has changed; it is taken up after 'gpuyard site apply', or on SIGHUP. Left to apply: %s",
                    path, _some(left),
                )  # fmt: skip
            self._waits = stamp
            return
        try:
            self._take_over(new)
        except GpuyardError as error:
            self._refuse(stamp, error)
            return
        self._known = stamp
        LOG.warning("%s was read again; what changed: %s", path, _some(changed))

    def _refuse(self, stamp: Stamp, error: GpuyardError) -> None:
        self._known = stamp
        LOG.error("%s has changed and is refused; what was read before stays: %s", self._loaded.path, error)


def stamp_of(loaded: LoadedSite) -> Stamp:
    entries: list[tuple[int, int] | None] = []
    for path in (loaded.path, *(loaded.path.parent / host.recording for host in loaded.site.hosts.values())):
        try:
            stat = path.stat()
            entries.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            entries.append(None)
    return tuple(entries)


def changes(old: LoadedSite, new: LoadedSite) -> list[str]:
    """Return one line for each change: ``booking.longest: 15 days -> 3 days``."""
    before, after = (
        dict(_flat("", loaded.site.model_dump(exclude_unset=True, exclude_none=True))) for loaded in (old, new)
    )
    both = old.inventories.keys() & new.inventories.keys()
    anew = [f"hosts.{name}: recorded anew" for name in sorted(both) if old.inventories[name] != new.inventories[name]]
    return [*differences(before, after), *anew]


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _flat(f"{path}.{key}" if path else key, below)
    elif isinstance(value, timedelta):
        yield path, lasting(value)
    elif isinstance(value, list):
        yield path, f"[{', '.join(str(item) for item in value)}]"
    else:
        yield path, str(value.value if isinstance(value, Enum) else value)


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - MOST_LINES} more" if len(texts) > MOST_LINES else ""
    return "; ".join(texts[:MOST_LINES]) + more
