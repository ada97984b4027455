"""The lab's own HTTP client: JSON in and out, errors with what was asked, and never through a proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gpuyard_lab.errors import LabError
from gpuyard_lab.http import Unreachable, answers, call


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size).decode()
        self.answer(201, {"body": body, "type": self.headers["Content-Type"], "token": self.headers["X-Auth-Token"]})

    def do_GET(self) -> None:
        self.answer(int(self.path.strip("/") or 200), {"said": "this"})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("X-Subject-Token", "new")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_json_goes_out_and_comes_back(url: str) -> None:
    answer = call("POST", url, {"a": 1}, token="t")  # noqa: S106
    assert (answer.status, answer.token) == (201, "new")
    assert answer.body == {"body": '{"a": 1}', "type": "application/json", "token": "t"}
    assert call("POST", url, b"raw").body["type"] == "application/octet-stream"


def test_a_refusal_names_the_request_and_quotes_the_answer(url: str) -> None:
    with pytest.raises(LabError, match=rf'GET {url}/409 was answered with 409: {{"said": "this"}}'):
        call("GET", f"{url}/409")


def test_nobody_there() -> None:
    with pytest.raises(Unreachable, match=r"GET http://127.0.0.1:9/"):
        call("GET", "http://127.0.0.1:9/")
    assert not answers("http://127.0.0.1:9/")


def test_whether_an_api_answers(url: str) -> None:
    assert answers(f"{url}/200")
    assert not answers(f"{url}/503")
