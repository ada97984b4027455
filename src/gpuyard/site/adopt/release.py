"""Which release a cloud is of, from what its Nova says."""

from __future__ import annotations

from gpuyard.model.errors import UsageError
from gpuyard.site.release import RELEASES

# The newest microversion of each release, from Nova's REST API version history.
RELEASES_OF = {"2.100": ("2025.1", "2025.2"), "2.103": ("2026.1",), "2.104": ("2026.2",)}


def release_of(wanted: str | None, microversion: str) -> str:
    """The release that was asked for, or else the one whose newest microversion this is. Raises UsageError when that
    is none that gpuyard knows, or not one alone."""
    known = ", ".join(RELEASES)
    if wanted is not None:
        if wanted not in RELEASES:
            raise UsageError(f"release {wanted!r} is not known; write one of {known}")
        return wanted
    found = RELEASES_OF.get(microversion, ())
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"Nova of {' and of '.join(found)} cannot be told apart from outside; say which: --release")
    said = f"the newest microversion of its API is {microversion}" if microversion else "its API does not say"
    raise UsageError(f"Nova's release cannot be told ({said}); give the nearest one: --release, of {known}")
