"""The table of Xid messages of NVIDIA's driver: the action that each asks for, and the source of that.

Most rows are the column "immediate resolution" of NVIDIA's catalogue. Where that gives a workflow or nothing, the
action is decided here, and the row's source says so. Numbers that are not in the table are unused, or NVIDIA gives no
advice but to contact support: nothing follows from them alone. Newer drivers say themselves what a GPU needs, whatever
the Xid was: by Xid 154 and by a field of NVML (the recovery actions below).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class XidAction(StrEnum):
    REPLACE = "replacement of the card"
    RESET = "reset of the GPU"
    MACHINE = "restart of the machine"
    APPLICATION = "restart of the application"
    IGNORE = "ignore"


@dataclass(frozen=True)
class XidRow:
    """An Xid with its meaning and the action that it asks for."""

    code: int
    action: XidAction
    words: str
    source: str


CATALOGUE = (
    "NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), as of 29 October 2025 in "
    "leptonai/gpud, components/accelerator/nvidia/xid/catalog_generated.go"
)
"""Column "immediate resolution". RESTART_BM is MACHINE here, and RESTART_VM ends with a reset of the GPU."""
WORKFLOW = "the catalogue gives a workflow, a check or an update; what that ends with for a GPU of a VM is decided here"
SUPPORT = (
    "the catalogue says no more than to contact support; NVENC of nverror.h (NVIDIA/open-gpu-kernel-modules 595.45.04) "
    "is the video encoder, which is taken for what the other engines are"
)
DETAILS = "the catalogue's description: more about a 48; it says nothing of what to do"
LINKS = "the catalogue's table of NVLink events: those that are fatal ask for a reset, but for two rows of Xid 149"
DRIVER = "the message names the recovery action: gpu.c of NVIDIA/open-gpu-kernel-modules 595.45.04"
MEMORY = (
    "NVIDIA GPU Memory Error Management, RMA Policy (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt): a failed row "
    "remapping is a criterion for replacement; the catalogue asks for a reset"
)


def _rows(action: XidAction, source: str, words: Mapping[int, str]) -> Iterable[XidRow]:
    return (XidRow(code, action, text, source) for code, text in words.items())


_ROWS = (
    *_rows(XidAction.REPLACE, MEMORY, {64: "row remapping or page retirement failed"}),
    *_rows(XidAction.RESET, CATALOGUE, {
        46: "GPU stopped processing",
        62: "internal micro-controller halt",
        95: "uncontained memory error",
        109: "context switch timeout",
        110: "security fault",
        119: "GSP RPC timeout",
        120: "GSP error",
        136: "link training failed",
        140: "unrecovered ECC error",
        143: "GPU initialization error",
        151: "key rotation error",
        155: "NVLink: software defined error",
        156: "resource retirement",
        158: "GPU fatal timeout",
    }),
    *_rows(XidAction.RESET, WORKFLOW, {48: "double bit ECC error", 74: "NVLink error"}),
    *_rows(XidAction.RESET, LINKS, dict.fromkeys(range(144, 151), "NVLink error")),
    *_rows(XidAction.MACHINE, CATALOGUE, {79: "GPU has fallen off the bus"}),
    *_rows(XidAction.MACHINE, WORKFLOW, {54: "auxiliary power is not connected"}),
    *_rows(XidAction.APPLICATION, CATALOGUE, {
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
        **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
        **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
        **dict.fromkeys((82, *range(99, 106)), "JPEG decoder error"),
    }),
    *_rows(XidAction.APPLICATION, WORKFLOW, {159: "CHI error without data"}),
    *_rows(XidAction.APPLICATION, SUPPORT, dict.fromkeys((73, 142), "video encoder error")),
    *_rows(XidAction.IGNORE, CATALOGUE, {
        14: "unused",
        37: "driver firmware error",
        38: "driver firmware error",
        43: "GPU stopped processing",
        44: "graphics engine fault during context switch",
        63: "row remapping or page retirement",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        92: "high rate of single bit ECC errors",
        93: "wear of the InfoROM",
        106: "test message",
        107: "test message",
        108: "unused",
        121: "C2C error",
        137: "NVLink privilege error",
        141: "CUDA fast path error",
        152: "DLA error",
        153: "DLA timeout",
        157: "resource retirement failed",
        160: "channel retirement",
        161: "channel retirement failed",
    }),
    *_rows(XidAction.IGNORE, WORKFLOW, {45: "cleanup after another error", 78: "a vGPU did not start"}),
    *_rows(XidAction.IGNORE, DRIVER, {154: "what the driver asks for has changed"}),
    *_rows(XidAction.IGNORE, DETAILS, dict.fromkeys((171, 172), "details of a 48")),
)  # fmt: skip

XIDS: Mapping[int, XidRow] = {row.code: row for row in sorted(_ROWS, key=lambda row: row.code)}

SIGNAL_OF: Mapping[XidAction, str] = {
    XidAction.REPLACE: "xid-replace",
    XidAction.RESET: "xid-reset",
    XidAction.MACHINE: "xid-restart",
    XidAction.APPLICATION: "xid-application",
}
"""The signal that is observed for each action; those that are ignored have none."""

RECOVERY_CHANGED = 154
NVLINK = range(144, 151)
NONFATAL, FATAL = 0, 1
"""Details of an Xid about NVLink."""
FATAL_ALONE = frozenset({149, 150})
"""Those about NVLink whose fatal events come without an Xid 48 in the same GPU."""
DRIVER_RESET, DRIVER_REBOOT = "driver-reset", "driver-reboot"
RECOVERY_NAMES: Mapping[int, str] = {
    1: "a reset of the GPU",
    2: "a restart of the node",
    3: "an end of all peer-to-peer traffic",
    4: "a drain and a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a restart of the system",
}
"""NVML's recovery actions: nvmlDeviceGetFieldValues, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, as of pynvml in nvidia-ml-py
13.615.71; up to 5 they are NV2080_CTRL_GPU_RECOVERY_ACTION of ctrl2080gpu.h, which Xid 154 has."""
RESTARTS = frozenset({2, 7})


def recovery_signal(action: int | None) -> str:
    """Return the code of a recovery action's signal; empty for none. An unknown action is taken for a reset."""
    if not action:
        return ""
    return DRIVER_REBOOT if action in RESTARTS else DRIVER_RESET


def signal_of(code: int, detail: int | None = None) -> str:
    """Return the code of the signal; empty when nothing follows. `detail`: of Xid 154 the recovery action, of those
    about NVLink whether it is fatal; None when the message does not say, or the agent is of an older release."""
    if code == RECOVERY_CHANGED:
        return recovery_signal(detail)
    if code in NVLINK and (detail == NONFATAL or (detail is None and code not in FATAL_ALONE)):
        return ""
    return SIGNAL_OF.get(XIDS[code].action, "") if code in XIDS else ""


def words_of(code: int, detail: int | None = None) -> str:
    """Describe an Xid: ``Xid 79: GPU has fallen off the bus``."""
    words = f"Xid {code}: {XIDS[code].words}" if code in XIDS else f"Xid {code}"
    if code == RECOVERY_CHANGED and detail:
        return f"{words}: {RECOVERY_NAMES.get(detail, 'something new')}"
    return f"{words}, fatal" if code in NVLINK and detail == FATAL else words
