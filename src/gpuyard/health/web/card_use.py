"""Describes for pages what GPUs do now, by the agents in their servers, so that owners notice an idle GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.idle import UseSeen
from gpuyard.inventory.web.presenter import lasted
from gpuyard.web.people import Visitor
from gpuyard.web.visibility import sees_agents

RESTS = 10 * 60
"""Seconds of doing nothing from which it is worth a word."""
LITTLE = 5
"""Percent of use over LONG, below which it is, too."""
LONG = 30
"""Minutes."""


@dataclass(frozen=True)
class UseLine:
    """The use of one GPU, in words."""

    used: str
    """``used 3 % over the last 60 min``; or that it is not known now."""
    memory: str
    temperature: str
    """``41 °C``; like `memory` empty when it is not known."""
    idle: str
    """``has done nothing for 3 h``; empty when it does something, or nobody knows."""
    little: bool
    """Whether it does so little that somebody else might need it more."""

    @property
    def words(self) -> str:
        memory = f"{self.memory} of its memory" if self.memory else ""
        return ", ".join(filter(None, (self.used, self.idle, memory, self.temperature)))


class CardUses:
    """The use of GPUs, for pages. Safe to use from several threads."""

    def __init__(self, agents: AgentService | None) -> None:
        """`agents`: None where no server is asked."""
        self._agents = agents

    def of(self, servers: Iterable[str], who: Visitor) -> Mapping[str, UseLine]:
        """Return the use of GPUs (``host/address``) of these servers (ids), where an agent reports it and `who` may see
        it. Raises StoreError."""
        agents, lines_by_gpu = self._agents, {}
        snapshot = agents.seen() if agents is not None else None
        if agents is None or snapshot is None:
            return {}
        on = agents.servers()
        for id in {*servers} & on:
            server = snapshot.servers.get(id)
            if server is not None and sees_agents(who, server.project_id):
                places = agents.has().get(id, frozenset())
                for gpu, gpu_use in _placed(
                    ["/".join(place) for place in places], agents.use_of(id, places, None)
                ).items():
                    idle = (agents.now() - gpu_use.idle_since).total_seconds() if gpu_use.idle_since else 0.0
                    lines_by_gpu[gpu] = use_line(gpu_use, idle)
        return lines_by_gpu


def _placed(gpus: Iterable[str], gpu_uses: Iterable[UseSeen]) -> dict[str, UseSeen]:
    """By GPU; what is said of one that nobody can name is left out, unless only one can be meant."""
    uses_by_gpu = {gpu_use.gpu: gpu_use for gpu_use in gpu_uses}
    rest, nameless = [gpu for gpu in gpus if gpu not in uses_by_gpu], uses_by_gpu.pop("", None)
    if nameless is not None and len(rest) == 1:
        uses_by_gpu[rest[0]] = nameless
    return uses_by_gpu


def use_line(gpu_use: UseSeen, idle: float) -> UseLine:
    """Return the use in words. `idle`: seconds for which it has done nothing."""
    is_known = gpu_use.lately is not None
    little = is_known and gpu_use.minutes >= LONG and (gpu_use.lately or 0) < LITTLE
    return UseLine(
        used=f"used {gpu_use.lately} % over the last {gpu_use.minutes} min"
        if is_known
        else "what it does is not known now",
        memory="" if gpu_use.memory is None else f"{gpu_use.memory} %",
        temperature="" if gpu_use.temperature is None else f"{gpu_use.temperature} °C",
        idle=f"has done nothing for {lasted(idle)}" if idle >= RESTS else "",
        little=little or idle >= RESTS,
    )
