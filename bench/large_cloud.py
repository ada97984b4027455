"""A cloud of many hosts that answers as the lab's OpenStack did (bench/recordings/cloud.json, which bench.record_cloud
wrote), over real HTTP in a process of its own. Every row is a recorded one with other names and ids."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import NAMESPACE_URL, uuid5

from bench.record_cloud import RECORDING
from bench.table import sized
from gpuyard.model.gpu import Gpu, GpuRole

PAGE = 1000
PROJECTS, USERS = sized((50, 300), (10, 40))
CLOUDS = """clouds:
  large:
    auth: {{auth_url: "http://127.0.0.1:{port}/v3", username: a, password: b, project_name: c,
      user_domain_name: Default, project_domain_name: Default}}
    region_name: RegionOne
"""
Json = dict[str, Any]


class LargeCloud:
    """The answers, as bytes that are made once each. `servers`: how many; each has one GPU."""

    def __init__(self, gpus: Sequence[Gpu], servers: int, port: int) -> None:
        text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", RECORDING.read_text())
        self._recorded: dict[str, Json] = {re.sub(r"/[0-9a-f-]{32,36}", "/ID", a["asked"]): a for a in json.loads(text)}
        self._gpus = gpus
        alone = [gpu for gpu in gpus if gpu.role is not GpuRole.PEER]
        self._taken = dict(zip(map(_id, range(servers)), alone[:: max(1, len(alone) // servers)], strict=False))
        self._hosts = list(dict.fromkeys(gpu.host for gpu in gpus))
        self._lists = {
            "/v2.1/servers/detail": self._servers(),
            "/v2.1/os-services": self._of_hosts("/v2.1/os-services", "services", "host"),
            "/v2.1/os-hypervisors/detail": self._of_hosts(
                "/v2.1/os-hypervisors/detail", "hypervisors", "hypervisor_hostname"
            ),
        }
        self._made: dict[str, tuple[int, Json, bytes]] = {}

    def answer(self, method: str, url: str) -> tuple[int, Json, bytes]:
        """Status, headers and body."""
        key = f"{method} {url}"
        if key not in self._made:
            parts = urlsplit(url)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            recorded = self._recorded[re.sub(r"/[0-9a-f-]{32,36}", "/ID", f"{method} {parts.path}")]
            body = self._body(parts.path, query, recorded["body"])
            self._made[key] = recorded["status"], recorded["headers"], json.dumps(body).encode()
        return self._made[key]

    def _body(self, path: str, query: Json, recorded: Json) -> Json:
        last = path.rpartition("/")[2]
        if path in self._lists:
            key, rows = self._lists[path]
            start = next((n + 1 for n, row in enumerate(rows) if row["id"] == query.get("marker")), 0)
            page = rows[start : start + PAGE] if "limit" in query else rows
            link = {"rel": "next", "href": f"http://127.0.0.1{path}?marker={page[-1]['id']}"} if page else {}
            return {key: page, f"{key}_links": [link] if "limit" in query and len(page) == PAGE else []}
        if path == "/resource_providers":
            return {
                "resource_providers": self._providers(query.get("resources", ""), recorded["resource_providers"][0])
            }
        if path.startswith("/allocations/"):
            gpu = self._taken[last]
            row = next(iter(recorded["allocations"].values()))
            return {**recorded, "allocations": {_id(gpu.provider_name): {**row, "resources": {gpu.resource_class: 1}}}}
        if path.startswith(("/v3/users/", "/v3/projects/")):
            kind = path.split("/")[2].rstrip("s")
            return {kind: {**recorded[kind], "id": last, "name": f"{kind}-{last[:8]}"}}
        return recorded

    def _providers(self, resources: str, row: Json) -> list[Json]:
        """All; those that have some of a class left; hosts, when it is CPU and RAM that is asked for."""
        names = {gpu.provider_name: gpu.host for gpu in self._gpus}
        if resources.startswith("CUSTOM_"):
            taken = {gpu.provider_name for gpu in self._taken.values()}
            resource_class = resources.partition(":")[0]
            matches = (
                {g.provider_name: g.host for g in self._gpus if g.resource_class == resource_class}
                if resource_class
                else {}
            )
            return [_provider(row, name, host) for name, host in matches.items() if name not in taken]
        roots = [_provider(row, host, None) for host in self._hosts]
        return roots if resources else roots + [_provider(row, name, host) for name, host in names.items()]

    def _servers(self) -> tuple[str, list[Json]]:
        (row,) = self._recorded["GET /v2.1/servers/detail"]["body"]["servers"]
        return "servers", [
            {
                **row,
                "id": id,
                "name": f"server-{number}",
                "tenant_id": _id(f"project {number % PROJECTS}").replace("-", ""),
                "user_id": _id(f"user {number % USERS}").replace("-", ""),
                "OS-EXT-SRV-ATTR:host": gpu.host,
            }
            for number, (id, gpu) in enumerate(self._taken.items())
        ]

    def _of_hosts(self, path: str, key: str, name: str) -> tuple[str, list[Json]]:
        row = self._recorded[f"GET {path}"]["body"][key][0]
        made = []
        for host in self._hosts:
            service = {"service": {**row["service"], "host": host}} if "service" in row else {}
            made.append({**row, "id": _id(host), name: host, **service})
        return key, made


def _id(what: object) -> str:
    return str(uuid5(NAMESPACE_URL, str(what)))


def _provider(row: Json, name: str, host: str | None) -> Json:
    """The row of a host, or of a device below one."""
    own = _id(name)
    links = [{**link, "href": link["href"].replace(row["uuid"], own)} for link in row["links"]]
    root = _id(host) if host else own
    return {**row, "uuid": own, "name": name, "links": links, "root_provider_uuid": root,
            "parent_provider_uuid": _id(host) if host else None}  # fmt: skip


@contextmanager
def large_cloud(gpus: Sequence[Gpu], servers: int, folder: Path) -> Iterator[Path]:
    """The path of a clouds.yaml whose cloud is ``large``; it answers until the block ends."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(gpus, servers, theirs), daemon=True)
    process.start()
    try:
        path = folder / "clouds.yaml"
        path.write_text(CLOUDS.format(port=ours.recv()))
        yield path
    finally:
        process.terminate()
        process.join()


def _serve(gpus: Sequence[Gpu], servers: int, ready: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, body = cloud.answer(self.command, self.path)
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - the names that the library calls

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        cloud = LargeCloud(gpus, servers, server.server_address[1])
        for path in ("/resource_providers", "/v2.1/os-services?binary=nova-compute"):
            cloud.answer("GET", path)  # so that making them is not measured
        ready.send(server.server_address[1])
        server.serve_forever()
