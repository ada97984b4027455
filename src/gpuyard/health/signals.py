"""Every signal of a GPU's health: from where, what counts, what it means, and what follows. Docs are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.health.records import Judgement, Source


@dataclass(frozen=True)
class Signal:
    """One kind of observation."""

    code: str
    source: Source
    threshold: str
    """When it is seen."""
    judgement: Judgement
    action: str
    """What an operator does about it."""


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
            "link-speed", _H, "never as fast as both ends can in 3 minutes since a server has it", _SUSPECT,
            "Look at riser, slot and BIOS.",
        ),
        Signal(
            "aer-fatal", _H, "a fatal or non-fatal AER error more", _BAD,
            "Look at the kernel's log; reseat or replace.",
        ),
        Signal("aer-correctable", _H, "100 correctable AER errors an hour", _SUSPECT, "Watch it; reseat the card."),
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
        Signal("xid-application", _G, "an Xid that the application caused", _NOTE, "None: its owner sees it."),
        Signal("ecc", _G, "an uncorrectable ECC error more", _SUSPECT, "Watch it; replace a card that does it again."),
        Signal("rows", _G, "a row remapping failed", _BAD, "Replace the card."),
        Signal(
            "guest-lost", _G, "fewer GPUs in the guest than its server has", _SUSPECT,
            "Ask its owner; look at the host.",
        ),
        Signal("throttled", _G, "slowed down by the hardware (heat, power brake)", _NOTE, "Look at cooling and power."),
        Signal(
            "contradiction", _G, "the UUID that was here is seen elsewhere", _NOTE,
            "A card was moved, or an agent lies.",
        ),
        Signal("reported", Source.PERSON, "somebody reported a fault", _SUSPECT, "Read the words in its record."),
        Signal("job-check", Source.JOB, "a runner's GPU check failed", _BAD, "Read the runner's log."),
        Signal(
            "gone-under", _N, "ACTIVE in Nova, and its host does not have it in use", _SUSPECT,
            "Restart the server.",
        ),
        Signal(
            "creates-fail", _N, "3 servers in a row failed to start on it", _SUSPECT,
            "Read nova-compute's log there.",
        ),
        Signal("no-provider", _N, "Placement does not have it any more", _BAD, "gpuyard gpu list says why."),
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
"""By code."""
