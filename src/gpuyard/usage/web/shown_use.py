"""Hides from people what they may not see of who has used which GPUs. `web/visibility.py` has the rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuyard.inventory.web.shown_servers import kept_for
from gpuyard.model.gpu import GpuState
from gpuyard.model.rights import Verb, may
from gpuyard.usage.records import Interval, Slice, Tenure, TrackState
from gpuyard.web.people import Visitor
from gpuyard.web.projects import in_project
from gpuyard.web.settings import OthersShown
from gpuyard.web.visibility import SERVER, SOMEBODY, projects_of, shown_project


@dataclass(frozen=True)
class UseVisibility:
    """A person's view of the use of others: which names and projects they see."""

    others: OthersShown
    everything: bool
    user_id: str
    near: frozenset[str]
    """Ids of their projects."""
    led: frozenset[str]
    """Ids of those of their projects of which they see each member's share."""

    def sees(self, user_id: str, project_id: str) -> bool:
        """Return whether the person sees what this user (id) has used in that project (id)."""
        return self.everything or user_id == self.user_id or project_id in self.led

    def slice(self, use_slice: Slice) -> Slice:
        """Return a sum as the person sees it: how much it was, and as much of whose as they see."""
        nobodys = not (use_slice.user_id or use_slice.project_id)
        if nobodys or self.sees(use_slice.user_id, use_slice.project_id):
            return use_slice
        shown = replace(use_slice, user=SOMEBODY, user_id="")
        if self._knows(use_slice.project_id):
            return shown
        return replace(shown, project=shown_project(use_slice.project, self.others), project_id="", repository="")

    def interval(self, interval: Interval) -> Interval:
        """Return an interval as the person sees it: what a GPU was, and as much of for whom as they see."""
        own = interval.tenure
        somebodys = bool(own.user_id or own.user or own.server or own.project_id)
        open_to_all = self.others is OthersShown.NAMES and (interval.state is TrackState.HELD or not somebodys)
        if open_to_all or self.sees(own.user_id, own.project_id):
            return interval
        is_reserved = interval.state in (TrackState.BOOKED, TrackState.HELD)
        shown = Tenure(
            reason=kept_for(GpuState(interval.state.value), own.reason) if is_reserved else "",
            kind=own.kind,
            server_name=SERVER if own.server else "",
            user=SOMEBODY if somebodys else "",
            project=shown_project(own.project, self.others) if own.project_id else "",
        )
        if self._knows(own.project_id):
            words = {"project_id": own.project_id, "project": own.project}
            shown = replace(shown, flavor=own.flavor, repository=own.repository, **words)
        return replace(interval, tenure=shown)

    def _knows(self, project_id: str) -> bool:
        return project_id in self.near or self.others is OthersShown.NAMES


def use_visibility(others: OthersShown, who: Visitor) -> UseVisibility:
    near = projects_of(who)
    led = frozenset(id for id in near if may(in_project(who, id, ""), Verb.SEE_SHARES))
    return UseVisibility(others, bool(may(who.person, Verb.SEE_ACCOUNTS)), who.person.user_id, near, led)
