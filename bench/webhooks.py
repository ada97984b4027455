"""Webhooks as GitHub delivers them: how many a second are on the disk before they are answered, and how soon.

python -m bench.webhooks

The portal runs in a process of its own, as it is served, on SQLite (synchronous=FULL) and on PostgreSQL (with fsync).
Deliveries of 30 KB arrive at a steady pace whatever the answers take, so that a stall counts for all who came in it.
The peer is the same portal with a transaction for each webhook.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from tests.support.postgres import server
from tests.support.runner_portals import HOOK, job_hook, runner_portal, signed

from bench.table import Measured, finish, show, sized
from gpuyard.runners.web import group_commit
from gpuyard.server.server import bind, server_of, url_of

PER_SECOND, SECONDS = sized((1000, 10.0), (100, 1.0))
FLOOD_S = sized(3.0, 0.5)
LIMIT_MS = 20.0
PADDING = 30_000
CONNECTIONS = 40
WARM_UP = sized(500, 50)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        measure("SQLite", f"sqlite:///{folder}/shared.db", f"sqlite:///{folder}/single.db")
        with server(Path(folder), durable=True) as postgres:
            measure("PostgreSQL", postgres.database(), postgres.database())


def measure(name: str, url: str, peer: str) -> None:
    with portal(url, group_commit.MOST) as (port, pid):
        asyncio.run(load(port, PER_SECOND, WARM_UP / PER_SECOND))
        before = worked(pid)
        answers = asyncio.run(load(port, PER_SECOND, SECONDS))
        work = (worked(pid) - before) * 1000 / len(answers)
        most = asyncio.run(flood(port, FLOOD_S))
    with portal(peer, 1) as (port, _):
        alone = asyncio.run(flood(port, FLOOD_S))
    cuts = quantiles(answers, n=100)
    rows = [
        Measured(f"answer, {PER_SECOND} a second: p50", "ms", [cuts[49]]),
        Measured("the same: p99", "ms", [cuts[98]], LIMIT_MS),
        Measured("the same: work of the portal for each", "ms", [work]),
        Measured("kept a second, as many as there can be", "/s", [most], PER_SECOND, least=True),
        Measured("the same, a transaction for each", "/s", [alone]),
    ]
    show(f"Webhooks on {name}: {len(answers)} of {PADDING // 1000} KB, {CONNECTIONS} connections", rows)


@contextmanager
def portal(url: str, most: int) -> Iterator[tuple[int, int]]:
    """Port and process id of one that writes so many webhooks in one transaction."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.webhooks", url, str(most)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()


def worked(pid: int) -> float:
    """Seconds of processor time that a process has had: what else runs on the machine is not in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(url: str, most: int) -> None:
    group_commit.MOST = most
    with tempfile.TemporaryDirectory() as folder, bind("127.0.0.1", 0) as listener:
        app = runner_portal(Path(folder), url=url).app
        print(url_of(listener).rpartition(":")[2], flush=True)
        server_of(app).run(sockets=[listener])


async def load(port: int, per_second: int, seconds: float) -> list[float]:
    """Milliseconds from when each delivery was due to its answer."""
    due: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
    prepared = requests(int(per_second * seconds))
    answers: list[float] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (delivery := await due.get()) is not None:
            moment, request = delivery
            await deliver(reader, writer, request)
            answers.append((perf_counter() - moment) * 1000)
        writer.close()

    workers = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    began = perf_counter()
    for number, request in enumerate(prepared):
        moment = began + number / per_second
        if (early := moment - perf_counter()) > 0:
            await asyncio.sleep(early)
        due.put_nowait((moment, request))
    for _ in workers:
        due.put_nowait(None)
    await asyncio.gather(*workers)
    return answers


async def flood(port: int, seconds: float) -> float:
    """Deliveries a second when every connection sends the next one as soon as it can."""
    prepared = iter(requests(int(4 * PER_SECOND * seconds)))
    ends = perf_counter() + seconds
    done = 0

    async def connection() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in prepared:
            await deliver(reader, writer, request)
            done += 1
            if perf_counter() > ends:
                break
        writer.close()

    began = perf_counter()
    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return done / (perf_counter() - began)


def requests(count: int) -> list[bytes]:
    """Ready to send, so that signing them takes no time from the portal."""
    body = job_hook(padding=PADDING)
    return [_request(body) for _ in range(count)]


def _request(body: bytes) -> bytes:
    fields = {"Host": "127.0.0.1", "User-Agent": "GitHub-Hookshot/0", "Content-Length": len(body), **signed(body)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {HOOK} HTTP/1.1\r\n{head}\r\n".encode() + body


async def deliver(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 202"):
        raise RuntimeError(head.decode())
    await reader.readexactly(len(b"kept\n"))


if __name__ == "__main__":
    if sys.argv[1:]:
        serve(sys.argv[1], int(sys.argv[2]))
    else:
        main()
        sys.exit(finish())
