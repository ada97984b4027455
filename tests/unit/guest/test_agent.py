"""The agent in the guest: the real program, on a mock of NVIDIA's library that is built here."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.guest.agent import gpuyard_agent
from gpuyard.guest.agent.gpuyard_agent import CardsSeen, SmallHttp, Smi, XidLog, amd_cards, asked, on_bus, smi_card
from gpuyard.health.samples import Xid, report_of
from tests.support.guests import CODE, SERVER, TOKEN, UUID, Guest, gpu, guest, mock_library
from tests.support.scripted_http import ScriptedAnswer, scripted_http

XID = "3,{number},4711,-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid='<unknown>', name=<unknown>, and so on"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mock_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def server(tmp_path: Path, library: Path) -> Iterator[Guest]:
    with guest(tmp_path, library) as guest_server:
        yield guest_server


def test_does_nothing_until_it_is_asked_and_enrols_once(server: Guest) -> None:
    server.start()
    server.until(lambda: len(server.asked("/openstack/latest/meta_data.json")) >= 3)
    assert {request.path for request in server.http.asked} == {"/openstack/latest/meta_data.json"}
    server.ask()
    report = server.until_report(lambda told: True)
    (enrolled,) = server.asked("/v1/agents/enrol")
    assert enrolled.json == {"server": SERVER, "code": CODE}
    assert server.asked("/v1/agents/samples")[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert report["cards"] == [UUID.format(0)]
    assert report["driver"] == "580.95.05"
    assert report["seen"] == 1
    assert report["samples"][-1][1] == [[87, 50, 61, 300, 0, 0, 0, 0]]
    assert set(report) == {"v", "boot", "driver", "seen", "cards", "samples"}, "what users are told that it sends"
    (token,) = (server.folder / "state").iterdir()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    # Started anew it goes on with what it has, whether the word in the metadata has changed by then or not.
    output = server.stop()
    assert TOKEN not in output
    assert CODE not in output
    last = server.reports()[-1]["samples"][-1][0]
    for word in (server.meta["gpuyard_agent"], "on: see there"):
        server.meta["gpuyard_agent"] = word
        server.start()
        server.until_report(partial(is_later, last))
        last = server.reports()[-1]["samples"][-1][0]
        server.stop()
    assert len(server.asked("/v1/agents/enrol")) == 1


def is_later(last: int, report: Any) -> bool:
    return bool(report["samples"][0][0] > last)


def test_stops_when_its_metadata_says_off_and_when_its_token_is_void(server: Guest) -> None:
    server.ask()
    server.start()
    server.until_report(lambda told: True)
    server.meta["gpuyard_agent"] = "off"
    looks = len(server.asked("/openstack/latest/meta_data.json"))
    server.until(lambda: len(server.asked("/openstack/latest/meta_data.json")) > looks + 1)
    sent = len(server.reports())
    looks = len(server.asked("/openstack/latest/meta_data.json"))
    server.until(lambda: len(server.asked("/openstack/latest/meta_data.json")) > looks + 3)
    assert len(server.reports()) == sent

    server.http.on("POST", "/v1/agents/samples", ScriptedAnswer(401))
    server.ask()
    server.until(lambda: len(server.reports()) > sent)
    server.until(lambda: not list((server.folder / "state").iterdir()))
    server.http.on("POST", "/v1/agents/enrol", ScriptedAnswer(409, {"detail": "spent"}))
    refused = len(server.asked("/v1/agents/enrol"))
    server.until(lambda: len(server.asked("/v1/agents/enrol")) > refused)


def test_a_token_on_the_disk_of_another_server_is_not_used(server: Guest) -> None:
    other = {"server": "other", "url": server.http.url, "code": CODE, "token": TOKEN, "period": 1, "batch": 1}
    (server.folder / "state/token.json").write_text(json.dumps(other))
    server.meta["gpuyard_agent"] = "on: see there"
    server.start()
    server.until(lambda: not list((server.folder / "state").iterdir()))
    server.until(lambda: len(server.asked("/openstack/latest/meta_data.json")) > 2)
    assert server.reports() == []


def test_tells_at_once_what_goes_wrong(tmp_path: Path, library: Path) -> None:
    # With an hour's samples in a report, what comes within seconds is there because it is urgent.
    with guest(tmp_path, library, batch=60) as server:
        server.nvml(gpu(0), gpu(1, ecc=1))
        server.on_bus(2)
        server.ask()
        server.start()
        first = server.until_report(lambda told: len(told["cards"]) == 2)
        assert [row[4] for row in first["samples"][-1][1]] == [0, 1]

        server.nvml(gpu(0), gpu(1, ecc=2, failed=1))
        report = server.until_report(lambda told: told["samples"][-1][1][1][4] == 2)
        assert report["samples"][-1][1][1][5] == 2

        server.say(XID.format(number=7, bus=6, code=79), "14,8,0,-;NVRM: Xid (PCI:0000:06:00): 48, a program says so")
        server.nvml(gpu(0), gpu(1, "lost"))
        report = server.until_report(lambda told: "xids" in told)
        assert report["xids"] == [[7, UUID.format(1), 79, None]]
        assert report["cards"] == [UUID.format(0), UUID.format(1)]
        assert report["samples"][-1][1][1] is None
        assert report["samples"][-1][1][0] == [87, 50, 61, 300, 0, 0, 0, 0]

        server.on_bus(1)
        assert server.until_report(lambda told: told["seen"] == 1)["cards"][1] == UUID.format(1)


def test_a_report_that_was_not_taken_is_sent_again_with_all_that_it_had(server: Guest) -> None:
    server.http.on("POST", "/v1/agents/samples", ScriptedAnswer(503), ScriptedAnswer(503), ScriptedAnswer(204))
    server.say(XID.format(number=1, bus=5, code=94))
    server.ask()
    server.start()
    server.until(lambda: len(server.reports()) >= 3)
    first, second, third = server.reports()[:3]
    assert first["xids"] == second["xids"] == third["xids"] == [[1, UUID.format(0), 94, None]]
    assert third["samples"][: len(first["samples"])] == first["samples"]
    server.until_report(lambda told: "xids" not in told)


def test_an_xid_is_sent_again_when_the_portal_has_just_not_seen_a_gpu_of_its_server(server: Guest) -> None:
    """As below a resize, or when the last look at the cloud is older than the server. What it did meanwhile is not."""
    server.http.on("POST", "/v1/agents/samples", ScriptedAnswer(409, {"code": "no_gpus"}), ScriptedAnswer(204))
    server.say(XID.format(number=1, bus=5, code=79))
    server.ask()
    server.start()
    server.until(lambda: len(server.reports()) >= 2)
    first, second = server.reports()[:2]
    assert first["xids"] == second["xids"] == [[1, UUID.format(0), 79, None]]
    assert is_later(first["samples"][-1][0], second)
    server.until_report(lambda told: "xids" not in told)


@pytest.mark.parametrize("state", ["none", "no library", "handleless", "old"])
def test_knows_little_where_there_is_little(server: Guest, state: str) -> None:
    if state == "none":
        server.nvml(driver="none")
    elif state == "no library":
        server.library = "libnowhere.so"
    else:
        server.nvml(gpu(0), gpu(1, f"{state} 55"))
    server.ask()
    server.start()
    report = server.until_report(lambda told: True)
    rows: dict[str, list[Any]] = {"none": [], "no library": [], "handleless": [[87, 50, 61, 300, 0, 0, 0, 0]]}
    rows["old"] = [*rows["handleless"], [None, None, 55, *[None] * 5]]
    assert report["samples"][-1][1] == rows[state]
    assert report["seen"] == 1


def test_a_driver_that_is_loaded_later_is_found(server: Guest) -> None:
    server.nvml(driver="none")
    server.ask()
    server.start()
    server.until_report(lambda told: told["cards"] == [])
    server.nvml(gpu(0))
    assert server.until_report(lambda told: told["cards"] != [])["driver"] == "580.95.05"


def test_what_nvidia_smi_says_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{UUID.format(0)}, 00000000:05:00.0, 87, 40960, 81920, 61, 300.52, 3, 0x0000000000000048, 580.95.05"
    old = f"{UUID.format(1)}, 00000000:06:00.0, [N/A], 0, 0, 41, [Not Supported], [N/A], [N/A], 580.95.05"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\ncat <<'END'\n{line}\n{old}\nnonsense\nEND\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    now = [0.0]
    smi_now = Smi(lambda: now[0])
    observed = smi_now.seen()
    assert observed is not None
    assert observed.driver == "580.95.05"
    assert [card.row for card in observed.cards] == [
        [87, 50, 61, 301, 3, None, 0x48, None],
        [None, None, 41, *[None] * 5],
    ]
    assert [card.address for card in observed.cards] == ["00000000:05:00.0", "00000000:06:00.0"]
    now[0] = 59.0
    assert smi_now.seen() is observed
    now[0] = 60.0
    smi_now.seen()
    assert (tmp_path / "asked").read_text().count("asked") == 2
    smi.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Smi().seen() is None


def test_gpus_of_amd_are_read_from_sysfs(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    files = {
        "vendor": "0x1002", "class": "0x038000", "mem_info_vram_used": "1073741824",
        "mem_info_vram_total": "4294967296", "gpu_busy_percent": "42", "unique_id": "8a2f3c",
        "hwmon/hwmon3/temp1_input": "63000", "hwmon/hwmon3/power1_average": "250000000",
    }  # fmt: skip
    for name, text in files.items():
        file = devices / "0000:05:00.0" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    for name, vendor, kind in (("0000:00:01.0", "0x1234", "0x030000"), ("0000:06:00.0", "0x1002", "0x030000")):
        (devices / name).mkdir()
        (devices / name / "vendor").write_text(vendor)
        (devices / name / "class").write_text(kind)
    (card,) = amd_cards(str(tmp_path))
    assert card == ("AMD-8a2f3c", "0000:05:00.0", [42, 25, 63, 250, *[None] * 4])
    # One without a driver is there, and QEMU's own display is no GPU.
    assert [address for address, _ in on_bus(str(tmp_path))] == ["0000:05:00.0", "0000:06:00.0"]


def test_the_log_is_read_to_its_end_and_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("".join(XID.format(number=n, bus=5, code=13) + "\n SUBSYSTEM=pci\n" for n in range(200)))
    log = XidLog(str(path))
    assert [number for number, *_ in log.xids()] == list(range(200))
    assert log.xids() == []
    with path.open("a") as file:
        file.write(XID.format(number=200, bus=5, code=79)[:30])
    assert log.xids() == []
    with path.open("a") as file:
        file.write(XID.format(number=200, bus=5, code=79)[30:] + "\n")
    assert log.xids() == [(200, "0000:05:00", 79, None)]
    assert XidLog(str(tmp_path / "none")).xids() == []


@pytest.mark.parametrize(
    ("said", "xid"),
    [
        ("(PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         ("0000:01:00", 79, None)),
        ("(PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
         ("0000:01:00", 94, None)),
        ("(PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 48, pid=9, name=a, DBE", ("0000:3b:00", 48, None)),
        ("(0000:03:00): 14, Channel 00000001", ("0000:03:00", 14, None)),
        ("(PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
         ("0009:01:00", 154, 4)),
        ("(PCI:0009:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
         ("0009:01:00", 154, 0)),
        ("(PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", ("0018:01:00", 149, 1)),
        # In columns: the first as recorded, the second in the same form
        (
            "(PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
            ("0009:01:00", 149, 1),
        ),
        ("(PCI:0009:01:00): 149, NETIR_LINK_EVT  Nonfatal  XC0 i0 Link 01 (0x021425c6)", ("0009:01:00", 149, 0)),
        ("(PCI:0018:01:00): 145, pid=1, name=a, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x1 0x2)",
         ("0018:01:00", 145, 0)),
    ],
)  # fmt: skip
def test_what_the_driver_prints_is_read(tmp_path: Path, said: str, xid: tuple[str, int, int | None]) -> None:
    """Forms: kernel_rc.c, gpu.c and kern_gpu_error_cont_ga100.c of NVIDIA/open-gpu-kernel-modules 595.45.04; the last
    four and the fourth as leptonai/gpud has them in components/accelerator/nvidia/xid/kmsg.go and kmsg_test.go."""
    (tmp_path / "kmsg").write_text(f"4,1,1000,-;NVRM: Xid {said}\n")
    assert XidLog(str(tmp_path / "kmsg")).xids() == [(1, *xid)]


def test_a_cause_is_not_pushed_out_by_what_follows_from_it(server: Guest) -> None:
    server.say(XID.format(number=1, bus=5, code=79), *(XID.format(number=n, bus=5, code=45) for n in range(2, 900)))
    server.ask()
    server.start()
    report = server.until_report(lambda told: "xids" in told)
    assert report["xids"] == [[1, UUID.format(0), 79, None], [899, UUID.format(0), 45, None]]


def test_an_xid_that_waits_stays_with_its_gpu(server: Guest) -> None:
    """Its card drops out before it was sent, and so do all the others at last."""
    server.nvml(gpu(0), gpu(1))
    server.on_bus(2)
    server.ask()
    server.start()
    server.until_report(lambda told: len(told["cards"]) == 2)
    server.http.on("POST", "/v1/agents/samples", ScriptedAnswer(503))
    server.say(XID.format(number=7, bus=5, code=79))
    server.until_report(lambda told: "xids" in told)
    server.nvml(gpu(0, "lost"), gpu(1))
    report = server.until_report(lambda told: None in told["samples"][-1][1])
    assert report["cards"] == [UUID.format(1), UUID.format(0)]
    server.nvml(driver="none")
    report = server.until_report(lambda told: told["cards"] == [])
    assert report["xids"] == [[7, UUID.format(0), 79, None]]
    assert report_of(json.dumps(report).encode()).xids == (Xid(7, UUID.format(0), 79),)


@pytest.mark.parametrize("how", ["hangs", "crashes"])
def test_a_driver_that_hangs_silences_neither_the_log_nor_the_agent(server: Guest, how: str) -> None:
    server.more = {"GPUYARD_AGENT_PATIENCE": "0.5"}
    server.ask()
    server.start()
    server.until_report(lambda told: told["cards"] == [UUID.format(0)] and "stuck" not in told)
    server.nvml(gpu(0), driver=how)
    server.say(XID.format(number=3, bus=5, code=119))
    report = server.until_report(lambda told: "stuck" in told and "xids" in told)
    assert (report["cards"], report["samples"][-1][1]) == ([UUID.format(0)], [None])
    assert report["xids"] == [[3, UUID.format(0), 119, None]]
    assert report_of(json.dumps(report).encode()).stuck
    server.until_report(lambda told: "stuck" in told and "xids" not in told)  # it goes on
    if how == "crashes":
        server.nvml(gpu(0))
        assert server.until_report(lambda told: "stuck" not in told)["samples"][-1][1][0][0] == 87


def test_what_the_driver_wants_done_is_sent_at_once(tmp_path: Path, library: Path) -> None:
    with guest(tmp_path, library, batch=60) as server:
        server.ask()
        server.start()
        server.until_report(lambda told: told["samples"][-1][1][0][7] == 0)
        server.nvml(gpu(0, recovery=4))
        server.until_report(lambda told: told["samples"][-1][1][0][7] == 4)


@given(st.binary(max_size=400))
@settings(max_examples=50)
def test_whatever_the_log_says_it_is_read(tmp_path_factory: pytest.TempPathFactory, said: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "kmsg-fuzz"
    path.write_bytes(b"3,1,1,-;NVRM: Xid (PCI:" + said + b"\n" + said)
    for number, address, code, _ in XidLog(str(path)).xids():
        assert number >= 0
        assert len(address) <= 20
        assert 0 <= code < 10000


@given(st.text(max_size=200))
@settings(max_examples=50)
def test_whatever_nvidia_smi_says_it_is_read(line: str) -> None:
    card = smi_card(line)
    assert card is None or card.uuid.startswith("GPU-")
    assert smi_card("GPU-1,5,1,1,1,inf,nan,1e999,0x,1") is not None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b'{"meta": {}}', b'{"uuid": 1, "meta": []}', b"[" * 60000, b"\xff"],
)
def test_metadata_that_is_none_is_said(body: bytes) -> None:
    with scripted_http() as http:
        http.on("GET", "/m", ScriptedAnswer(body=body))
        with pytest.raises(OSError, match="not as OpenStack's"):
            asked(SmallHttp(), http.url + "/m")


@pytest.mark.parametrize("word", ["off", "", "https://a", "ftp://a gye_x", "https://a gya_x", ["https://a", "gye_"], 7])
def test_a_word_that_asks_for_nothing_asks_for_nothing(tmp_path: Path, word: Any) -> None:
    drive = tmp_path / "meta_data.json"  # of a config drive
    drive.write_text(json.dumps({"uuid": SERVER, "meta": {"gpuyard_agent": word}}))
    assert asked(SmallHttp(), str(drive)) == (SERVER, "", "", False)


@pytest.mark.parametrize("raw", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 x\r\n\r\n", b"HTTP/1.1"])
def test_what_does_not_speak_http_is_said(raw: bytes) -> None:
    with scripted_http() as http:
        http.on("GET", "/", ScriptedAnswer(raw=lambda connection: connection.sendall(raw)))
        with pytest.raises(OSError, match="does not speak HTTP"):
            SmallHttp().ask(http.url)


def test_an_endless_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_http() as http:
        http.on("GET", "/", ScriptedAnswer(body=b"x" * 2**22))
        assert len(SmallHttp().ask(http.url).body) < 2**17


def test_the_library_need_not_be_there() -> None:
    with pytest.raises(OSError, match="libnowhere"):
        gpuyard_agent.Nvml("libnowhere.so")
    assert CardsSeen([], "").cards == []
