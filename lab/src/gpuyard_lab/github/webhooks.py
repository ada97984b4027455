"""Webhooks: turns events of jobs into signed deliveries, some of which go wrong."""

from __future__ import annotations

import hmac
import json
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256

from gpuyard_lab.github import payloads
from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.records import COMPLETED, ForgeHook, ForgeJob, HookSending

EVENT = "workflow_job"


def signature(secret: str, body: bytes) -> str:
    """Return a signature as in ``X-Hub-Signature-256``."""
    return "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()


def headers_of(hook: ForgeHook, delivery: HookSending) -> dict[str, str]:
    """Return the headers that a delivery is sent with."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/0000000",
        "X-GitHub-Event": delivery.event,
        "X-GitHub-Delivery": delivery.guid,
        "X-GitHub-Hook-ID": str(hook.id),
        "X-Hub-Signature-256": signature(hook.secret, delivery.body),
    }


class Webhooks:
    """Makes a delivery of each event of a Forge, for each hook that is concerned."""

    def __init__(self, forge: Forge) -> None:
        self.forge = forge
        forge.listeners.append(self.happened)

    def happened(self, job: ForgeJob, action: str) -> None:
        for hook in self.forge.hooks.values():
            if self._concerned(hook, job):
                self._deliver(hook, job, action)

    def _concerned(self, hook: ForgeHook, job: ForgeJob) -> bool:
        owner = job.repository.partition("/")[0].lower()
        if hook.scope == "app":
            return bool(self.forge.accounts[owner].installation)
        return hook.scope.lower() in (owner, job.repository.lower())

    def _deliver(self, hook: ForgeHook, job: ForgeJob, action: str) -> None:
        forge, faults, now = self.forge, self.forge.faults, self.forge.now()
        subject = f"hook {hook.id} job {job.id} {action}"
        bare = action == COMPLETED and faults.strikes("completed_bare", subject, now)
        body = json.dumps(payloads.workflow_job(forge, job, action, bare=bare)).encode()
        repository = forge.repositories[job.repository.lower()]
        installation = forge.accounts[repository.owner.lower()].installation
        delivery = HookSending(
            0, hook.id, forge.guid("delivery"), EVENT, action, body, now,
            repository_id=repository.id, installation_id=installation,
        )  # fmt: skip
        if action == COMPLETED and faults.strikes("hook_resent", subject, now):
            late = timedelta(seconds=faults.late_s * faults.draw("resent after", subject))
            self._add(replace(delivery, guid=forge.guid("delivery"), due=now + late))
        if faults.strikes("hook_lost", subject, now):
            return
        if faults.strikes("hook_late", subject, now):
            delivery.due = now + timedelta(seconds=faults.late_s * faults.draw("late by", subject))
        elif faults.strikes("hook_reordered", subject, now):
            delivery.due = now + timedelta(seconds=faults.reorder_s * faults.draw("reordered by", subject))
        delivery.lost = faults.strikes("hook_failed", subject, now)
        self._add(delivery)
        if not delivery.lost and faults.strikes("hook_doubled", subject, now):
            self._add(replace(delivery))

    def _add(self, delivery: HookSending) -> HookSending:
        delivery.id = self.forge.next_id("sending")
        self.forge.sendings[delivery.id] = self.forge.unsent[delivery.id] = delivery
        self.forge.wake()
        return delivery

    def redeliver(self, delivery: HookSending) -> HookSending:
        """Send a delivery again: the same GUID under another id."""
        again = replace(delivery, due=self.forge.now(), redelivery=True, lost=False, sent=None, status_code=0)
        return self._add(again)

    def take_due(self) -> list[tuple[ForgeHook, HookSending]]:
        """Take the deliveries to be sent now, in the order in which they are due, without those that get lost. The
        caller reports each outcome with ``answered``."""
        now = self.forge.now()
        due = sorted(
            (delivery for delivery in self.forge.unsent.values() if delivery.due <= now),
            key=lambda delivery: (delivery.due, delivery.id),
        )
        taken = []
        for delivery in due:
            del self.forge.unsent[delivery.id]
            delivery.sent = now
            if not delivery.lost and delivery.hook in self.forge.hooks:
                taken.append((self.forge.hooks[delivery.hook], delivery))
        return taken

    def answered(self, delivery: HookSending, status_code: int) -> None:
        delivery.status_code = status_code
