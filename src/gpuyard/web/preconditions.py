"""Checks If-Match and If-None-Match against ETags of bookings, so that nobody overwrites another's change."""

from __future__ import annotations

import re

from fastapi import Request

from gpuyard.web.problems import Refusal

TAG = re.compile(r'"([^"]*)"')  # nothing before the first quote: findall tries that at every place
NO_VERSION = 0
"""A version that no booking has; theirs begin at 1."""


def etag(version: int) -> str:
    return f'"{version}"'


def wanted_version(request: Request, *, required: bool = False) -> int | None:
    """Return the version that a change is meant for; None: any. Raises Refusal 428 when it is required and missing.

    A tag that is none of ours is a version that no booking has. A weak one counts as the strong one that it was
    before a gateway compressed the answer.
    """
    header = request.headers.get("if-match")
    if header is None:
        if required:
            text = 'Send If-Match with the ETag that you have read ("*": change it whatever it is now).'
            raise Refusal(428, "if_match_needed", text)
        return None
    if header.strip() == "*":
        return None
    match = TAG.fullmatch(header.strip().removeprefix("W/"))
    return int(match.group(1)) if match and re.fullmatch(r"[0-9]{1,18}", match.group(1)) else NO_VERSION


def not_modified(request: Request, tag: str) -> bool:
    """Return whether the client already has the version that the tag names."""
    header = request.headers.get("if-none-match", "")
    return header.strip() == "*" or tag.removeprefix("W/").strip('"') in TAG.findall(header)
