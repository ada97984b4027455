"""Response bodies that are made once for many clients: the OpenAPI document and the metrics."""

from __future__ import annotations

import gzip
import re

from fastapi import Request, Response

LEVEL = 6
"""Compression level of gzip: the last two percent of a long body would take four times as long."""

WEIGHT = re.compile(r"1(?:\.0{0,3})?|0\.[0-9]{0,2}[1-9][0-9]{0,2}", re.ASCII)
"""A weight (q) above zero."""


class PreparedBody:
    """A response body, with and without compression. The GZip middleware leaves it alone."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._plain, self._compressed = content, gzip.compress(content, LEVEL, mtime=0)
        self._media_type = media_type

    def response(self, request: Request) -> Response:
        """Answer in the encoding that the client accepts."""
        headers = {"Content-Type": self._media_type, "Vary": "Accept-Encoding"}
        if accepts_gzip(", ".join(request.headers.getlist("accept-encoding"))):
            return Response(self._compressed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self._plain, headers=headers)


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding lets us compress (RFC 9110, 12.5.3): a weight of zero forbids it. An unreadable
    one counts as a no."""
    weights = {}
    for item in accepted.lower().split(","):
        name, _, parameter = item.partition(";")
        key, _, value = parameter.strip().partition("=")
        weights[name.strip()] = value.strip() if key.strip() == "q" else ("0" if key else "1")
    return WEIGHT.fullmatch(weights.get("gzip", weights.get("*", "0"))) is not None
