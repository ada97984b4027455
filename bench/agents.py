"""Agents in guests: what one takes of its server and of the wire, and what eight thousand take of the portal.

python -m bench.agents

The agent is the real one, on a mock of NVIDIA's library, over TLS: one sample a second for a while, of which the
numbers for one in 10 s follow. Bytes are all that it sends, the TLS handshakes among them. The portal runs in a process
of its own, on SQLite; reports of 8,000 servers come at a steady pace, in batches of six samples as agents send them,
and, beside it, one by one. What is counted is the processor time of the portal's process.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

from tests.support.agent_portals import BOOT, agent_portal
from tests.support.certificates import certificate
from tests.support.guests import gpu, guest, mock_library

from bench.table import Measured, finish, show, sized
from bench.webhooks import worked
from gpuyard.health.controllers.agent_service import AGENT, BATCH
from gpuyard.health.tokens import new_token
from gpuyard.model.gpu import Gpu, GpuRole
from gpuyard.server.server import bind, server_of, url_of

SERVERS, EVERY, SECONDS = sized((8000, 10, 20.0), (80, 1, 1.0))
CONNECTIONS = 40
LOOK = sized(40.0, 8.0)
"""Seconds that one agent is watched."""


def main() -> None:
    measure_one()
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder, portal(folder) as (port, pid, tokens):
        asyncio.run(load(port, tokens, 1, SERVERS / EVERY, float(EVERY), 1))  # each is heard of once
        batched = loaded(port, pid, tokens, BATCH, 10_000)
        single = loaded(port, pid, tokens, 1, 1_000_000)
    limit = 30.0
    rows = [
        Measured(
            f"of a core, {SERVERS // EVERY // BATCH} reports a second of {BATCH} samples", "%", [batched[0]], limit
        ),
        Measured("the same: work for each report", "us", [batched[1]]),
        Measured(f"of a core, {SERVERS // EVERY} reports a second of one sample", "%", [single[0]]),
        Measured("the same: work for each report", "us", [single[1]]),
    ]
    show(f"The portal under {SERVERS} agents, one sample each in {EVERY} s", rows)


def measure_one() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as name:
        folder = Path(name)
        library = mock_library(folder)
        rows = []
        for count in (1, 8):
            with (
                relayed(folder) as (wrap, relay),
                guest(folder / str(count), library, batch=BATCH, tls=wrap) as machine,
            ):
                machine.more = {"SSL_CERT_FILE": str(folder / "ca.pem")}
                machine.nvml(*(gpu(index) for index in range(count)))
                machine.on_bus(count)
                relay.to = int(machine.http.url.rpartition(":")[2])
                machine.meta["gpuyard_agent"] = f"https://127.0.0.1:{relay.port} gye_{'c' * 64}"
                machine.start()
                assert machine.agent is not None
                machine.until(lambda machine=machine: len(machine.reports()) >= 2)  # type: ignore[misc]
                pid, began = machine.agent.pid, perf_counter()
                before, sent, reports = worked(pid), relay.sent, len(machine.reports())
                sleep(LOOK)
                samples = sum(len(report["samples"]) for report in machine.reports()[reports:])
                work, seconds = worked(pid) - before, perf_counter() - began
                memory = sum(map(resident, (pid, *children(pid))))
                rows += [
                    Measured(f"{count} GPUs: memory of both processes", "MiB", [memory], 20.0),
                    Measured("of a core at one sample in 10 s", "%", [work / seconds * 100 / 10], 0.5),
                    Measured("sent for a sample of a GPU", "B", [(relay.sent - sent) / samples / count], 300.0),
                ]
    show("One agent, over TLS", rows)


def children(pid: int) -> list[int]:
    """Of the agent: the process that asks the driver."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(pid: int) -> float:
    """MiB; what processes share counts in parts."""
    return int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0]) / 1024


class Relay:
    """Between the agent and the portal: counts the bytes that the agent sends."""

    def __init__(self) -> None:
        self.port = self.to = self.sent = 0

    async def serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", self.to)

        async def forth() -> None:
            while data := await reader.read(65536):
                self.sent += len(data)
                on.write(data)
            on.close()

        async def answer() -> None:
            while data := await back.read(65536):
                writer.write(data)
            writer.close()

        await asyncio.gather(forth(), answer(), return_exceptions=True)


@contextmanager
def relayed(folder: Path) -> Iterator[tuple[ssl.SSLContext, Relay]]:
    """A context for a server of https whose authority is ``ca.pem`` in the folder, and the relay before it."""
    context = certificate(folder, "127.0.0.1").context()
    relay, ready = Relay(), threading.Event()
    threading.Thread(target=lambda: asyncio.run(relay.serve(ready)), daemon=True).start()
    ready.wait()
    yield context, relay


def gpus() -> list[Gpu]:
    """A GPU for each server."""
    places = [(f"gpu-{n // 8}", f"0000:{n % 8 + 1:02x}:00.0") for n in range(SERVERS)]
    return [Gpu(host, at, "t4", "Tesla T4", "10de:1eb8", GpuRole.LONE, "CUSTOM_GPU_T4", 1) for host, at in places]


@contextmanager
def portal(folder: str) -> Iterator[tuple[int, int, list[str]]]:
    """Port, process id, and the tokens of its servers."""
    process = subprocess.Popen([sys.executable, "-m", "bench.agents", folder], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield port, process.pid, (Path(folder) / "tokens").read_text().split()
    finally:
        process.terminate()
        process.wait()


def serve(folder: str) -> None:
    all_gpus = gpus()
    made = agent_portal(Path(folder), gpus=all_gpus)
    made.cloud.has = {f"s{n}": (gpu,) for n, gpu in enumerate(all_gpus)}
    tokens = [new_token(AGENT) for _ in all_gpus]
    made.service._tokens |= {digest: f"s{number}" for number, (_, digest) in enumerate(tokens)}
    (Path(folder) / "tokens").write_text("\n".join(text for text, _ in tokens))
    snapshot = made.cloud.snapshot()
    made.service.seen = lambda: snapshot
    with bind("127.0.0.1", 0) as listener:
        server = server_of(made.app)
        threading.Thread(target=keep, args=(made.service.flush,), daemon=True).start()
        print(url_of(listener).rpartition(":")[2], flush=True)
        server.run(sockets=[listener])


def keep(flush: object) -> None:
    while True:
        sleep(10)
        assert callable(flush)
        flush()  # thirty times as often as it is done


def loaded(port: int, pid: int, tokens: list[str], batch: int, first: int) -> tuple[float, float]:
    """Percent of a core that the portal takes, and microseconds for each report."""
    before, began = worked(pid), perf_counter()
    count = asyncio.run(load(port, tokens, batch, SERVERS / EVERY / batch, SECONDS, first))
    work, seconds = worked(pid) - before, perf_counter() - began
    return work / seconds * 100, work / count * 1e6


async def load(port: int, tokens: list[str], batch: int, per_second: float, seconds: float, first: int) -> int:
    """Send at a steady pace whatever the answers take; how many were sent."""
    due: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (request := await due.get()) is not None:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 204"):
                raise RuntimeError(head.decode())
        writer.close()

    workers = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    count, began = int(per_second * seconds), perf_counter()
    for number in range(count):
        if (early := began + number / per_second - perf_counter()) > 0:
            await asyncio.sleep(early)
        server, turn = number % len(tokens), number // len(tokens)
        samples: list[object] = [
            [first + turn * batch * 100 + n * 100, [[87, 50, 61, 300, 0, 0, 0]]] for n in range(batch)
        ]
        body = one_report(samples, server)
        head = f"POST /v1/agents/samples HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {tokens[server]}\r\n"
        due.put_nowait(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    for _ in workers:
        due.put_nowait(None)
    await asyncio.gather(*workers)
    return count


def one_report(samples: list[object], server: int) -> bytes:
    report = {
        "v": 1, "boot": BOOT, "driver": "580.95.05", "seen": 1,
        "cards": [f"GPU-34d7319c-5b19-1e75-186d-{server:012d}"], "samples": samples,
    }  # fmt: skip
    return json.dumps(report, separators=(",", ":")).encode()


if __name__ == "__main__":
    if sys.argv[1:]:
        serve(sys.argv[1])
    else:
        main()
        sys.exit(finish())
