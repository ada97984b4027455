"""Metrics of GPUs as agents in guests see them, with the names and labels of NVIDIA's dcgm-exporter.

So dashboards can be kept. Only hosts see a GPU's address, so that takes the place of the guest's number of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.samples import ROWS_FAILED, SampleRow
from gpuyard.model.gpu import Gpu

LABELS = ["gpu", "Hostname", "modelName", "pool"]
Value = Callable[[SampleRow], float | None]


def _of(number: int | None, by: float = 1) -> float | None:
    return None if number is None else number * by


GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", "Percent of the time in which anything ran.", lambda row: row.use),
    ("DCGM_FI_DEV_FB_USED_PERCENT", "Share of the memory that is in use, 0 to 1.", lambda row: _of(row.memory, 0.01)),
    ("DCGM_FI_DEV_GPU_TEMP", "Temperature in degrees C.", lambda row: row.temperature),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw in W.", lambda row: row.power),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrectable errors since the driver was loaded.", lambda row: row.ecc),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1: a remapping of rows has failed.", lambda row: _failed(row.rows)),
)


def _failed(rows: int | None) -> float | None:
    return None if rows is None else float(rows == ROWS_FAILED)


class AgentCollector(Collector):
    def __init__(self, agents: AgentService, gpus: Iterable[Gpu], details: bool) -> None:
        """`details`: whether hosts and GPUs are named; else none of it is shown, but how many agents there are."""
        self._agents, self._details = agents, details
        self._gpus = {(gpu.host, gpu.address): gpu for gpu in gpus}

    def collect(self) -> Iterator[Metric]:
        heard, silent = self._agents.heard()
        agents = GaugeMetricFamily(
            "gpuyard_agents",
            "Servers whose agent may say how their GPUs are; silent: not for minutes.",
            labels=["state"],
        )
        agents.add_metric(["heard"], heard)
        agents.add_metric(["silent"], silent)
        yield agents
        if not self._details:
            return
        readings = [
            ([gpu.address, gpu.host, gpu.model, gpu.pool], row)
            for place, row in sorted(self._agents.readings().items())
            if (gpu := self._gpus.get(place)) is not None
        ]
        for name, words, value in GAUGES:
            metric = GaugeMetricFamily(name, f"{words} As the agent in the guest says.", labels=LABELS)
            for labels, row in readings:
                if (number := value(row)) is not None:
                    metric.add_metric(labels, number)
            yield metric
