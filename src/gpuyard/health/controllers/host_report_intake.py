"""Takes reports of hosts: observes the signals in them, then writes that the host was heard."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from datetime import datetime, timedelta

from gpuyard.health.baseline import Facts
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.host_reports import HostMemory, LookRefusedError, facts_of, judge, look_of
from gpuyard.health.records import HostContact

CARDS = timedelta(minutes=10)
"""A GPU gets another card at most once in this time: whoever has the token could name another one in each report."""

SHOWN = timedelta(minutes=1)
"""The facts of a GPU are written at most once in this time, for the same reason."""


class HostReportIntake:
    """The intake of reports of one site's hosts. Safe to use from several threads."""

    def __init__(self, service: HealthService, hosts: Collection[str]) -> None:
        """`hosts`: those of the site."""
        self.hosts = frozenset(hosts)
        self._service, self._store = service, service.store
        self._memories: dict[str, HostMemory] = {}
        self._named: dict[str, datetime] = {}
        """GPU -> when its card was written down."""
        self._shown: dict[str, datetime] = {}
        """GPU -> when what it shows was written down."""
        self._locks = {host: threading.Lock() for host in hosts}

    def hear(self, host: str, body: bytes) -> None:
        """Take a report of one of `hosts`. Its observations are durable when this returns. Raises LookRefusedError,
        StoreError."""
        look = look_of(body)
        if look.host != host:
            raise LookRefusedError(f"host: this is a look of {look.host[:100]!r}, and the token is for {host}")
        with self._locks[host]:
            now = self._service.now()
            gpus = {gpu.address: gpu for gpu in self._store.gpus(host=host)}
            observations, memory = judge(self._memory(host), look, gpus, now, self._service.verdicts)
            if observations:
                self._service.observe(observations)
            word = HostContact(host, now, json.dumps(memory.look.as_dict(), ensure_ascii=False))
            self._service.hear(word, {gpu.address: gpu.in_use for gpu in look.gpus if gpu.address in gpus})
            self._memories[host] = memory
            for gpu_report in look.gpus:
                gpu = gpus.get(gpu_report.address)
                if gpu is None:
                    continue
                if gpu_report.serial and gpu.card != gpu_report.serial:
                    self._know_card(gpu.name, gpu_report.serial, now)
                facts = {**gpu.shown, **facts_of(gpu_report, memory.uses.get(gpu_report.address), now)}
                if facts != gpu.shown:
                    self._show(gpu.name, facts, now)

    def _show(self, gpu: str, facts: Facts, now: datetime) -> None:
        if not timedelta() <= now - self._shown.get(gpu, now - SHOWN) < SHOWN:
            self._shown[gpu] = now
            self._service.show(gpu, facts)

    def _know_card(self, gpu: str, serial: str, now: datetime) -> None:
        if not timedelta() <= now - self._named.get(gpu, now - CARDS) < CARDS:
            self._named[gpu] = now
            self._service.know_card(gpu, serial)

    def _memory(self, host: str) -> HostMemory | None:
        """What is remembered; after a restart the last look alone."""
        if host not in self._memories:
            word = self._store.host(host)
            if word is None:
                return None
            try:
                return HostMemory(look_of(word.look.encode()))
            except LookRefusedError:  # of another version of gpuyard
                return None
        return self._memories[host]
