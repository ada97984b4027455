"""Xid messages of NVIDIA's driver: what each asks for.

From NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, column "immediate resolution", as
leptonai/gpud has it in components/accelerator/nvidia/xid/catalog_generated.go, October 2025). Where the catalogue
gives a workflow instead of an action, what it ends with for a GPU of a VM is written here, and why. Numbers that are
not in the table are unused, or nothing is known of them: nothing follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class XidAction(StrEnum):
    RESET = "reset of the GPU"
    MACHINE = "restart of the machine"
    APPLICATION = "restart of the application"
    IGNORE = "ignore"


_WORDS: Mapping[XidAction, Mapping[int, str]] = {
    XidAction.RESET: {
        46: "GPU stopped processing",
        48: "double bit ECC error",  # a workflow: its end is a reset
        62: "internal micro-controller halt",
        64: "row remapping or page retirement failed",
        74: "NVLink error",  # a workflow: its first step for who has the VM only
        95: "uncontained memory error",
        109: "context switch timeout",
        110: "security fault",
        119: "GSP RPC timeout",
        120: "GSP error",
        136: "link training failed",
        140: "unrecovered ECC error",
        143: "GPU initialization error",
        151: "key rotation error",  # restart of the VM, whose end resets the GPU
        155: "NVLink: software defined error",
        156: "resource retirement",
        158: "GPU fatal timeout",
    },
    XidAction.MACHINE: {
        54: "auxiliary power is not connected",  # the catalogue: look at the cables
        79: "GPU has fallen off the bus",
    },
    XidAction.APPLICATION: {
        8: "GPU stopped processing",
        11: "invalid or corrupted push buffer stream",
        13: "graphics engine exception",
        25: "invalid or illegal push buffer stream",
        31: "GPU memory page fault",
        32: "invalid or corrupted push buffer stream",
        39: "copy engine exception",
        40: "copy engine exception",
        41: "copy engine exception",
        60: "video processor exception",
        68: "video decoder exception",
        69: "graphics engine class error",
        80: "corrupted data sent to the GPU",
        86: "optical flow exception",
        94: "contained memory error",
        139: "optical flow exception",
        159: "CHI error without data",
        **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
        **dict.fromkeys((73, 142), "video encoder error"),
        **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
        **dict.fromkeys((82, *range(99, 106)), "JPEG decoder error"),
    },
    XidAction.IGNORE: {
        14: "unused",
        37: "driver firmware error",
        38: "driver firmware error",
        43: "GPU stopped processing",
        44: "graphics engine fault during context switch",
        45: "cleanup after another error",
        63: "row remapping or page retirement",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        92: "high rate of single bit ECC errors",
        93: "wear limit of the InfoROM",
        106: "test message",
        107: "test message",
        108: "NVLink remote translation error",
        121: "C2C error",
        137: "NVLink privilege error",
        141: "CUDA fast path error",
        152: "DLA error",
        153: "DLA timeout",
        154: "what another Xid asks for has changed",
        157: "resource retirement failed",
        160: "channel retirement",
        161: "channel retirement failed",
        **dict.fromkeys(
            range(144, 151), "NVLink error"
        ),  # by their subcodes; those that are fatal come with a 48 or 95
        **dict.fromkeys((171, 172), "details of a 48"),
    },
}

XIDS: Mapping[int, tuple[XidAction, str]] = {
    code: (action, words) for action, codes in _WORDS.items() for code, words in sorted(codes.items())
}
"""Number -> what it asks for, and what it says."""

SIGNAL_OF: Mapping[XidAction, str] = {
    XidAction.RESET: "xid-reset",
    XidAction.MACHINE: "xid-restart",
    XidAction.APPLICATION: "xid-application",
}
"""What is observed of an Xid; nothing of those that are ignored."""


def signal_of(code: int) -> str:
    """Code of the signal; empty when nothing follows."""
    return SIGNAL_OF.get(XIDS[code][0], "") if code in XIDS else ""


def words_of(code: int) -> str:
    """``Xid 79: GPU has fallen off the bus``."""
    return f"Xid {code}: {XIDS[code][1]}" if code in XIDS else f"Xid {code}"
