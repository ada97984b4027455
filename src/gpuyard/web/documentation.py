"""The documentation of this very version, at /docs, where the package was built with it (`make docs-site`), and the
API's OpenAPI document, at /openapi.json."""

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
"""A file of it: hashes of the scripts that its pages contain, a line each, as a Content-Security-Policy has them."""

PORTAL = b"<!-- portal -->"
"""Where its pages have a link to the portal, if it is a portal that serves them (docs/_templates/sidebar)."""
LINK = '<div class="sidebar-tree"><ul><li><a class="reference" href="{}">To the portal</a></li></ul></div>'


def policy(files: dict[str, bytes]) -> str:
    """Looser than that of our own pages: these have styles in their attributes, and pictures in their style sheets."""
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
            told = (
                f"There is nothing at /docs/{path}." if files else "This gpuyard was built without its documentation."
            )
            raise Refusal(404, "not_found", told)
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {"Content-Security-Policy": policy(files), "Cache-Control": "public, max-age=600"}
        link = LINK.format(up_from(f"/docs/{name}"))
        return Response(files[name].replace(PORTAL, link.encode()), media_type=media_type, headers=headers)
