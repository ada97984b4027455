"""What a host's look means: every signal of a host, what is none, and looks that nobody can read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.health.baseline import Baseline
from gpuyard.health.host_reports import (
    MOST_BYTES,
    HostMemory,
    LookRefusedError,
    StaleLookError,
    facts_of,
    judge,
    look_of,
)
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.records import Software as Accepted
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.host import watch
from gpuyard.host.tree import LINK
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport, LogLine
from gpuyard.model.signals import SIGNALS, Source
from gpuyard.site.health_rules import SiteHealth
from tests.support.hypervisors import titan_xp
from tests.support.kernel import ModelHost

T0 = datetime(2026, 11, 22, 12, tzinfo=UTC)
AT, AUDIO = "0000:27:00.0", "0000:27:00.1"
GPU = GpuReport(
    AT,
    ids="10de:1db4",
    config="de10b41d",
    driver="vfio-pci",
    group=19,
    link=LinkReport(8.0, 16, 8.0, 16),
    power="D0",
    aer={"correctable": 3, "nonfatal": 0, "fatal": 0},
    reset_methods=("flr", "bus"),
    in_use=False,
    serial="0048b02d2db0a4c8",
)
LOOK = HostReport("gpu-1", "boot-1", 1, "2026-11-22T12:00:00Z", "6.1.0-27", "AMI 2.4", "7.2", (GPU,))
FINE = GpuHealth("gpu-1", AT, "v100", HealthState.FINE, T0)
SECONDS = 10


class Story:
    """A host that says one thing after the other, every ten seconds; what is seen of its GPU."""

    def __init__(self, gpu: GpuHealth = FINE) -> None:
        self.gpu, self.now, self.number = gpu, T0, 0
        self.memory: HostMemory | None = None

    def says(self, *gpus: GpuReport, log: tuple[LogLine, ...] = (), **changed: Any) -> list[tuple[str, str]]:
        self.number += 1
        self.now += timedelta(seconds=SECONDS)
        look = replace(LOOK, **{"number": self.number, "gpus": gpus or (GPU,), "log": log, **changed})
        observations, self.memory = judge(self.memory, look, {AT: self.gpu}, self.now)
        for observation in observations:
            assert (observation.host, observation.address, observation.seen) == ("gpu-1", AT, self.now)
            assert SIGNALS[observation.code].source is Source.HOST
        return [(observation.code, observation.evidence) for observation in observations]

    def codes(self, *gpus: GpuReport, **changed: Any) -> list[str]:
        return [code for code, _ in self.says(*gpus, **changed)]


def changed(**changes: Any) -> GpuReport:
    return replace(GPU, **changes)


def test_a_healthy_host_says_nothing_of_note() -> None:
    story = Story(replace(FINE, accepted=T0, software=Accepted("6.1.0-27", "AMI 2.4", "7.2")))
    assert [story.codes() for _ in range(30)] == [[]] * 30
    assert story.codes(boot="boot-2", number=1) == []


BAD = [
    ("missing", changed(present=False, config="", driver=""), "it is not in sysfs"),
    ("no-answer", changed(config="ffffffff", link=LinkReport(0, 0, 8, 16)), "its config space reads ffffffff"),
    ("driver", changed(driver="nouveau"), "it is with nouveau"),
    ("driver", changed(driver=""), "it is with no driver"),
    ("link-width", changed(link=LinkReport(8, 4, 8, 16)), "4 lanes of 16"),
    ("changed", changed(ids="10de:1db1"), "ids 10de:1db1, and 10de:1db4 before"),
    ("changed", changed(serial="0" * 15 + "1"), "serial number 0000000000000001, and 0048b02d2db0a4c8 before"),
    ("no-reset", changed(reset_methods=()), "none of flr, bus is there any more"),
    ("aer-fatal", changed(aer={"fatal": 1, "nonfatal": 2}), "1 fatal and 2 nonfatal AER errors more"),
    ("aer-correctable", changed(aer={"correctable": 103}), "100 correctable AER errors within an hour"),
]


@pytest.mark.parametrize(("code", "seen", "evidence"), BAD)
def test_what_is_wrong_with_a_device(code: str, seen: GpuReport, evidence: str) -> None:
    story = Story()
    assert story.says() == []
    ((signal, why),) = story.says(seen)
    assert signal == code
    assert evidence in why


def test_a_device_that_is_in_no_look_is_missing() -> None:
    assert Story().codes(changed(address="0000:a3:00.0")) == ["missing"]


FINE_LOOKS = [
    changed(driver="nvgrace-gpu-vfio-pci"),
    changed(driver="mlx5_vfio_pci"),
    changed(power="D3cold", config="", link=LinkReport(0, 0, 8, 16)),  # asleep, and nobody has it
    changed(power="D3hot", link=LinkReport(2.5, 1, 8, 16)),
    changed(link=LinkReport(2.5, 16, 8, 16)),  # nobody has it
    changed(link=LinkReport(8, 8, 0, 0)),  # nobody knows what both ends can
    changed(aer={}),
    changed(aer={"correctable": 102, "nonfatal": 0, "fatal": 0}),
    changed(aer={"correctable": 0, "nonfatal": 0, "fatal": 0}),  # found anew
    changed(serial=""),
    changed(in_use=None),
    changed(config=""),
]


@pytest.mark.parametrize("seen", FINE_LOOKS)
def test_what_is_no_sign_of_anything(seen: GpuReport) -> None:
    story = Story()
    assert story.codes() == []
    assert story.codes(seen) == []
    assert story.codes() == []


def test_a_card_that_never_had_a_reset_method_has_lost_none() -> None:
    story = Story()
    assert [story.codes(changed(reset_methods=())) for _ in range(3)] == [[]] * 3


def test_another_card_or_a_reset_that_is_gone_is_seen_across_a_reboot() -> None:
    assert [(story := Story()).codes(), story.codes(changed(ids="10de:1db1"), boot="b", number=1)] == [[], ["changed"]]
    assert [(story := Story()).codes(), story.codes(changed(reset_methods=()), boot="b", number=1)] == [
        [],
        ["no-reset"],
    ]


def test_what_lasts_is_told_once_a_minute() -> None:
    story, gone = Story(), changed(present=False)
    codes_by_look = [story.codes(gone) for _ in range(13)]
    assert [bool(codes) for codes in codes_by_look] == [number % 6 == 0 for number in range(13)]


def test_counters_of_another_boot_are_not_compared() -> None:
    story = Story()
    story.codes(changed(aer={"fatal": 0, "correctable": 0}))
    assert story.codes(changed(aer={"fatal": 7, "correctable": 500}), boot="boot-2", number=1) == []
    assert story.codes(changed(aer={"fatal": 8, "correctable": 500}), boot="boot-2", number=2) == ["aer-fatal"]


def test_correctable_errors_are_counted_by_the_hour() -> None:
    slow, quick = Story(), Story()
    assert not any(slow.codes(changed(aer={"correctable": number // 5})) for number in range(1000))  # 72 an hour
    codes_by_look = [quick.codes(changed(aer={"correctable": number})) for number in range(301)]  # 360 an hour
    assert [number for number, codes in enumerate(codes_by_look) if codes] == [100, 200, 300]


def use(story: Story, *speeds: float, in_use: bool = True) -> list[str]:
    """All that is told while the link is seen at these speeds, one look after the other."""
    codes = []
    for speed in speeds:
        codes += story.codes(changed(in_use=in_use, link=LinkReport(speed, 16, 8.0, 16)))
    return codes


def test_a_link_that_is_never_fast_since_a_server_has_the_gpu() -> None:
    story = Story()
    assert use(story, 8.0, in_use=False) == []
    assert use(story, *[2.5] * 18) == []
    assert use(story, 2.5) == ["link-speed"]


def test_a_link_that_was_fast_may_sleep_while_the_guest_does_nothing() -> None:
    story = Story()
    assert use(story, 2.5, in_use=False) == []
    assert use(story, 2.5, 8.0, *[2.5] * 500) == []
    assert use(story, 2.5, in_use=False) == []  # and the next server begins anew
    assert use(story, *[2.5] * 19) == ["link-speed"]


def test_of_a_use_that_began_unseen_nothing_is_said() -> None:
    assert use(Story(), *[2.5] * 100) == []


def test_a_power_state_that_is_stuck_is_seen_twice() -> None:
    story, stuck = Story(), changed(power="D3cold", config="", in_use=True)
    assert [story.codes(report) for report in (GPU, stuck, GPU, stuck, stuck)] == [[], [], [], [], ["power-stuck"]]
    assert Story().codes(changed(power="unknown", in_use=True)) == []


def test_a_companion_with_a_driver_of_the_host() -> None:
    story = Story()
    audio = changed(address=AUDIO, driver="snd_hda_intel")
    assert story.says(GPU, audio) == [("driver", f"{AUDIO} of the same card is with snd_hda_intel")]
    assert Story().codes(GPU, replace(audio, driver="")) == []
    assert Story().codes(GPU, replace(audio, address="0000:28:00.1")) == []


LINES = [
    ("vfio-pci 0000:27:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "kernel-log"),
    ("vfio-pci 0000:27:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Data Link", "kernel-log"),
    ("vfio-pci 0000:27:00.0: not ready 65535ms after bus reset; giving up", "kernel-log"),
    ("vfio-pci 0000:27:00.0: Unable to change power state from D3cold to D0, device inaccessible", "kernel-log"),
    ("vfio-pci 0000:27:00.0: can't change power state from D3cold to D0 (config space inaccessible)", "kernel-log"),
    ("pcieport 0000:20:01.1: pciehp: Slot(0): Link Down", "kernel-log"),
    ("pcieport 0000:20:01.1: DPC: containment event, status:0x1f01 source:0x2700", "kernel-log"),
    ("DMAR: [DMA Read NO_PASID] Request device [27:00.0] fault addr 0x9000000 [fault reason 0x06]", "iommu-fault"),
    ("vfio-pci 0000:27:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0037 address=0x7b657064]", "iommu-fault"),
    ("vfio-pci 0000:27:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", ""),
    ("vfio-pci 0000:27:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)", ""),
    ("pcieport 0000:20:01.1: AER: Corrected error received: 0000:27:00.0", ""),
    ("vfio-pci 0000:27:00.0:   device [10de:1db4] error status/mask=00000001/00002000", ""),
    ("vfio-pci 0000:27:00.0: not ready 1023ms after FLR; waiting", ""),
    ("vfio-pci 0000:27:00.0: enabling device (0000 -> 0003)", ""),
    ("vfio-pci 0000:27:00.0: vfio_ecap_init: hiding ecap 0x19@0x900", ""),
    ("vfio-pci 0000:27:00.0: reset done", ""),
    ("pcieport 0000:20:01.1: AER: enabled with IRQ 30", ""),
    ("pcieport 0000:20:01.1: PME: Signaling with IRQ 30", ""),
    ("pcieport 0000:20:01.1: DPC: error containment capabilities: Int Msg #0, RPExt- PoisonedTLP-", ""),
    ("pcieport 0000:20:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:27:00.0", "kernel-log"),
    (
        "pcieport 0000:20:01.1: AER: Multiple Uncorrectable (Fatal) error message received from 0000:27:00.0",
        "kernel-log",
    ),
    ("pcieport 0000:20:01.1: AER: device recovery failed", "kernel-log"),
]


@pytest.mark.parametrize(("text", "code"), LINES)
def test_lines_of_the_kernel(text: str, code: str) -> None:
    story = Story()
    story.says()
    assert story.says(log=(LogLine(5.0, AT, text), LogLine(6.0, "0000:a3:00.0", text))) == (
        [(code, text)] if code else []
    )


def test_a_line_is_heard_once_whoever_starts_what_anew() -> None:
    story = Story()
    old, new, newer = (LogLine(float(n), AT, f"vfio-pci {AT}: not ready; giving up {n}") for n in (1, 2, 3))
    assert story.says(log=(old,)) == [], "nobody watched then"
    assert story.says() == []
    assert story.says(log=(old, new)) == [("kernel-log", new.text)]
    assert story.memory is not None
    story.memory = HostMemory(look_of(json.dumps(story.memory.look.as_dict()).encode()))  # the portal
    assert story.says(log=(old, new)) == []
    assert story.says(log=(old, new, newer)) == [("kernel-log", newer.text)]
    story.now += timedelta(minutes=1)
    assert story.says(log=(old, new), boot="boot-2") == [("kernel-log", f"{new.text} (and 1 lines like it)")]


@pytest.mark.parametrize(("name", "value"), [("kernel", "6.1.0-28"), ("firmware", "AMI 2.5"), ("qemu", "8.2")])
def test_other_software_than_it_was_accepted_with(name: str, value: str) -> None:
    accepted = replace(FINE, accepted=T0, software=Accepted("6.1.0-27", "AMI 2.4", "7.2"))
    other: Any = {name: value}
    ((code, evidence),) = Story(accepted).says(**other)
    assert (code, evidence) == (name, f"{value}, and it was accepted with {getattr(LOOK, name)}")
    assert Story(accepted).codes(**{name: ""}) == [], "not known is not another"
    assert Story(replace(accepted, accepted=None)).codes(**{name: value}) == []
    assert Story(replace(accepted, software=Accepted())).codes(**{name: value}) == []


def test_old_looks_are_refused() -> None:
    story = Story()
    story.says(number=7)
    for stale in (7, 6, 0):
        with pytest.raises(StaleLookError, match="not newer than look 7"):
            story.says(number=stale)
    story.says(boot="boot-2", number=1)
    with pytest.raises(StaleLookError):
        story.says(boot="boot-1", number=8)
    story.says(boot="boot-2", number=2)


def test_every_signal_of_a_host_is_judged_here() -> None:
    proven = {code for code, *_ in BAD} | {code for _, code in LINES if code}
    proven |= {"link-speed", "power-stuck", "kernel", "firmware", "qemu"}
    assert proven == {code for code, signal in SIGNALS.items() if signal.source is Source.HOST}


# A host as the model of a kernel has it


def gpu_observations(
    host: ModelHost, memory: HostMemory | None, number: int
) -> tuple[set[tuple[str, str]], HostMemory]:
    before = memory.look if memory else None
    look = watch.look(host.tree, before, number=number, time="", host="gpu-1")
    gpus = {at: replace(FINE, address=at) for at in ("0000:01:00.0", "0000:02:00.0")}
    observations, memory = judge(memory, look, gpus, T0 + timedelta(minutes=number))
    return {(observation.address, observation.code) for observation in observations}, memory


def test_a_host_that_changes_under_the_watch() -> None:
    host = titan_xp()
    host.put("proc/sys/kernel/random/boot_id", "boot-1")
    host.load("vfio_pci")
    for address in host.addresses():
        if host.ids(address).startswith("10de"):
            host._set_driver(address, "vfio-pci")
    signals, memory = gpu_observations(host, None, 1)
    assert signals == set()
    host._set_driver("0000:01:00.0", "nouveau")
    signals, memory = gpu_observations(host, memory, 2)
    assert signals == {("0000:01:00.0", "driver")}
    del host.nodes["sys"]["bus"]["pci"]["devices"]["0000:02:00.0"]
    host._set_driver("0000:01:00.0", "vfio-pci")
    host._set_driver("0000:01:00.1", "snd_hda_intel")
    signals, memory = gpu_observations(host, memory, 3)
    assert signals == {("0000:02:00.0", "missing"), ("0000:01:00.0", "driver")}
    host.put("sys/bus/pci/devices/0000:02:00.0", {LINK: "../../../devices/pci0000:00/0000:02:00.0"})
    host._set_driver("0000:01:00.1", "vfio-pci")
    signals, memory = gpu_observations(host, memory, 4)
    assert signals == set()


# Looks that nobody can read

SENT = replace(LOOK, log=(LogLine(1.5, AT, "a line"),)).as_dict()


def test_what_is_sent_is_what_is_read() -> None:
    assert look_of(json.dumps(SENT).encode()) == replace(LOOK, log=(LogLine(1.5, AT, "a line"),))
    more = {**SENT, "new": {"of": "a newer host"}, "gpus": [{**SENT["gpus"][0], "temperature": 3}]}
    assert look_of(json.dumps(more).encode()).gpus == (GPU,)


def gpu_with(**changes: Any) -> dict[str, Any]:
    return {**SENT, "gpus": [{**SENT["gpus"][0], **changes}]}


WRONG: list[tuple[bytes | dict[str, Any], str]] = [
    (b"", "the body"),
    (b"[]", "the body"),
    (b"\xff\xfe", "the body"),
    (b"[" * 10_000, "the body"),
    (b'{"host": "\\ud800"}', "the body"),
    (b"{" + b" " * MOST_BYTES + b"}", "262144 bytes at most"),
    ({**SENT, "host": ""}, "host"),
    ({**SENT, "host": "x" * 300}, "host"),
    ({**SENT, "number": "1"}, "number"),
    ({**SENT, "number": True}, "number"),
    ({**SENT, "number": -1}, "number"),
    ({**SENT, "number": 10**30}, "number"),
    ({**SENT, "number": 1.5}, "number"),
    ({**SENT, "gpus": None}, "gpus"),
    ({**SENT, "gpus": [SENT["gpus"][0]] * 2}, "twice"),
    ({**SENT, "gpus": [{"address": f"0000:{n:02x}:00.0"} for n in range(256)] * 3}, "gpus"),
    ({**SENT, "log": [SENT["log"][0]] * 101}, "log"),
    ({**SENT, "log": [{**SENT["log"][0], "text": "x" * 301}]}, "text"),
    (gpu_with(address="27:00.0"), "address"),
    (gpu_with(address="0000:27:00.0\n"), "address"),
    (gpu_with(config="FFFFFFFF"), "config"),
    (gpu_with(config="ffffffff\n"), "config"),
    (gpu_with(serial="x" * 16), "serial"),
    (gpu_with(aer={str(n): n for n in range(9)}), "aer"),
    (gpu_with(aer={"fatal": -1}), "aer"),
    (gpu_with(present="yes"), "present"),
    (gpu_with(in_use=1), "in_use"),
    (gpu_with(link={"speed": -1}), "speed"),
    (json.dumps(gpu_with(link={"speed": float("nan")})).encode(), "speed"),
    (json.dumps(gpu_with(link={"speed": float("inf")})).encode(), "speed"),
    (gpu_with(reset_methods=["flr"] * 17), "reset_methods"),
]


@pytest.mark.parametrize(("body", "words"), WRONG)
def test_what_is_no_look(body: bytes | dict[str, Any], words: str) -> None:
    with pytest.raises(LookRefusedError, match=words) as raised:
        look_of(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_texts_that_a_terminal_would_act_upon_are_made_harmless() -> None:
    look = look_of(json.dumps({**gpu_with(driver="\x1b[2J", power="\u202e"), "kernel": "6.1\n<b>"}).encode())
    assert (look.gpus[0].driver, look.gpus[0].power, look.kernel) == ("\\x1b[2J", "\\u202e", "6.1\\n<b>")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = [("gpus",), ("log",), ("gpus", 0), ("gpus", 0, "link"), ("log", 0), *((key,) for key in SENT)]
PATHS += [("gpus", 0, key) for key in SENT["gpus"][0]] + [("log", 0, key) for key in SENT["log"][0]]


@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=4))
def test_mutated_looks_are_read_or_refused(changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
    """Whatever is in it: no other error, and what is read can be judged, twice."""
    sent: Any = json.loads(json.dumps(SENT))
    for path, value in changes:
        place = sent
        try:
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue
    try:
        look = look_of(json.dumps(sent).encode())
    except LookRefusedError:
        return
    first, memory = judge(None, look, {AT: FINE}, T0)
    more, memory = judge(memory, replace(look, number=look.number + 1), {AT: FINE}, T0 + timedelta(minutes=2))
    assert {observation.code for observation in (*first, *more)} <= SIGNALS.keys()
    assert all(
        len(observation.evidence) <= 500 and observation.evidence.isprintable() for observation in (*first, *more)
    )
    assert look_of(json.dumps(memory.look.as_dict(), ensure_ascii=False).encode()) == memory.look


GPUS = st.builds(
    GpuReport,
    address=st.sampled_from([AT, AUDIO]),
    present=st.booleans(),
    ids=st.sampled_from(["", "10de:1db4", "10de:1db1"]),
    config=st.sampled_from(["", "de10b41d", "ffffffff"]),
    driver=st.sampled_from(["", "vfio-pci", "nvidia"]),
    link=st.builds(LinkReport, *[st.sampled_from([0.0, 2.5, 8.0]), st.sampled_from([0, 4, 16])] * 2),
    power=st.sampled_from(["", "D0", "D3cold", "error"]),
    aer=st.dictionaries(st.sampled_from(["fatal", "correctable"]), st.integers(0, 300), max_size=2),
    reset_methods=st.sampled_from([(), ("flr",)]),
    in_use=st.sampled_from([None, True, False]),
    serial=st.sampled_from(["", "0" * 16]),
)


@given(st.lists(st.tuples(GPUS, st.sampled_from(["a", "a", "a", "b"])), max_size=12))
def test_whatever_a_host_goes_through(looks: list[tuple[GpuReport, str]]) -> None:
    """A device that is away is missing and nothing else; one that does not answer is judged by that alone."""
    memory, boots = None, ["", *(boot for _, boot in looks)]
    for number, (gpu, boot) in enumerate(looks):
        boot = f"{boot}{sum(one != other for one, other in zip(boots[1 : number + 1], boots[:number], strict=True))}"
        now = T0 + timedelta(minutes=2 * number)
        look = replace(LOOK, boot=boot, number=number, gpus=(gpu,))
        observations, memory = judge(memory, look, {AT: FINE}, now)
        codes = {observation.code for observation in observations}
        if gpu.address != AT or not gpu.present:
            assert codes == {"missing"}
        elif gpu.config == "ffffffff":
            assert codes == {"no-answer"}
        else:
            assert not codes & {"missing", "no-answer"}
            assert ("driver" in codes) == (gpu.driver != "vfio-pci")


X8 = changed(link=LinkReport(8.0, 8, 8.0, 16))
AT_X8 = Baseline(T0, "ada", GPU.serial, {"link-width": 8})


def test_what_a_gpu_was_accepted_with_is_no_signal_and_what_is_worse_is_one() -> None:
    story = Story(replace(FINE, card=GPU.serial, baseline=AT_X8))
    assert [story.codes(X8) for _ in range(30)] == [[]] * 30
    story.now += timedelta(minutes=2)
    worse = story.says(changed(link=LinkReport(8.0, 4, 8.0, 16)))
    assert worse == [("link-width", "4 lanes of 16, and it was accepted with 8")]
    assert story.says() == []


def test_what_another_card_was_accepted_with_says_nothing() -> None:
    story = Story(replace(FINE, baseline=AT_X8))
    assert "link-width" in story.codes(replace(X8, serial="0" * 15 + "1"))
    guests_name = replace(AT_X8, card="GPU-5f1c")
    assert Story(replace(FINE, baseline=guests_name)).codes(X8) == [], "another name is no other card"


def test_a_slow_slot_is_accepted_with_its_speed() -> None:
    """The rule of link-speed needs a use that was seen to begin, and three minutes of it."""
    slow = changed(link=LinkReport(8.0, 16, 16.0, 16), in_use=True)
    for baseline, codes in ((None, {"link-speed"}), (Baseline(T0, facts={"link-speed": 8.0}), set())):
        story = Story(replace(FINE, baseline=baseline))
        story.says(replace(slow, in_use=False))
        assert {code for _ in range(30) for code in story.codes(slow)} == codes
        assert story.memory is not None
        use = story.memory.uses[AT]
        assert facts_of(slow, use, use.began + timedelta(minutes=1)) == {"link-width": 16}, "it may still sleep"
        assert facts_of(slow, use, story.now) == {"link-width": 16, "link-speed": 8.0}


@pytest.mark.parametrize(
    "asleep", [changed(power="D3hot"), changed(present=False), changed(link=LinkReport(0, 0, 0, 0))]
)
def test_what_cannot_be_seen_is_no_fact(asleep: GpuReport) -> None:
    assert facts_of(asleep, None, T0) == {}


def test_thresholds_are_the_gpus_own_and_of_what_is_off_nothing_is_said() -> None:
    errors = changed(aer={"correctable": 103, "nonfatal": 0, "fatal": 0}, link=LinkReport(8.0, 8, 8.0, 16))
    narrow = {"link-width": "off"}
    for count, codes in ((101, []), (50, ["aer-correctable"])):
        rules = {"signals": narrow, "gpus": {FINE.name: {"signals": {"aer-correctable": {"threshold": count}}}}}
        verdicts = SignalVerdicts(SiteHealth.model_validate(rules))
        observations, memory = judge(None, LOOK, {AT: FINE}, T0, verdicts)
        assert observations == []
        later = T0 + timedelta(seconds=SECONDS)
        observations, _ = judge(memory, replace(LOOK, number=2, gpus=(errors,)), {AT: FINE}, later, verdicts)
        assert [observation.code for observation in observations] == codes
