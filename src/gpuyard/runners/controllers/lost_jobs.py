"""Finds jobs that GitHub never reported, by asking repositories for their runs.

GitHub has no list of an organisation's queued jobs, only one of each repository, and an organisation may have tens of
thousands of repositories. A run has few calls. So repositories are asked in three orders, each with a part of these:

1. those that had jobs of ours lately, in turn;
2. those that were pushed to since they were last asked about, page by page, the latest first;
3. all others, one page of GitHub's list after the other.

The positions of the last two are stored, so that a run, or a start of the process, goes on with the page that the one
before did not finish.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuyard.runners.controllers.call_budget import CallBudget
from gpuyard.runners.controllers.repositories import Answers, Repositories
from gpuyard.runners.controllers.runner_intake import JobIntake
from gpuyard.runners.github.answers import RepositoryPage
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.store import RunnerStore

LOG = logging.getLogger(__name__)
LISTED = timedelta(minutes=30)
"""Time for which a page of the list is believed."""
VISIT = 3
"""Calls that a repository takes at least: its file, and its runs in two states."""
FAMILIAR = timedelta(days=30)
FIRST_PUSHES = timedelta(hours=6)
"""Age of the oldest pushes that the first run examines."""
SETTLED = timedelta(minutes=2)
"""Age of the newest pushes that are examined: a push begins its runs a little later."""
FARTHEST = timedelta(hours=25)
"""Age of the oldest pushes that are ever examined: GitHub cancels a job that was queued for 24 hours."""
MOST_PAGES = 10_000
"""Pages of GitHub's list: a stored number beyond it is not believed."""
MOST_ASKED = 20_000


@dataclass(frozen=True)
class PushProgress:
    """The examined part of GitHub's list of repositories by their last push, which begins with the latest."""

    since: datetime | None = None
    """Pushes before this were examined in an earlier pass. None: there was none."""
    mark: datetime | None = None
    """The newer end of the pass that is under way: `since` of the next one. None: none is under way."""
    oldest: datetime | None = None
    """Pushes after this, up to the mark, were examined in this pass: new pushes move repositories to the pages
    behind."""
    page: int = 1
    """Number of the next page."""

    def text(self) -> str:
        moments = {"since": self.since, "mark": self.mark, "oldest": self.oldest}
        return json.dumps({"page": self.page} | {key: at.isoformat() for key, at in moments.items() if at})

    @classmethod
    def of(cls, text: str) -> PushProgress:
        """Read from stored text; the beginning where that cannot be read."""
        try:
            data = json.loads(text) if text.startswith("{") else {"since": text} if text else {}
            moments = {key: datetime.fromisoformat(data[key]) for key in ("since", "mark", "oldest") if key in data}
            page = int(data.get("page", 1))
        except (ValueError, TypeError, OverflowError):
            return cls()
        sound = 1 <= page <= MOST_PAGES and all(at.tzinfo is not None for at in moments.values())
        return cls(page=page, **moments) if sound else cls()


@dataclass
class _Search:
    """The position of the search in one enrolment."""

    familiar: int = 0
    position: int = 0
    """Index in the page of the list."""
    pushed: deque[str] = field(default_factory=deque)
    """Repositories of one page of the list by pushes that are still to be asked."""
    after: PushProgress | None = None
    """The progress in that list once they were asked. None: no page of it is at hand."""
    visited: set[str] = field(default_factory=set)
    """Repositories that were asked in this run."""


class LostJobs:
    """The search in all enrolments. One run at a time."""

    def __init__(
        self, store: RunnerStore, intake: JobIntake, repositories: Repositories, now: Callable[[], datetime]
    ) -> None:
        self._store, self._intake, self._repositories, self._now = store, intake, repositories, now
        self._pages = Answers(now, most=50)
        self._searches: dict[str, _Search] = {}
        self._asked: dict[tuple[str, int], datetime] = {}
        """(enrolment, run) -> when its jobs were asked for."""

    def run(self, scope: str, client: GitHubClient, budget: CallBudget) -> None:
        """Go on in an enrolment. Raises GitHubError; what concerns one repository alone is only logged."""
        if not client.enrolment.cirun:
            return
        search = self._searches.setdefault(scope, _Search())
        search.visited.clear()
        total = budget.left
        self._ask_familiar(scope, client, search, budget, total // 2)
        self._ask_pushed(scope, client, search, budget, total // 4)
        self._ask_all(scope, client, search, budget)

    def _ask_familiar(self, scope: str, client: GitHubClient, search: _Search, budget: CallBudget, rest: int) -> None:
        """`rest`: calls to leave."""
        names = [
            name
            for name in self._store.repositories_with_jobs(scope, self._now() - FAMILIAR)
            if client.enrolment.includes(name)
        ]
        for _ in names:
            if budget.left < rest + VISIT:
                return
            name = names[search.familiar % len(names)]
            search.familiar += 1
            self._visit(scope, client, search, name, budget)

    def _ask_pushed(self, scope: str, client: GitHubClient, search: _Search, budget: CallBudget, rest: int) -> None:
        """Ask repositories that were pushed to, at most to the end of the list."""
        while budget.left >= rest + VISIT:
            if search.after is None:
                search.after = self._take_pushed(scope, client, search, budget)
            while search.pushed and budget.left >= rest + VISIT:
                self._visit(scope, client, search, search.pushed.popleft(), budget)
            if search.pushed:
                return
            examined, search.after = search.after, None
            self._store.set_value(f"pushed/{scope}", examined.text())
            if examined.mark is None:
                return

    def _take_pushed(self, scope: str, client: GitHubClient, search: _Search, budget: CallBudget) -> PushProgress:
        """The next page of the list by pushes; how far it is examined when those on the page were asked."""
        before, now = PushProgress.of(self._store.value(f"pushed/{scope}")), self._now()
        first = before.since or now - FIRST_PUSHES
        since, mark = max(first, now - FARTHEST), before.mark or now - SETTLED
        oldest = before.oldest or mark
        budget.spend()
        page = client.pushed_repositories(before.page)
        search.pushed.extend(
            repository.name
            for repository in page.repositories
            if repository.pushed and since <= repository.pushed <= oldest
        )
        if not page.more or page.oldest_push is None or page.oldest_push < since or before.page >= MOST_PAGES:
            return PushProgress(mark)
        return PushProgress(first, mark, min(oldest, page.oldest_push), before.page + 1)

    def _ask_all(self, scope: str, client: GitHubClient, search: _Search, budget: CallBudget) -> None:
        """Ask all repositories in turn, at most once round."""
        key = f"listed/{scope}"
        stored = self._store.value(key)
        number = int(stored) if stored.isascii() and stored.isdecimal() and len(stored) < 7 else 1
        while budget.left >= VISIT:
            page = self._page(scope, client, max(1, number), budget)
            while search.position < len(page.repositories) and budget.left >= VISIT:
                name = page.repositories[search.position].name
                search.position += 1
                self._visit(scope, client, search, name, budget)
            if search.position < len(page.repositories):
                return
            number, search.position = (number + 1 if page.more else 1), 0
            self._store.set_value(key, str(number))
            if not page.more:
                return

    def _page(self, scope: str, client: GitHubClient, number: int, budget: CallBudget) -> RepositoryPage:
        def ask(_: object) -> RepositoryPage:
            budget.spend()
            return client.repositories(number)

        return self._pages.get((scope, number), LISTED, ask)

    def _visit(self, scope: str, client: GitHubClient, search: _Search, name: str, budget: CallBudget) -> None:
        """Ask one repository. What is wrong with it keeps nobody from the others."""
        if name.lower() in search.visited:
            return
        search.visited.add(name.lower())
        try:
            budget.spend()
            files = self._repositories.configuration(scope, name)
            if files.own.runners or files.shared.runners:
                budget.spend(2)
                self._ask_runs(scope, client, name, client.waiting_runs(name), budget)
        except GitHubError as error:
            if error.kind not in (GitHubTrouble.MISSING, GitHubTrouble.REFUSED, GitHubTrouble.CONFLICT):
                raise
            LOG.info("%s: not asked for its jobs: %s", name, error)
        except Exception:  # a mistake of ours: it may concern this repository only, and there are others
            LOG.exception("%s: not asked for its jobs", name)

    def _ask_runs(self, scope: str, client: GitHubClient, name: str, runs: Sequence[int], budget: CallBudget) -> None:
        """Ask for the jobs of runs, those first that were not asked for, or the longest ago: there may be more than the
        calls suffice for."""
        long_ago = datetime.min.replace(tzinfo=self._now().tzinfo)
        for run in sorted(runs, key=lambda run: self._asked.get((scope, run), long_ago)):
            if not budget.has():
                return
            budget.spend()
            if len(self._asked) >= MOST_ASKED:
                self._asked.clear()
            self._asked[scope, run] = self._now()
            budget.spend(self._intake.found(client.jobs_of(name, run)))
