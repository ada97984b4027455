"""Judges the age of a build: whether its driver's branch has ended, and whether its packages have known holes. Pure.

A hole is known when the distribution's archive of security updates has a newer version of an installed package: that
is why there is one. Holes that no update fixes are not in there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from gpuyard.images.driver_end_dates import end_of
from gpuyard.images.packages import fields_of
from gpuyard.images.publishing import StoredImage
from gpuyard.model.finding import Finding, Severity

SOON = timedelta(days=90)
Parts = tuple[tuple[tuple[int, ...], int], ...]
EPOCH, PART = re.compile(r"[0-9]{1,9}"), re.compile(r"([^0-9]*)([0-9]*)")
END = (0,)
NOTHING = (END, 0)
MOST = 200
"""Characters of a version that are compared."""
NAMED = 8
"""Packages that a finding's reason names; its payload has all."""
BUILD_ANEW = "build it anew, check, upload and promote it, then: gpuyard image prune --aged"


def driver_findings(stored: StoredImage, today: date) -> list[Finding]:
    """Return findings about a build's driver; [] without one, and while its branch has time."""
    if not stored.driver:
        return []
    branch = end_of(stored.driver)
    subject = f"NVIDIA's driver branch {stored.driver}"
    if not branch.known:
        reason = f"{subject} is newer than gpuyard's list of branches, so it is not known when it ends"
        return [Finding("image-driver-end", Severity.UNKNOWN, stored.build, reason, "upgrade gpuyard")]
    if branch.over(today):
        ended = f"ended before {branch.day:%Y-%m-%d}" if branch.day else "has ended"
        reason = f"{subject} {ended}: NVIDIA mends nothing in it any more"
        remedy = f"name a newer branch in the site file, if one drives its GPUs, and {BUILD_ANEW}"
        return [Finding("image-driver-end", Severity.WARNING, stored.build, reason, remedy)]
    if branch.day is not None and branch.day - today <= SOON:
        reason = f"{subject} ends before {branch.day:%Y-%m-%d}"
        return [Finding("image-driver-end", Severity.NOTE, stored.build, reason, "name a newer branch soon")]
    return []


def hole_findings(build: str, installed: Mapping[str, str], mended: Mapping[str, str]) -> list[Finding]:
    """Return one finding about the packages of a build. `installed` and `mended`: name -> version."""
    old = {
        name: (version, mended[name])
        for name, version in sorted(installed.items())
        if name in mended and newer(mended[name], version)
    }
    if not old:
        reason = f"none of its {len(installed)} packages has a security update"
        return [Finding("image-holes", Severity.OK, build, reason)]
    named = [f"{name} {now} ({was})" for name, (was, now) in list(old.items())[:NAMED]]
    more = f" and {len(old) - NAMED} more" if len(old) > NAMED else ""
    reason = f"there are security updates of {len(old)} of its packages: {', '.join(named)}{more}"
    return [Finding("image-holes", Severity.WARNING, build, reason, BUILD_ANEW, {"packages": list(old)})]


def mended_versions(indexes: Iterable[str]) -> dict[str, str]:
    """Return package -> its newest version in an archive, from its ``Packages`` files."""
    versions: dict[str, str] = {}
    for index in indexes:
        for paragraph in index.split("\n\n"):
            fields = dict(fields_of(paragraph))
            name, version = fields.get("Package"), fields.get("Version")
            if name and version and (name not in versions or newer(version, versions[name])):
                versions[name] = version
    return versions


def newer(version: str, other: str) -> bool:
    """Return whether a version of dpkg's is above another, as Debian's policy has it (section 5.6.12)."""
    return _key(version) > _key(other)


def _key(version: str) -> tuple[int, Parts, Parts]:
    epoch, colon, rest = version.partition(":") if ":" in version else ("", "", version)
    upstream, dash, revision = rest.rpartition("-")
    return (
        int(epoch) if colon and EPOCH.fullmatch(epoch) else 0,
        _parts(upstream if dash else rest),
        _parts(revision if dash else ""),
    )


def _parts(text: str) -> Parts:
    """By turns what is no digits, and a number. The end is below everything but a tilde."""
    first, *rest = ((_order(words), int(number or 0)) for words, number in PART.findall(text[:MOST]))
    return (first, *(part for part in rest if part != NOTHING), NOTHING)


def _order(words: str) -> tuple[int, ...]:
    return (*(-1 if sign == "~" else ord(sign) + (0 if sign.isalpha() else 1 << 24) for sign in words), *END)
