"""What the watch makes of sysfs and of the kernel's log, and how it goes on whatever the portal says."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gpuyard.host import config_space, watch
from gpuyard.host.__main__ import _parser, main
from gpuyard.host.kernel_log import LONGEST, MOST_LINES, KernelLog, said_of
from gpuyard.host.portal_client import PortalAwayError, PortalRefusedError, PortalReportClient
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import FileTree, RecordedTree
from gpuyard.host.watch_loop import Qemu, Watcher, keep_watching, seconds
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport
from tests.support.mangled import Mangler, machine
from tests.support.sysfs import T4, TITAN_XP_AUDIO, V100, Sysfs
from tests.unit.host.test_scan import materialise

AER = "RxErr 0\nBadTLP 3\nTOTAL_ERR_{} {}"
HEALTHY = {
    "power_state": "D0",
    "enable": "1",
    "driver": "vfio-pci",
    "reset_method": "flr bus",
    "current_link_speed": "8.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "aer_dev_correctable": AER.format("COR", 3),
    "aer_dev_nonfatal": AER.format("NONFATAL", 0),
    "aer_dev_fatal": AER.format("FATAL", 1),
    "config": "de10b41d" + "00" * 60,
}
PORT = {"max_link_speed": "8.0 GT/s PCIe", "max_link_width": "16", "driver": "pcieport"}


def host(**changed: str) -> Sysfs:
    """A V100 with a VM below a port, an idle T4 on the root bus, and the host's own network card."""
    sysfs = Sysfs().function("20:00.0", "1022:1483", "0604", 1, **PORT)
    sysfs.function("27:00.0", V100, "0302", 19, below="20:00.0", **{**HEALTHY, **changed})
    sysfs.function("18:00.0", T4, group=3, driver="vfio-pci", enable="0", power_state="D3cold")
    sysfs.function("04:00.0", "8086:10d3", "0200", 4, driver="e1000e")
    sysfs.put("proc/sys/kernel/hostname", "gpu-1")
    sysfs.put("proc/sys/kernel/osrelease", "6.1.0-27-amd64")
    sysfs.put("proc/sys/kernel/random/boot_id", "a85a63fc-fcf4-4b16-9ba8-2d204ea0d345")
    sysfs.put("sys/class/dmi/id/bios_vendor", "American Megatrends")
    sysfs.put("sys/class/dmi/id/bios_version", "2.4")
    sysfs.put("sys/class/dmi/id/bios_date", "09/14/2021")
    return sysfs


def seen(sysfs: Sysfs, before: HostReport | None = None) -> HostReport:
    return watch.look(RecordedTree(sysfs.nodes), before, number=7, time="2026-11-22T10:00:00+00:00")


def v100(sysfs: Sysfs, before: HostReport | None = None) -> GpuReport:
    return next(gpu for gpu in seen(sysfs, before).gpus if gpu.address == "0000:27:00.0")


def test_a_look_has_the_host_and_what_it_gives_away() -> None:
    report = seen(host())
    assert (report.host, report.kernel, report.firmware) == (
        "gpu-1",
        "6.1.0-27-amd64",
        "American Megatrends 2.4 09/14/2021",
    )
    assert report.boot == "a85a63fc-fcf4-4b16-9ba8-2d204ea0d345"
    assert [gpu.address for gpu in report.gpus] == ["0000:18:00.0", "0000:27:00.0"]
    assert report.gpus[1] == GpuReport(
        "0000:27:00.0",
        ids=V100,
        config="de10b41d",
        driver="vfio-pci",
        group=19,
        link=LinkReport(8.0, 16, 8.0, 16),
        power="D0",
        aer={"correctable": 3, "nonfatal": 0, "fatal": 1},
        reset_methods=("flr", "bus"),
        in_use=True,
    )
    assert json.loads(json.dumps(report.as_dict()))["gpus"][1]["link"]["max_speed"] == 8.0


def test_what_sleeps_deeply_is_woken_by_one_read_only() -> None:
    asleep = host(power_state="D3cold", enable="0")
    first = seen(asleep)
    second = seen(asleep, first)
    configs = [v100(asleep).config, v100(asleep, first).config, v100(asleep, second).config]
    assert configs == ["de10b41d", "", ""]
    assert v100(asleep, seen(host())).config == "de10b41d", "it has fallen asleep since"
    assert v100(host(power_state="D3cold"), first).config == "de10b41d", "what a VM has is awake"


def test_what_the_kernel_takes_for_asleep_may_be_dead() -> None:
    dead = host(power_state="D3cold", enable="0", config="ff" * 64)
    before = seen(host())
    for _ in range(3):
        before = seen(dead, before)
        assert v100(dead, before).config == "ffffffff"


def test_what_fell_off_the_bus_reads_ones_and_its_link_is_not_known() -> None:
    gone = v100(host(config="ff" * 64, current_link_speed="Unknown", current_link_width="63"))
    assert (gone.config, gone.link, gone.serial) == ("ffffffff", LinkReport(0.0, 0, 8.0, 16), "")


def test_of_one_end_nobody_knows_what_both_can() -> None:
    sysfs = Sysfs().function("27:00.0", V100, "0302", 19, **HEALTHY)
    assert v100(sysfs).link == LinkReport(8.0, 16, 0.0, 0)


def test_a_function_that_is_gone_is_told_as_gone() -> None:
    sysfs = host()
    before = seen(sysfs)
    del sysfs.nodes["sys"]["bus"]["pci"]["devices"]["0000:27:00.0"]
    assert v100(sysfs, before) == GpuReport("0000:27:00.0", present=False, ids=V100)
    sysfs.put("etc/gpuyard/passthrough", f"# by gpuyard\n0000:27:00.0 {V100} vfio-pci\nnonsense\nx y z\n")
    assert v100(sysfs) == GpuReport("0000:27:00.0", present=False, ids=V100), "a watch that has just been started"


def test_companions_are_watched_once_they_are_with_vfio() -> None:
    sysfs = host().function("27:00.1", TITAN_XP_AUDIO, "0403", 19, driver="mlx5_vfio_pci")
    assert "0000:27:00.1" in [gpu.address for gpu in seen(sysfs).gpus]


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", None])
def test_with_another_driver_nobody_knows_who_uses_it(driver: str | None) -> None:
    sysfs = host()
    del sysfs.nodes["sys"]["devices"]["pci0000:00"]["0000:20:00.0"]["0000:27:00.0"]["driver"]
    if driver:
        sysfs.function("27:00.0", V100, below="20:00.0", driver=driver)
    assert (v100(sysfs).driver, v100(sysfs).in_use) == (driver or "", None)


def with_serial(low: int, high: int, at: int = 0x148, before: int = 0x100) -> bytes:
    """A configuration space with a chain of two extended capabilities."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0, 0x1DB410DE)
    struct.pack_into("<I", config, before, 0x0001 | 1 << 16 | at << 20)
    struct.pack_into("<III", config, at, 0x0003 | 1 << 16, low, high)
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "serial"),
    [
        (with_serial(0x2DB0A4C8, 0x48B02D), "0048b02d2db0a4c8"),
        (with_serial(0, 0), ""),
        (with_serial(2**32 - 1, 2**32 - 1), ""),
        (with_serial(1, 2, at=0x100), "0000000200000001"),
        (with_serial(1, 2)[:64], ""),  # what everybody may read
        (with_serial(1, 2)[:0x150], ""),
        (with_serial(1, 2, at=0x100)[:256] + struct.pack("<I", 0x0001 | 0x100 << 20) * 960, ""),  # a loop
        (b"\xff" * 4096, ""),
    ],
)
def test_the_serial_number_of_a_card(config: bytes, serial: str, tmp_path: Path) -> None:
    assert config_space.serial_number(config_space.within(config)) == serial
    folder = tmp_path / "sys/bus/pci/devices/0000:27:00.0"
    folder.mkdir(parents=True)
    (folder / "config").write_bytes(config)
    assert config_space.serial_number(config_space.of(FileTree(str(tmp_path)), "0000:27:00.0")) == serial
    sysfs = host(config=config.hex())
    assert v100(sysfs).serial == (serial if config[:4] != b"\xff" * 4 else "")


def test_odd_trees_are_answered() -> None:
    """Whatever sysfs holds: an answer that can be sent, of bounded size, and again one to the look before."""
    sysfs = machine().function("28:00.0", V100, "0302", 20, below="00:01.0", **HEALTHY)
    sysfs.put("etc/gpuyard/passthrough", f"0000:27:00.0 {V100} vfio-pci\n0000:28:00.0 {V100} vfio-pci\n")
    for path in (watch.BOOT_ID, f"{watch.DMI}/bios_vendor", f"{watch.DMI}/bios_version"):
        sysfs.put(path, "some text")
    mangler = Mangler(sysfs.nodes, 20261122)
    before: HostReport | None = None
    for number in range(500):
        tree = RecordedTree(mangler.tree())
        report = watch.look(tree, before, number=number, time="", log=said_of(RECORDS[0][0].encode(), {}))
        text = json.dumps(report.as_dict())
        assert len(text) < 4000 * (len(report.gpus) + 1)
        assert all(value.isprintable() for value in (report.host, report.boot, report.kernel, report.firmware))
        assert before is None or {gpu.address for gpu in before.gpus} <= {gpu.address for gpu in report.gpus}
        watch.names(tree, [gpu.address for gpu in report.gpus])
        before = report if number % 10 else None


# The kernel's log

RECORDS = [
    (
        "4,1200,5140900,-;vfio-pci 0000:27:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)\n SUBSYSTEM=pci\n",
        ["0000:27:00.0"],
    ),
    ("3,1201,5140901,-;DMAR: [DMA Read NO_PASID] Request device [27:00.0] fault addr 0x9000000", ["0000:27:00.0"]),
    (
        "3,1,5,c;AMD-Vi: Event logged [IO_PAGE_FAULT device=27:00.0 domain=0x001d address=0x637c000]",
        ["0000:27:00.0"],
    ),
    ("6,1,5,-;pcieport 0000:20:00.0: pciehp: Slot(0): Link Down", ["0000:27:00.0"]),  # the port above it
    ("4,1,5,-;pcieport 0000:20:00.0: AER: Corrected error received: 0000:27:00.0", ["0000:27:00.0"]),
    ("6,1,5,-;e1000e 0000:04:00.0 eno1: NIC Link is Down", []),
    ("6,1,5,-;x 10000:27:00.0: another domain, and 0000:27:00.01, a0000:27:00.0", []),
    ("14,1,5,-;vfio-pci 0000:27:00.0: PCIe Bus Error, says a program", []),
    ("no record 0000:27:00.0", []),
    ("6,1,5,-;" + "0000:27:00.0 " * 600, ["0000:27:00.0"]),
]


@pytest.mark.parametrize(("record", "addresses"), RECORDS)
def test_lines_that_name_a_device(record: str, addresses: list[str]) -> None:
    tree = RecordedTree(host().nodes)
    names = watch.names(tree, watch.watched(tree))
    assert names == {"0000:20:00.0": "0000:27:00.0", "0000:27:00.0": "0000:27:00.0", "0000:18:00.0": "0000:18:00.0"}
    lines = said_of(record.encode(), names)
    assert [line.address for line in lines] == addresses
    assert all(len(line.text) <= LONGEST and line.text.isprintable() for line in lines)


def test_a_port_above_two_cards_is_not_about_one() -> None:
    sysfs = host().function("28:00.0", V100, below="20:00.0")
    assert "0000:20:00.0" not in watch.names(RecordedTree(sysfs.nodes), ["0000:27:00.0", "0000:28:00.0"])


def test_records_are_read_once_and_the_newest_are_kept() -> None:
    records = [f"3,{n},{n}000000,-;vfio-pci 0000:27:00.0: not ready {n}".encode() for n in range(MOST_LINES + 5)]
    waiting: list[bytes | None] = [*records[:3], b"", records[3], None, *records[4:], None, None]
    log = KernelLog(lambda: waiting.pop(0))
    assert [line.time for line in log.lines({"0000:27:00.0": "0000:27:00.0"})] == [0, 1, 2, 3]
    lines = log.lines({"0000:27:00.0": "0000:27:00.0"})
    assert [line.time for line in lines] == [*range(5, MOST_LINES + 5)]
    assert log.lines({}) == ()


def test_lines_wait_until_they_have_arrived() -> None:
    waiting = [RECORDS[0][0].encode(), None, RECORDS[1][0].encode(), None, None, None]
    watcher = Watcher(RecordedTree(host().nodes), KernelLog(lambda: waiting.pop(0)), lambda: "7.2", "gpu-one")
    assert [len(watcher.look(n, "").log) for n in (1, 2)] == [1, 2]
    watcher.arrived()
    assert watcher.look(3, "").log == ()


# The portal


@contextmanager
def answering(answer: Callable[[str, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, text = answer(self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def token(tmp_path: Path) -> str:
    (tmp_path / "token").write_text("gyh_secret\n")
    return str(tmp_path / "token")


def test_a_look_is_sent_with_the_token(tmp_path: Path, token: str, capsys: pytest.CaptureFixture[str]) -> None:
    materialise(host().nodes, tmp_path / "root")
    got: list[Any] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        got.extend([path, headers["Authorization"], json.loads(body)])
        return 204, {}, b""

    with answering(answer) as url:
        words = ["--root", str(tmp_path / "root"), "watch", "--once", "--url", url, "--token-file", token]
        assert main([*words, "--host", "gpu/1"]) == 0
    assert got[:2] == ["/v1/hosts/gpu%2F1/looks", "Bearer gyh_secret"]
    assert [gpu["address"] for gpu in got[2]["gpus"]] == ["0000:18:00.0", "0000:27:00.0"]
    assert main(["--root", str(tmp_path / "root"), "watch", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["look"]["gpus"] == got[2]["gpus"]


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "words"),
    [
        (
            401,
            {},
            b'{"detail": "The token is not known\\u001b[2J"}',
            PortalRefusedError,
            "answers 401: The token is not",
        ),
        (403, {}, b"<html>", PortalRefusedError, "answers 403: Forbidden"),
        (302, {"Location": "http://127.0.0.1:9/"}, b"", PortalRefusedError, "answers 302"),
        (503, {"Retry-After": "7"}, b"{}", PortalAwayError, "answers 503"),
        (429, {"Retry-After": "9" * 50}, b"{}", PortalAwayError, "answers 429"),
        (200, {}, b"[]", PortalAwayError, "no portal of gpuyard's"),
        (200, {}, b"[" * 100_000, PortalAwayError, "no portal of gpuyard's"),
        (200, {}, b" " * 300_000 + b"{}", PortalAwayError, "no portal of gpuyard's"),
    ],
)
def test_what_the_portal_may_answer(
    token: str, status: int, headers: dict[str, str], body: bytes, error: type[GpuyardError], words: str
) -> None:
    with answering(lambda *_: (status, headers, body)) as url, pytest.raises(error, match=words) as raised:
        PortalReportClient(url, token).post("/v1/x", {})
    assert "gyh_secret" not in str(raised.value)
    assert str(raised.value).isprintable()
    if isinstance(raised.value, PortalAwayError):
        assert raised.value.wait == (7 if headers.get("Retry-After") == "7" else 0)


def test_a_portal_that_is_not_there(token: str) -> None:
    with pytest.raises(PortalAwayError, match="Connection refused"):
        PortalReportClient("http://127.0.0.1:9", token).post("/v1/x", {})


@pytest.mark.parametrize("url", ["", "gpus.example.org", "http://gpus.example.org", "ftp://x", "https://x?y=z"])
def test_addresses_that_are_refused(url: str, token: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        PortalReportClient(url, token)


@pytest.mark.parametrize("content", [b"", b"two words", b"\x00", "gyh_ä".encode(), None])
def test_a_file_without_a_token(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        PortalReportClient("http://127.0.0.1:9", str(path)).post("/v1/x", {})


class Ended(BaseException):
    pass


def waits(outcomes: list[GpuyardError | None], capsys: pytest.CaptureFixture[str]) -> tuple[list[float], str]:
    """The waits between sends that come out like this, and what was said of them."""
    slept: list[float] = []

    def send() -> None:
        if not outcomes:
            raise Ended
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    with pytest.raises(Ended):
        keep_watching(send, 10, slept.append, clock=lambda: 0.0, chance=lambda: 1.0)
    return slept, capsys.readouterr().err


def test_waits_grow_while_the_portal_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    away = [PortalAwayError("it is away") for _ in range(20)]
    slept, output = waits([None, *away, None, PortalAwayError("busy", 200)], capsys)
    assert slept == [10, 20, 40, 80, 160, *[300] * 16, 10, 200]
    assert output.count("it is away") == 1
    assert "takes it again" in output


def test_who_is_refused_asks_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    slept, _ = waits([PortalRefusedError("no"), UsageError("no file"), PortalRefusedError("no")], capsys)
    assert slept == [40, 40, 300]


@pytest.mark.parametrize(("text", "value"), [("10s", 10), ("2 min", 120), ("1.5", 1.5), ("3600", 3600)])
def test_periods(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "0.5s", "2h", "99999s", "-1", "s", "1e3"])
def test_periods_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--every"):
        seconds(text)


def test_qemu_is_asked_once_where_no_package_tells(tmp_path: Path) -> None:
    sysfs = Sysfs()
    sysfs.put("usr/bin/qemu-system-x86_64", "")
    times = iter(range(0, 10_000, 500))
    qemu = Qemu(RecordedTree(sysfs.nodes), ask=False, clock=lambda: next(times))
    assert qemu.version() == ""
    sysfs.put(
        "var/lib/dpkg/status",
        "Package: qemu-system-x86\nStatus: install ok installed\nVersion: 1:7.2+dfsg-7+deb12u7\n\n",
    )
    assert [qemu.version() for _ in range(2)] == ["", "7.2"]


def test_without_a_pci_bus_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sys").mkdir()
    assert main(["--root", str(tmp_path), "watch", "--once", "--json"]) == 2
    assert f"{DEVICES} is empty" in capsys.readouterr().err
    materialise(host().nodes, tmp_path)
    assert main(["--root", str(tmp_path), "watch", "--json"]) == 2
    assert main(["--root", str(tmp_path), "watch"]) == 2
    assert "--url URL" in capsys.readouterr().err


# The unit


def unit(verb: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([verb, "--unit", "--url", "https://gpus.example.org", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", ["watch", "scrub"])
def test_the_unit_starts_this_very_command(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(verb, "--host", "gpu-1", "--ca-file", "/etc/ssl/portal.pem", capsys=capsys)
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    words = line.split()
    assert words[:4] == ["ExecStart=/usr/bin/python3", "-IB", "/usr/local/lib/gpuyard/gpuyard-host.pyz", verb]
    parsed = _parser().parse_args(words[3:])
    assert (parsed.url, parsed.host) == ("https://gpus.example.org", "gpu-1")
    assert (parsed.ca_file, parsed.token_file) == ("/etc/ssl/portal.pem", "${CREDENTIALS_DIRECTORY}/token")
    assert f"LoadCredential=token:/etc/gpuyard/{verb}.token" in text.splitlines()


def test_the_unit_of_the_watch_looks_as_often_as_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert " --every 30s\n" in unit("watch", "--every", "30s", capsys=capsys)


@pytest.mark.parametrize("verb", ["watch", "scrub"])
def test_a_unit_takes_no_words_that_systemd_would_read(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--host", "a b"], ["--host", "%n"], ["--host", "x\nUser=root"], ["--host", "$HOME"]):
        assert main([verb, "--unit", "--url", "https://gpus.example.org", *words]) == 2
    assert main([verb, "--unit"]) == 2
    assert main([verb, "--unit", "--url", "http://gpus.example.org"]) == 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
@pytest.mark.parametrize(("verb", "most"), [("watch", 20), ("scrub", 80)])
def test_the_unit_may_do_little(verb: str, most: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"gpuyard-{verb}.service"
    path.write_text(unit(verb, capsys=capsys).replace("/usr/bin/python3", sys.executable))
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UNKNOWN" not in done.stdout
