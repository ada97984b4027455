"""Serves every table of a page as CSV: the address of the page with ``csv=`` and the id of the table.

The CSV is made of the page itself, so that rights, filters and what is hidden of others are those of the page, and
the words are, too; numbers for programs are in the lists of the API (csv_tables.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.web.csv_tables import MEDIA_TYPE, csv_text
from gpuyard.web.problems import Refusal, response_to

PARAMETER = "csv"
OTHERS = ("/v1/", "/docs/", "/static/")
"""Beginnings of paths that are no pages of ours."""


class TableReader(HTMLParser):
    """Parser that collects the cells of one table, without the text of drawings (SVG)."""

    def __init__(self, id: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.found = False
        self._id, self._inside, self._cell, self._drawing = id, False, False, 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table" and not self.found and dict(attrs).get("id") == self._id:
            self._inside = self.found = True
        elif self._inside and tag == "svg":
            self._drawing += 1
        elif self._inside and tag == "tr":
            self.rows.append([])
        elif self._inside and tag in ("th", "td") and self.rows:
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._inside = False
        elif tag == "svg" and self._drawing:
            self._drawing -= 1
        elif tag in ("th", "td", "tr"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._inside and self._cell and not self._drawing:
            self.rows[-1][-1] += data


def table_csv(page: str, id: str) -> str | None:
    """Return a table as CSV, the names of columns first; None when the page has no such table."""
    reader = TableReader(id)
    reader.feed(page)
    reader.close()
    if not reader.found or not reader.rows:
        return None
    head, *rows = ([" ".join(cell.split()) for cell in row] for row in reader.rows)
    return csv_text(head, rows)


class PageTables:
    """Middleware that answers with a table of a page where one is asked for; refusals and other answers stay as they
    are."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(OTHERS):
            await self.app(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        table_ids = [value for name, value in query if name == PARAMETER]
        if not table_ids:
            await self.app(scope, receive, send)
            return
        rest = urlencode([(name, value) for name, value in query if name != PARAMETER])
        # The tag of a page is not that of its tables.
        headers = [(name, value) for name, value in scope["headers"] if name != b"if-none-match"]
        inner = {**scope, "query_string": rest.encode(), "headers": headers}
        begun: Message | None = None
        body: list[bytes] = []

        async def turned(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                kind = MutableHeaders(scope=message).get("content-type", "")
                if message["status"] == 200 and kind.startswith("text/html"):
                    begun = message
                    return
            if begun is None:
                await send(message)
                return
            body.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._send_table(scope, receive, send, begun, b"".join(body).decode(), table_ids[-1])

        await self.app(inner, receive, turned)

    async def _send_table(self, scope: Scope, receive: Receive, send: Send, begun: Message, page: str, id: str) -> None:
        text = await run_in_threadpool(table_csv, page, id)  # nobody else waits for that
        if text is None:
            refusal = Refusal(404, "no_table", f"The page has no table {id[:60]!r}, or it has no rows now.")
            await response_to(refusal)(scope, receive, send)
            return
        content = text.encode()
        headers = MutableHeaders(scope=begun)
        del headers["etag"]
        headers["content-type"] = f"{MEDIA_TYPE}; charset=utf-8; header=present"
        headers["content-length"] = str(len(content))
        headers["content-disposition"] = f'attachment; filename="gpuyard-{scope["path"].strip("/")}-{id}.csv"'
        await send(begun)
        await send({"type": "http.response.body", "body": content})
