"""Hears hosts: a look comes in, what it means is observed, and that it was heard is written down."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from datetime import datetime, timedelta

from gpuyard.health.looks import HostMemory, LookRefusedError, judge, look_of
from gpuyard.health.records import HostWord
from gpuyard.keeper.health_desk import HealthDesk

CARDS = timedelta(minutes=10)
"""A GPU gets another card once in so long: whoever has the token could name another one in each look."""


class HostLooks:
    """Safe to use from several threads."""

    def __init__(self, desk: HealthDesk, hosts: Collection[str]) -> None:
        """`hosts`: those of the site."""
        self.hosts = frozenset(hosts)
        self._desk, self._store = desk, desk.store
        self._memories: dict[str, HostMemory] = {}
        self._named: dict[str, datetime] = {}
        """GPU -> when its card was written down."""
        self._turns = {host: threading.Lock() for host in hosts}

    def hear(self, host: str, body: bytes) -> None:
        """Take a look of one of `hosts`. What it means is durable when this returns. Raises LookRefusedError,
        StoreError."""
        look = look_of(body)
        if look.host != host:
            raise LookRefusedError(f"host: this is a look of {look.host[:100]!r}, and the token is for {host}")
        with self._turns[host]:
            now = self._desk.now()
            gpus = {gpu.address: gpu for gpu in self._store.gpus(host=host)}
            observations, memory = judge(self._memory(host), look, gpus, now)
            if observations:
                self._desk.observe(observations)
            word = HostWord(host, now, json.dumps(memory.look.as_dict(), ensure_ascii=False))
            self._desk.hear(word, {gpu.address: gpu.in_use for gpu in look.gpus if gpu.address in gpus})
            self._memories[host] = memory
            for one in look.gpus:
                if one.serial and one.address in gpus and gpus[one.address].card != one.serial:
                    self._know_card(f"{host}/{one.address}", one.serial, now)

    def _know_card(self, gpu: str, serial: str, now: datetime) -> None:
        if not timedelta() <= now - self._named.get(gpu, now - CARDS) < CARDS:
            self._named[gpu] = now
            self._desk.know_card(gpu, serial)

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
