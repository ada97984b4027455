"""A server with the agent in it: the real one, on a mock of NVIDIA's library, a kernel's log and a metadata service."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.guest import agent
from tests.support.scripted_http import Asked, ScriptedAnswer, ScriptedHttp, scripted_http
from tests.virtual_hypervisor.build import need_commands, run

AGENT = Path(agent.__file__).with_name("gpuyard_agent.py")
SERVER = "6f70656e-7374-6163-6b20-677075796172"
CODE = "gye_" + "c" * 43
TOKEN = "gya_" + "t" * 43
METADATA = "/openstack/latest/meta_data.json"
UUID = "GPU-34d7319c-5b19-1e75-186d-c187099e4f{:02x}"
ADDRESS = "00000000:{:02X}:00.0"


def mock_library(folder: Path) -> Path:
    """Build it; the C compiler is installed where that can be."""
    must = os.environ.get("CI") == "true" and os.geteuid() == 0
    need_commands({"gcc": "gcc libc6-dev"}, install=must)
    library, source = folder / "libnvidia-ml.so.1", Path(__file__).with_name("mock_nvml.c")
    run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)])
    return library


def gpu(index: int, state: str = "", **numbers: int) -> str:
    """A line of the mock's file; `state`: its word in place of numbers."""
    head = f"{UUID.format(index)} {ADDRESS.format(index + 5)} "
    facts = {
        "use": 87, "used": 40 * 2**30, "total": 80 * 2**30, "temperature": 61, "power": 300500, "ecc": 0, "pending": 0,
        "failed": 0, "reasons": 0x1, "recovery": 0,
    }  # fmt: skip
    return head + (state or " ".join(str(value) for value in (facts | numbers).values()))


@dataclass
class Guest:
    """Change what it sees by its methods; the next sample has it."""

    folder: Path
    library: Path | str
    http: ScriptedHttp
    meta: dict[str, str] = field(default_factory=dict)
    """Of its server."""
    agent: subprocess.Popen[str] | None = None
    period: float = 1.0
    batch: int = 1
    more: Mapping[str, str] = field(default_factory=dict)
    """Of its environment."""

    def __post_init__(self) -> None:
        for name in ("state", "sys/bus/pci/devices"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "kmsg").touch()
        self.nvml(gpu(0))
        self.on_bus(1)
        self.http.on("GET", METADATA, lambda request: ScriptedAnswer(data={"uuid": SERVER, "meta": self.meta}))
        enrolment = {"token": TOKEN, "period": self.period, "batch": self.batch}
        self.http.on("POST", "/v1/agents/enrol", ScriptedAnswer(data=enrolment))
        self.http.on("POST", "/v1/agents/samples", ScriptedAnswer(204))

    def nvml(self, *gpus: str, driver: str = "580.95.05") -> None:
        new = self.folder / "nvml.new"
        new.write_text("\n".join([driver, *gpus]) + "\n")
        new.replace(self.folder / "nvml")

    def on_bus(self, count: int, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        devices = self.folder / "sys/bus/pci/devices"
        for number in range(64):
            device = devices / f"0000:{number + 5:02x}:00.0"
            if number < count:
                device.mkdir(exist_ok=True)
                (device / "vendor").write_text(vendor + "\n")
                (device / "class").write_text(kind + "\n")
            elif device.exists():
                for file in device.iterdir():
                    file.unlink()
                device.rmdir()

    def say(self, *lines: str) -> None:
        """In the kernel's log, as /dev/kmsg has it: ``priority,number,time,flags;text``."""
        with (self.folder / "kmsg").open("a") as log:
            log.writelines(line + "\n" for line in lines)

    def ask(self, code: str = CODE) -> None:
        self.meta["gpuyard_agent"] = f"{self.http.url} {code}"

    def environment(self) -> dict[str, str]:
        return {
            **os.environ, "GPUYARD_AGENT_METADATA": self.http.url + METADATA, "GPUYARD_AGENT_ASK": "0.2",
            "STATE_DIRECTORY": str(self.folder / "state"), "GPUYARD_AGENT_KMSG": str(self.folder / "kmsg"),
            "GPUYARD_AGENT_SYS": str(self.folder / "sys"), "GPUYARD_AGENT_NVML": str(self.library),
            "MOCK_NVML": str(self.folder / "nvml"), **self.more,
        }  # fmt: skip

    def start(self) -> None:
        command = [sys.executable, "-I", "-S", str(AGENT)]
        self.agent = subprocess.Popen(command, env=self.environment(), stderr=subprocess.PIPE, text=True)

    def stop(self) -> str:
        """What it said."""
        if self.agent is None:
            return ""
        self.agent.send_signal(signal.SIGKILL)
        output = self.agent.communicate()[1]
        self.agent = None
        return output

    def asked(self, path: str) -> Sequence[Asked]:
        return [request for request in self.http.asked if request.path == path]

    def reports(self) -> list[Any]:
        return [request.json for request in self.asked("/v1/agents/samples")]

    def until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < ends, self.http.asked[-3:]
            assert self.agent is None or self.agent.poll() is None, self.stop()
            time.sleep(0.02)

    def until_report(self, holds: Callable[[Any], bool]) -> Any:
        """The first one from now on of which it holds."""
        begins = len(self.reports())
        self.until(lambda: any(map(holds, self.reports()[begins:])))
        return next(report for report in self.reports()[begins:] if holds(report))


@contextmanager
def guest(folder: Path, library: Path | str, tls: ssl.SSLContext | None = None, **keywords: Any) -> Iterator[Guest]:
    """One that has one GPU and was not asked for anything."""
    with scripted_http(tls) as http:
        guest = Guest(folder, library, http, **keywords)
        try:
            yield guest
        finally:
            guest.stop()
