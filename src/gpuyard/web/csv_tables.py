"""Converts the API's lists to CSV: with ``?format=csv``, or for clients that accept text/csv.

The table is made of the same answer, so that rights, filters and what is hidden of others are those of the list. A
list is a document with one array of rows. Its columns are the fields of a row, whether or not there are rows; fields
of a field are columns of their own (``server.name``), several words in one cell have spaces between them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin
from urllib.parse import parse_qsl, urlencode

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.model.text import cell, printable
from gpuyard.web.problems import Refusal, response_to

MEDIA_TYPE = "text/csv"
FORMATS = ("json", "csv")
LINKS = "links"
"""The one array of documents that is no table: links to other pages."""


@dataclass(frozen=True)
class Table:
    """The array of a document that has the rows, and their columns."""

    key: str
    columns: tuple[tuple[str, ...], ...]
    """For each column the keys that lead to it."""


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV (RFC 4180) with a line of names. No text from others is taken for a formula or steers a terminal."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        return cell(printable(" ".join(map(str, value))))
    return cell(printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


@cache
def table_of(model: type[BaseModel]) -> Table | None:
    """Return the table of a document; None when it has no list, or several."""
    rows = {name: row for name, field in model.model_fields.items() if (row := _row(field.annotation))}
    rows.pop(LINKS, None)
    return Table(key, tuple(_columns(rows[key]))) if (key := next(iter(rows), "")) and len(rows) == 1 else None


def _row(annotation: Any) -> type[BaseModel] | None:
    """What a list is of."""
    inner = get_args(annotation)[0] if get_origin(annotation) is list else None
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _columns(row: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in row.model_fields.items():
        path = (*above, field.serialization_alias or name)
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        inner = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        if inner is not None and get_origin(field.annotation) is not list:
            yield from _columns(inner, path)
        elif get_origin(field.annotation) is dict and issubclass(kinds[0], Enum):
            yield from ((*path, str(member.value)) for member in kinds[0])
        else:
            yield path


def csv_of(document: Mapping[str, Any], table: Table) -> str:
    """Return a document as CSV. `document`: as JSON has it."""
    names = [".".join(path) for path in table.columns]
    return csv_text(names, ([_at(row, path) for path in table.columns] for row in document[table.key]))


def _at(row: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


class CsvTables:
    """Middleware that turns lists in an app's answers into CSV for clients that ask for it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        try:
            scope, table = asked(scope)
        except Refusal as refusal:
            await response_to(refusal)(scope, receive, send)
            return
        await self.app(scope, receive, _Turned(send, scope["path"], table) if table else send)


def asked(scope: Scope) -> tuple[Scope, Table | None]:
    """Return the request without the parameters that only this module understands, and the table to make of the answer,
    or None. Raises Refusal."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    formats = [value for name, value in query if name == "format"]
    accepts = MEDIA_TYPE in Headers(scope=scope).get("accept", "")
    if not formats and not accepts:
        return scope, None
    if any(value not in FORMATS for value in formats):
        raise Refusal(422, "invalid_parameters", f"format: is one of {', '.join(FORMATS)}")
    rest = urlencode([(name, value) for name, value in query if name != "format"])
    # The tag of a document is not that of its table: what a program has of the one is no answer to who wants the other.
    headers = [(name, value) for name, value in scope["headers"] if name != b"if-none-match"]
    inner = {**scope, "query_string": rest.encode(), "headers": headers}
    if formats and formats[-1] == "json":
        return {**inner, "headers": scope["headers"]}, None
    table = _table_at(scope)
    if table is None and formats:
        raise Refusal(422, "no_table", f"{scope['path']} is no list, so it cannot be had as CSV; leave 'format' out.")
    return (inner, table) if table else (scope, None)


def _table_at(scope: Scope) -> Table | None:
    path = scope["path"]
    for route in Request(scope).app.routes:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()) and route.path_regex.match(path):
            model = route.response_model
            return table_of(model) if isinstance(model, type) and issubclass(model, BaseModel) else None
    return None


class _Turned:
    """Takes an answer and sends it on: a document as CSV, everything else as it is."""

    def __init__(self, send: Send, path: str, table: Table) -> None:
        self._send, self._table = send, table
        self._name = path.removeprefix("/v1/").replace("/", "-")
        self._begun: Message | None = None
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = MutableHeaders(scope=message).get("content-type", "")
            if message["status"] == 200 and kind == "application/json":
                self._begun = message
                return
        if self._begun is None:
            await self._send(message)
            return
        self._body.append(message.get("body", b""))
        if not message.get("more_body", False):
            # In a thread: a long list takes seconds, in which nobody else would be answered.
            document, content = await run_in_threadpool(self._turn, b"".join(self._body))
            await self._send_table(self._begun, document, content)

    def _turn(self, body: bytes) -> tuple[Mapping[str, Any], bytes]:
        document = json.loads(body)
        return document, csv_of(document, self._table).encode()

    async def _send_table(self, begun: Message, document: Mapping[str, Any], content: bytes) -> None:
        headers = MutableHeaders(scope=begun)
        del headers["etag"]
        headers["content-type"] = f"{MEDIA_TYPE}; charset=utf-8; header=present"
        headers["content-length"] = str(len(content))
        headers["content-disposition"] = f'attachment; filename="gpuyard-{self._name}.csv"'
        headers.add_vary_header("Accept")
        for link in document.get(LINKS, ()):
            headers.append("link", f'<{link["href"]}&format=csv>; rel="{link["rel"]}"')
        await self._send(begun)
        await self._send({"type": "http.response.body", "body": content})
