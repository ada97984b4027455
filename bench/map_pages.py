"""The map with thousands of GPUs: how soon a change is seen when 500 pages are open, what it sends, what a page weighs.

python -m bench.map_pages

The portal and the 499 pages that only listen run in processes of their own; the 500th is headless Chromium. Last: how
long it takes until all of them have the whole map after the portal was restarted. Measured on 2026-11-22 with 8,000
GPUs: 3.1 MB to each, 6.3 s of the portal's processor for all 499 together; 54 s until the last one had it, on a machine
whose two cores had eight times as much to do as they could. It is left as it is: restarts are rare, and pages show what
they had until then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from time import time
from typing import IO
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright
from tests.support.browser import CHROMIUM

from bench.cloud import peak_mib
from bench.table import Measured, finish, leave_out, show, sized
from bench.webhooks import worked
from gpuyard.dashboard.live_map import WHOLE
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.runtime.control_loops import Driver
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, server_of, url_of

GPUS_OF_HOST = 8
MANY, FEWER = sized((8000, 2000), (160, 80))
"""GPUs: of the site with many viewers, and of the page that is weighed."""
LISTENERS = sized(499, 9)
ROUNDS = sized(10, 2)
PIXEL_LIMIT_S, MEMORY_LIMIT_MIB, PAGE_LIMIT_KB, PAINT_LIMIT_S = 2, 400, 200, 1
RETURN_LIMIT_S = 30
"""Of a page that was open: until then it shows what it had, and says so."""
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
ASKED = "changed"
TIMING = """new Promise((done) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  const sent = performance.getEntries().reduce((sum, one) => sum + (one.transferSize || 0), 0);
  if (paint) done({paint: paint.startTime, sent});
}).observe({type: "paint", buffered: true}))"""


def main() -> None:
    if not CHROMIUM.exists():
        leave_out("the map's pages", f"{CHROMIUM} is not there")
        return
    with sync_playwright() as driven:
        browser = driven.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        many_viewers(browser.new_page())
        weight(browser.new_page())
        browser.close()
    after_restart()


# What is measured.


def many_viewers(page: Page, gpus: int = MANY) -> None:
    with portal(gpus) as (url, process), listeners(url) as others:
        page.goto(url)
        page.locator("#link[data-link=live]").wait_for()
        seconds, last, sent = [], [], []
        for number in range(ROUNDS):
            gpu = f"gpu-host-{number:04d}-0000:10:00.0"
            began = time()
            change(process, number * GPUS_OF_HOST)
            page.locator(f"[id='{gpu}'].is-{GpuState.HELD.value}").wait_for()
            seconds.append(time() - began)
            report = json.loads(others.readline())
            last.append(report["at"] - began)
            sent.append(report["bytes"] / 1000)
        memory = peak_mib(process.pid)
        whole = page.evaluate("document.documentElement.outerHTML.length") / 1000
    show(
        f"A GPU of {gpus} changes while {LISTENERS + 1} pages are open",
        [
            Measured("until Chromium shows it", "s", seconds, PIXEL_LIMIT_S),
            Measured("until the last page has it", "s", last, PIXEL_LIMIT_S),
            Measured("sent to each page", "kB", sent),
            Measured("the whole page, for comparison", "kB", [whole]),
            Measured("memory of the portal, peak", "MiB", [memory], MEMORY_LIMIT_MIB),
        ],
    )


def after_restart(gpus: int = MANY) -> None:
    """Each open page connects again, to a process that does not know what it shows, and gets the whole map once."""
    with portal(gpus) as (url, process):
        before = worked(process.pid)
        with _process("returning", url) as pages:
            assert pages.stdout is not None
            report = json.loads(pages.stdout.readline())
        work = worked(process.pid) - before
    show(
        f"{LISTENERS} pages of {gpus} GPUs come back at once after the portal's restart",
        [
            Measured("until half of them have the map", "s", [report["half"]]),
            Measured("until the last has it", "s", [report["last"]], RETURN_LIMIT_S),
            Measured("processor of the portal for all", "s", [work], RETURN_LIMIT_S),
            Measured("sent to each", "kB", [report["bytes"] / 1000]),
            Measured("longest answer of /healthz meanwhile", "s", [report["other"]]),
        ],
    )


def weight(page: Page, gpus: int = FEWER) -> None:
    kilobytes, paint = [], []
    with portal(gpus) as (url, _):
        for _ in range(sized(5, 1)):
            context = page.context.browser.new_context()  # type: ignore[union-attr]  # it has one, which was launched
            fresh = context.new_page()
            fresh.goto(url, wait_until="load")
            timing = fresh.evaluate(TIMING)
            kilobytes.append(timing["sent"] / 1000)
            paint.append(timing["paint"] / 1000)
            context.close()
    show(
        f"The page of {gpus} GPUs",
        [
            Measured("sent, with styles and scripts", "kB", kilobytes, PAGE_LIMIT_KB),
            Measured("first paint", "s", paint, PAINT_LIMIT_S),
        ],
    )


# Processes.


@contextmanager
def portal(gpus: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with _process("portal", str(gpus)) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process


@contextmanager
def listeners(url: str) -> Iterator[IO[str]]:
    """A line for each change, when the last of them has it."""
    with _process("listeners", url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.stdout


def change(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.map_pages", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def serve(gpus: int) -> None:
    """Prints its URL; holds the GPU of each number that it reads."""
    inventory, statuses = InventoryCache(), world(gpus)
    inventory.publish(NOW, statuses)

    def read() -> None:
        for line in sys.stdin:
            number = int(line)
            statuses[number] = replace(statuses[number], state=GpuState.HELD, claim=None, reason=ASKED)
            inventory.publish(NOW, statuses)

    with bind("127.0.0.1", 0) as listener:
        app = create_app(
            Sources(inventory=inventory, driver=Driver(), site_name="large", gpus=[status.gpu for status in statuses]),
            ["*"],
        )
        print(url_of(listener), flush=True)
        threading.Thread(target=read, daemon=True).start()
        server_of(app).run(sockets=[listener])


def world(gpus: int) -> list[GpuStatus]:
    """Half of them claimed, a tenth booked."""
    statuses = []
    for number in range(gpus):
        host, own = divmod(number, GPUS_OF_HOST)
        gpu = Gpu(
            f"host-{host:04d}", f"0000:{0x10 + own:02x}:00.0", f"pool-{host % 5}", "NVIDIA H100 80GB HBM3", "10de:2330",
            GpuRole.LONE, "CUSTOM_GPU_H100", own, numa_node=own // 4,
        )  # fmt: skip
        if number % 2:
            since = NOW - timedelta(hours=number % 90)
            claim = Claim(
                f"{number:08x}", f"training-{number}", "ACTIVE", f"lab-{number % 50}", f"u{number % 300}", since
            )
            statuses.append(GpuStatus(gpu, GpuState.CLAIMED, "", claim))
        elif number % 10 == 0:
            statuses.append(GpuStatus(gpu, GpuState.BOOKED, "booked by ada (physics) until 2026-11-24 12:00 UTC"))
        else:
            statuses.append(GpuStatus(gpu, GpuState.FREE))
    return statuses


async def listen(url: str) -> None:
    """Prints a line when all are there, and one for each change that all have: when, and the bytes of one page."""
    port = int(url.rpartition(":")[2])
    counts: dict[int, list[int]] = {}
    ready = asyncio.Semaphore(0)
    since = (await asyncio.to_thread(_turn, url)).encode()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(b"GET /events?since=" + since + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"event: pulse")
        ready.release()
        version = 0
        while True:
            block = await reader.readuntil(b"\n\n")
            if b"event: parts" in block or f"event: {WHOLE}".encode() in block:
                version += 1
                counts.setdefault(version, []).append(len(block))
                if len(counts[version]) == LISTENERS:
                    print(json.dumps({"at": time(), "bytes": median(counts.pop(version))}), flush=True)

    tasks = [asyncio.create_task(one()) for _ in range(LISTENERS)]
    for _ in tasks:
        await ready.acquire()
    print("there", flush=True)
    await asyncio.gather(*tasks)


async def come_back(url: str) -> None:
    """Prints when half and all pages have the whole map, its bytes, and how long others waited for an answer."""
    port, began = int(url.rpartition(":")[2]), time()
    done: list[float] = []
    sizes: list[int] = []
    open_pages: list[asyncio.StreamWriter] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(b"GET /events?since=00000000-7 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while f"event: {WHOLE}".encode() not in (block := await reader.readuntil(b"\n\n"))[:200]:
            pass
        done.append(time() - began)
        sizes.append(len(block))
        open_pages.append(writer)

    async def other() -> float:
        longest = 0.0
        while len(done) < LISTENERS:
            started = time()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            await reader.read()
            writer.close()
            longest = max(longest, time() - started)
            await asyncio.sleep(0.05)
        return longest

    slowest, *_ = await asyncio.gather(other(), *(one() for _ in range(LISTENERS)))
    report = {"half": sorted(done)[LISTENERS // 2], "last": max(done), "bytes": median(sizes), "other": slowest}
    print(json.dumps(report), flush=True)


def _turn(url: str) -> str:
    """What a page says that it shows, of a feed that somebody has listened to before."""
    with urlopen(f"{url}/events") as feed:  # our own portal
        for line in feed:
            if line.startswith(b"id: "):
                return str(line[4:].decode().strip())
    raise ValueError("the feed ended")


if __name__ == "__main__":
    if sys.argv[1:2] == ["portal"]:
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["listeners"]:
        asyncio.run(listen(sys.argv[2]))
    elif sys.argv[1:2] == ["returning"]:
        asyncio.run(come_back(sys.argv[2]))
    else:
        main()
        sys.exit(finish())
