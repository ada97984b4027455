"""Table of the signals of a GPU's health: source, condition, judgement and remedy of each. Docs are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Mapping


class Source(str, Enum):
    """Who saw something."""

    HOST = "host"
    GUEST = "guest"
    PERSON = "person"
    JOB = "job"
    NOVA = "nova"
    SCRUB = "scrub"


class Judgement(str, Enum):
    """What one observation means."""

    NOTE = "note"
    """Written down and shown; nothing follows."""
    SUSPECT = "suspect"
    BAD = "bad"
    """Quarantine."""
    STALE = "stale"
    """Its acceptance does not hold any more."""


@dataclass(frozen=True)
class Signal:
    """One kind of observation."""

    code: str
    source: Source
    pattern: str
    """The condition, with ``{}`` where its threshold belongs."""
    judgement: Judgement
    action: str
    """What an operator does about it."""
    count: int = 0
    """Its threshold, where that is a number that a site file can change; 0: it has none."""
    lasts: timedelta = timedelta()
    """Its threshold, where that is a time that a site file can change; zero: it has none."""

    @property
    def threshold(self) -> str:
        """The condition in words, where no site file changes it."""
        return self.words(self.count, self.lasts)

    def words(self, count: int, lasts: timedelta) -> str:
        """Return the condition in words, with this threshold."""
        return self.pattern.format(count or time_words(lasts))

    @property
    def is_fixed(self) -> bool:
        """Whether no site file can overrule it, switch it off or put it on trial: without it a GPU that is not clean,
        or that failed the very checks that somebody asked for, would be given out."""
        return self.has_no_limit or self.code == "acceptance"

    @property
    def has_no_limit(self) -> bool:
        """Whether GPUs are kept back for it however many of their pool are out of use: without it the next tenant would
        get them as the last one left them."""
        return self.source is Source.SCRUB or self.code == "not-reserved"


def time_words(time: timedelta) -> str:
    """Format a time as ``15 minutes``."""
    seconds = int(time.total_seconds())
    size, unit = next((size, unit) for size, unit in UNITS if seconds % size == 0)
    return f"{seconds // size} {unit}{'' if seconds == size else 's'}"


UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


_H, _G, _N = Source.HOST, Source.GUEST, Source.NOVA
_BAD, _SUSPECT, _NOTE, _STALE = Judgement.BAD, Judgement.SUSPECT, Judgement.NOTE, Judgement.STALE

SIGNALS: Mapping[str, Signal] = {
    signal.code: signal
    for signal in (
        Signal(
            "missing", _H, "not in sysfs", _BAD,
            "Look for it with lspci; a cold boot of the host may bring it back.",
        ),
        Signal("no-answer", _H, "its config space reads 0xff", _BAD, "It fell off the bus: restart the host."),
        Signal("driver", _H, "not on vfio-pci or its variant driver", _BAD, "gpuyard host verify, then host apply."),
        Signal("changed", _H, "other ids or another serial number than before", _STALE, "Accept the new card."),
        Signal(
            "link-width", _H, "in D0, with fewer lanes than both ends can", _SUSPECT,
            "Reseat the card; look at riser and slot.",
        ),
        Signal(
            "link-speed", _H, "never as fast as both ends can in {} since a server has it", _SUSPECT,
            "Look at riser, slot and BIOS.", lasts=timedelta(minutes=3),
        ),
        Signal(
            "aer-fatal", _H, "a fatal or non-fatal AER error more", _BAD,
            "Look at the kernel's log; reseat or replace.",
        ),
        Signal("aer-correctable", _H, "{} correctable AER errors an hour", _SUSPECT, "Watch it; reseat the card.", 100),
        Signal("kernel-log", _H, "a PCIe error in the kernel's log names it", _SUSPECT, "Read the line in its record."),
        Signal(
            "iommu-fault", _H, "an IOMMU fault names it", _SUSPECT,
            "A guest's driver, or a broken card: repeat offender?",
        ),
        Signal("no-reset", _H, "it had a reset method and has none any more", _BAD, "Restart the host."),
        Signal("power-stuck", _H, "D3cold or unknown in two looks, and a server has it", _SUSPECT, "Restart the host."),
        Signal("kernel", _H, "another kernel than it was accepted with", _STALE, "Accept its GPUs again."),
        Signal("firmware", _H, "another BIOS than it was accepted with", _STALE, "Accept its GPUs again."),
        Signal("qemu", _H, "another QEMU than it was accepted with", _STALE, "Accept its GPUs again."),
        Signal(
            "xid-reset", _G, "an Xid whose remedy is a reset of the GPU", _SUSPECT,
            "It is reset when its server ends.",
        ),
        Signal("xid-restart", _G, "an Xid whose remedy is a restart of the machine", _BAD, "Restart the host."),
        Signal("xid-replace", _G, "Xid 64: a row could not be remapped or a page retired", _BAD, "Replace the card."),
        Signal(
            "driver-reset", _G, "its driver asks for a reset or a drain of it (Xid 154, NVML)", _SUSPECT,
            "It is reset when its server ends.",
        ),
        Signal(
            "driver-reboot", _G, "its driver asks for a restart of the machine (Xid 154, NVML)", _BAD,
            "Restart the host.",
        ),
        Signal(
            "driver-stuck", _G, "NVML did not answer in its guest", _NOTE,
            "An Xid of the same time says why; without one ask its owner.",
        ),
        Signal(
            "agent-silent", _G, "its server is ACTIVE, and its agent, once heard, says nothing", _NOTE,
            "Ask its owner; until then nothing is known from the guest.",
        ),
        Signal("xid-application", _G, "an Xid that the application caused", _NOTE, "None: its owner sees it."),
        Signal("ecc", _G, "an uncorrectable ECC error more", _SUSPECT, "Watch it; replace a card that does it again."),
        Signal("rows", _G, "a row remapping failed", _BAD, "Replace the card."),
        Signal(
            "guest-lost", _G, "fewer GPUs in the guest than its server has", _SUSPECT,
            "Ask its owner; look at the host.",
        ),
        Signal(
            "alarm-left", _G, "its server lost it while an alarm of its guest stood", _BAD,
            "Accept it, or look at it and release it.",
        ),
        Signal("throttled", _G, "slowed down by the hardware (heat, power brake)", _NOTE, "Look at cooling and power."),
        Signal(
            "contradiction", _G, "the UUID that was here is seen elsewhere", _NOTE,
            "A card was moved, or an agent lies.",
        ),
        Signal("reported", Source.PERSON, "somebody reported a fault", _SUSPECT, "Read the words in its record."),
        Signal("job-check", Source.JOB, "a runner's GPU check failed", _BAD, "Read the runner's log."),
        Signal(
            "gone-under", _N, "its server was ACTIVE for {}, and no process on its host had it open", _SUSPECT,
            "Restart the server.", lasts=timedelta(minutes=15),
        ),
        Signal(
            "creates-fail", _N, "{} servers in a row failed to start on it, of 2 projects or with faults that name it",
            _SUSPECT, "Read nova-compute's log there.", 3,
        ),
        Signal(
            "no-provider", _N, "Placement has not had it for {}", _BAD, "gpuyard gpu list says why.",
            lasts=timedelta(minutes=5),
        ),
        Signal(
            "not-reserved", _N, "its server is gone, and Nova does not reserve it as one_time_use of its pool demands",
            _BAD, "gpuyard site drift says what to deploy; then have it scrubbed or accepted.",
        ),
        Signal(
            "unscrubbed", _N, "another server got it without a scrub, though its pool has one_time_use", _NOTE,
            "gpuyard site drift says whether Nova reserves it; if it does, find out who released it.",
        ),
        Signal(
            "scrub-failed", Source.SCRUB, "its reset failed, or it was not clean after it", _BAD,
            "Restart the host.",
        ),
        Signal(
            "scrub-lost", Source.SCRUB, "nobody knows what came of its scrubs", _BAD,
            "Look at the host's scrub unit.",
        ),
        Signal(
            "acceptance", _G, "its acceptance failed: the checks in a server of gpuyard's own on it", _BAD,
            "Read what the checks said in its record.",
        ),
    )
}  # fmt: skip
"""Signals by code."""
