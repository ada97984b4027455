"""Has GitHub deliver webhooks again that did not arrive.

GitHub lists what a webhook has sent newest first, page by page, and keeps it for three days; only the status code of
each attempt says what failed. A busy organisation has tens of thousands a day, and one run has few calls. So the time
line is examined piecewise, and how far is stored:

    older                                                            newer
    ... examined ... | until      gap      cursor | ... examined ... | seen    new    now

Each run begins with what is new. What it does not finish becomes the gap, which is worked off from its newer end, by
GitHub's cursor, with the calls that later runs have left.

When none of the newest attempts arrived, our receiver cannot be reached: then one is asked for again at each run, to
see whether it can be, and nothing counts as examined.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from gpuyard.runners.controllers.call_budget import CallBudget
from gpuyard.runners.github.answers import Hook, HookAttempt, HookAttempts
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.store import RunnerStore

T = TypeVar("T")
LOG = logging.getLogger(__name__)
BACK = timedelta(hours=6)
"""Age of the oldest deliveries that the first run examines."""
FARTHEST = timedelta(hours=25)
"""GitHub cancels a job that was queued for 24 hours, so what is older brings no job that still waits."""
OVERLAP = timedelta(minutes=10)
"""Runs overlap by so much: an attempt may fail long after it began."""
SETTLED = timedelta(minutes=10)
"""A job that is known and silent for so long is asked for anyway: of older attempts only those count that report new
jobs."""
NEW_JOBS = ("queued", "waiting")
TRIES = 3
"""Most times that GitHub is asked to deliver one webhook again."""
PAUSE = timedelta(seconds=90)
"""Time before a webhook is asked for the next time: so long its redelivery may be under way."""
NEWEST = 10
"""Attempts that show whether our receiver can be reached."""
MOST = 50_000
"""Webhooks whose number of requests is remembered."""


@dataclass(frozen=True)
class SearchProgress:
    """The examined part of one webhook's deliveries."""

    seen: datetime | None = None
    """The end of what was examined. None: nothing yet."""
    cursor: str = ""
    """GitHub's cursor of the gap's newer end."""
    until: datetime | None = None
    """The gap's older end. None: there is no gap."""

    def text(self) -> str:
        moments = {key: at.isoformat() for key, at in (("seen", self.seen), ("until", self.until)) if at}
        return json.dumps({**moments, "cursor": self.cursor})

    @classmethod
    def of(cls, text: str) -> SearchProgress:
        try:
            data = json.loads(text) if text.startswith("{") else {"seen": text} if text else {}
            moments = {key: datetime.fromisoformat(data[key]) for key in ("seen", "until") if key in data}
            if any(at.tzinfo is None for at in moments.values()):
                return cls()
            return cls(cursor=str(data.get("cursor", "")), **moments)
        except (ValueError, TypeError):
            return cls()


class LostDeliveries:
    """The search in all enrolments. One run at a time."""

    def __init__(self, store: RunnerStore, now: Callable[[], datetime]) -> None:
        self._store, self._now = store, now
        self._asked: OrderedDict[str, tuple[int, datetime]] = OrderedDict()
        """Webhook -> how often it was asked for again, and when last."""
        self._brought: OrderedDict[str, None] = OrderedDict()
        """Webhooks that a later attempt has brought."""

    def run(self, scope: str, client: GitHubClient, budget: CallBudget) -> None:
        """Go on with all webhooks of an enrolment. Raises GitHubError."""
        budget.spend()
        for hook in client.hooks():
            if budget.has(2):
                self._run(scope, client, hook, budget)

    def _run(self, scope: str, client: GitHubClient, hook: Hook, budget: CallBudget) -> None:
        key, began = f"redelivered/{scope}/{hook.path}", self._now()
        before = SearchProgress.of(self._store.value(key) or self._store.value(f"redelivered/{scope}"))
        budget.spend()
        page = client.deliveries(hook)
        if (probe := _unreachable(page)) is not None:
            LOG.warning("%s: none of the last webhooks of %s arrived; asking for one again", scope, hook.path)
            self._redeliver(scope, client, hook, probe, budget)
            return
        since = max(before.seen - OVERLAP if before.seen else began - BACK, began - FARTHEST)
        cursor = self._walk(scope, client, hook, page, "", since, budget)
        after = SearchProgress(began, before.cursor, before.until)
        if cursor == "":  # not even the first page: as if this run had not been
            return
        if cursor is not None:
            after = SearchProgress(began, cursor, before.until or since)
        elif before.until is not None and budget.has():
            after = self._fill(scope, client, hook, after, budget)
        self._store.set_value(key, after.text())

    def _fill(
        self, scope: str, client: GitHubClient, hook: Hook, progress: SearchProgress, budget: CallBudget
    ) -> SearchProgress:
        """Go on with the gap."""
        until = max(progress.until or self._now(), self._now() - FARTHEST)
        try:
            budget.spend()
            page = client.deliveries(hook, progress.cursor)
        except GitHubError as error:
            if error.status not in (400, 404, 422):
                raise
            LOG.warning("%s: GitHub does not know the cursor of %s any more: beginning anew", scope, hook.path)
            return SearchProgress(until)
        cursor = self._walk(scope, client, hook, page, progress.cursor, until, budget)
        return (
            SearchProgress(progress.seen) if cursor is None else SearchProgress(progress.seen, cursor, progress.until)
        )

    def _walk(
        self, scope: str, client: GitHubClient, hook: Hook, page: HookAttempts, cursor: str, until: datetime,
        budget: CallBudget,
    ) -> str | None:  # fmt: skip
        """Examine pages, the first of which is `page` at `cursor`, back to a time. Where the page begins that was not
        finished for want of calls; None when all were."""
        while True:
            for attempt in self._lost(page.attempts, until):
                if not budget.has():
                    return cursor
                self._redeliver(scope, client, hook, attempt, budget)
            if not page.cursor or any(attempt.delivered < until for attempt in page.attempts):
                return None
            cursor = page.cursor
            if not budget.has():
                return cursor
            budget.spend()
            page = client.deliveries(hook, cursor)

    def _lost(self, attempts: Sequence[HookAttempt], until: datetime) -> list[HookAttempt]:
        """Return the attempts to ask for again: the latest one of each webhook that did not arrive."""
        now = self._now()
        lost_by_guid: dict[str, HookAttempt] = {}
        for attempt in attempts:  # the newest first
            if attempt.ok and attempt.redelivery:
                _remember(self._brought, attempt.guid, None)
            elif (
                not attempt.ok
                and attempt.event == "workflow_job"
                and attempt.delivered >= until
                and attempt.guid not in self._brought
                and (attempt.action in ("", *NEW_JOBS) or now - attempt.delivered < SETTLED)
                and self._may_ask(attempt.guid, now)
            ):
                lost_by_guid.setdefault(attempt.guid, attempt)
        return [*lost_by_guid.values()]

    def _may_ask(self, guid: str, now: datetime) -> bool:
        times, last = self._asked.get(guid, (0, now - PAUSE))
        return times < TRIES and now - last >= PAUSE

    def _redeliver(
        self, scope: str, client: GitHubClient, hook: Hook, attempt: HookAttempt, budget: CallBudget
    ) -> None:
        times, _ = self._asked.get(attempt.guid, (0, None))
        _remember(self._asked, attempt.guid, (times + 1, self._now()))
        LOG.info("%s: webhook %s of %s failed; asking for it again", scope, attempt.guid, attempt.delivered)
        budget.spend()
        client.redeliver(hook, attempt.id)


def _unreachable(page: HookAttempts) -> HookAttempt | None:
    """The newest attempt when several of the newest were made and none arrived."""
    newest = page.attempts[:NEWEST]
    return newest[0] if len(newest) == NEWEST and not any(attempt.ok for attempt in newest) else None


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MOST:
        memory.popitem(last=False)
