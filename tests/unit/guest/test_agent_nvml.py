"""What the agent believes of NVIDIA's library, held against NVIDIA's own binding of it.

pynvml of nvidia-ml-py is generated from `nvml.h`. Both read the mock here, so that it is as true as NVIDIA's binding
can tell without a driver.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard.guest.agent import gpuyard_agent
from gpuyard.guest.agent.gpuyard_agent import HARDWARE, RECOVERY_ACTION, NvmlField, NvmlMemory, NvmlPci, NvmlUse
from tests.support.guests import gpu, mock_library

pynvml: Any = importlib.import_module("pynvml")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NvmlUse, pynvml.c_nvmlUtilization_t),
        (NvmlMemory, pynvml.c_nvmlMemory_t),
        (NvmlPci, pynvml.nvmlPciInfo_t),
        (NvmlField, pynvml.c_nvmlFieldValue_t),
    ],
)
def test_structures_are_laid_out_as_nvidias(ours: Any, theirs: Any) -> None:
    places = [
        [(getattr(structure, name).offset, getattr(structure, name).size) for name, *_ in structure._fields_]
        for structure in (ours, theirs)
    ]
    if ours is NvmlField:  # a union of eight bytes there; the number is in its first half
        assert theirs._fields_[-1][1].uiVal.offset == 0
        offset, size = places[1].pop()
        places[1] += [(offset, size // 2), (offset + size // 2, size // 2)]
    assert places[0] == places[1]
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)


def test_numbers_are_nvidias() -> None:
    assert RECOVERY_ACTION == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    reasons = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert sum(getattr(pynvml, f"nvmlClocksThrottleReason{reason}", 0) for reason in reasons) == HARDWARE
    assert pynvml.NVML_TEMPERATURE_GPU == 0
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC) == (1, 0)
    assert (pynvml.NVML_SUCCESS, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT) == (0, 1)


def test_functions_are_nvidias() -> None:
    called = set(re.findall(r'_call\(\s*"(nvml\w+)"', inspect.getsource(gpuyard_agent)))
    assert "nvmlDeviceGetFieldValues" in called
    provided = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', inspect.getsource(pynvml)))
    assert called - provided == {"nvmlInit_v2"}, "of nvml.h; the binding begins with nvmlInitWithFlags"


BY_PYNVML = """
import json, pynvml as n
n.nvmlInit()
rows = []
for index in range(n.nvmlDeviceGetCount()):
    one = n.nvmlDeviceGetHandleByIndex(index)
    memory, rows_ = n.nvmlDeviceGetMemoryInfo(one), n.nvmlDeviceGetRemappedRows(one)
    (recovery,) = n.nvmlDeviceGetFieldValues(one, [n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    assert recovery.nvmlReturn == 0
    rows.append([n.nvmlDeviceGetUUID(one), n.nvmlDeviceGetPciInfo(one).busId.lower(), [
        n.nvmlDeviceGetUtilizationRates(one).gpu, memory.used * 100 // memory.total,
        n.nvmlDeviceGetTemperature(one, n.NVML_TEMPERATURE_GPU), n.nvmlDeviceGetPowerUsage(one) // 1000,
        n.nvmlDeviceGetTotalEccErrors(one, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC),
        2 if rows_[3] else 1 if rows_[2] else 0,
        n.nvmlDeviceGetCurrentClocksThrottleReasons(one) & n.nvmlClocksThrottleReasonHwSlowdown,
        recovery.value.uiVal,
    ]])
print(json.dumps([n.nvmlSystemGetDriverVersion(), rows]))
"""
BY_AGENT = """
import json, sys
from gpuyard.guest.agent.gpuyard_agent import Nvml
seen = Nvml(sys.argv[1]).seen()
print(json.dumps([seen.driver, [[card.uuid, card.address, card.row] for card in seen.cards]]))
"""


def test_the_agent_reads_what_nvidias_binding_reads(tmp_path: Path) -> None:
    library = mock_library(tmp_path)
    gpus = [gpu(0), gpu(1, use=3, ecc=7, pending=1, reasons=0x8), gpu(2, failed=1, recovery=2, temperature=90)]
    (tmp_path / "nvml").write_text("\n".join(["580.95.05", *gpus]) + "\n")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "MOCK_NVML": str(tmp_path / "nvml")}
    readings = [
        json.loads(subprocess.check_output([sys.executable, "-c", code, str(library)], env=environment, text=True))
        for code in (BY_PYNVML, BY_AGENT)
    ]
    assert readings[0] == readings[1]
    assert readings[0][1][1][2] == [3, 50, 61, 300, 7, 1, 8, 0]
