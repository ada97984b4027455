"""The entry point for preparing a host: look, plan, apply, undo. Ties the pure planners to one host."""

from __future__ import annotations

from datetime import datetime
from typing import Dict, List, Optional

from gpuyard.host.holders import DeviceHolder, holders
from gpuyard.host.judge import judge
from gpuyard.host.local_host import HostAccess
from gpuyard.host.machine import Machine
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation.apply import OnStep, apply_plan, apply_undo, digests
from gpuyard.host.preparation.journal import Journal, copy_of, current
from gpuyard.host.preparation.plan import plan_preparation
from gpuyard.host.preparation.plan_undo import plan_undo
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.scan import scan
from gpuyard.model.plan import Plan


class Preparation:
    """One look at a host, and what can be planned from it."""

    def __init__(self, host: HostAccess, names: PciIds) -> None:
        """Raises GpuyardError when the journal of earlier changes cannot be read."""
        self.host = host
        inventory = scan(host.tree, names)
        self.machine = Machine(host.tree, inventory, judge(inventory))
        self.journal: Optional[Journal] = current(host.tree)
        self.held: Dict[str, List[DeviceHolder]] = holders(host.tree)

    @property
    def wishes(self) -> Wishes:
        """Those of the last apply."""
        return self.journal.wishes if self.journal else Wishes()

    def plan(self, wishes: Wishes) -> Plan:
        return plan_preparation(self.machine, wishes, self.journal, self.held)

    def apply(self, plan: Plan, wishes: Wishes, now: datetime, on_step: OnStep) -> None:
        apply_plan(self.host, plan, self.machine.inventory, wishes, now, on_step)

    def plan_undo(self, live: bool = True) -> Plan:
        runs = self.journal.runs.values() if self.journal else ()
        copies = [copy_of(path) for run in runs for path in run.originals]
        digests_by_path = digests(self.host, [*(pattern for run in runs for pattern in run.patterns), *copies])
        return plan_undo(self.host.tree, self.machine.inventory, self.journal, digests_by_path, self.held, live)

    def undo(self, plan: Plan, on_step: OnStep) -> None:
        apply_undo(self.host, plan, on_step)
