"""Serves the documentation of this version at /docs, and the API's OpenAPI document at /openapi.json.

The documentation is there only when the package was built with it (`make docs-site`).
"""

from __future__ import annotations

import json
import mimetypes
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from gpuyard.web.assets import DOCUMENTATION, documentation
from gpuyard.web.gateway import up_from
from gpuyard.web.prepared_body import PreparedBody
from gpuyard.web.problems import Refusal

INLINE_SCRIPTS = "inline-scripts.txt"
"""A file of the documentation: hashes of the scripts in its pages, one a line, as a Content-Security-Policy has
them."""

PORTAL = b"<!-- portal -->"
"""Placeholder in its pages for a link to the portal, if a portal serves them (docs/_templates/sidebar)."""
LINK = '<div class="sidebar-tree"><ul><li><a class="reference" href="{}">To the portal</a></li></ul></div>'


def policy(files: dict[str, bytes]) -> str:
    """Return the Content-Security-Policy of the documentation, looser than that of our own pages: its pages have styles
    in attributes, and pictures in style sheets."""
    scripts = "".join(f" '{name}'" for name in files.get(INLINE_SCRIPTS, b"").decode().split())
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def install(app: FastAPI, archive: Path = DOCUMENTATION) -> None:
    @cache
    def openapi() -> PreparedBody:
        # Made when somebody asks for the first time, when all routes are there. Encoding it is 60 ms of CPU.
        return PreparedBody(json.dumps(app.openapi()).encode(), "application/json")

    @app.get("/openapi.json", include_in_schema=False)
    def openapi_document(request: Request) -> Response:
        return openapi().response(request)

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return RedirectResponse("docs/", 308)

    @app.get("/docs/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        files = documentation(archive)
        name = f"{path}index.html" if path == "" or path.endswith("/") else path
        if name not in files:
            detail = (
                f"There is nothing at /docs/{path}." if files else "This gpuyard was built without its documentation."
            )
            raise Refusal(404, "not_found", detail)
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {"Content-Security-Policy": policy(files), "Cache-Control": "public, max-age=600"}
        link = LINK.format(up_from(f"/docs/{name}"))
        return Response(files[name].replace(PORTAL, link.encode()), media_type=media_type, headers=headers)
