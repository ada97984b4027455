"""A stand-in GitHub for tests: with a clock that tests move, spoken to in process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuyard_lab.github.faults import FaultRates, Faults
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.standin import StandIn
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRequest

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PERSON = "ghp_of_a_person"
SIMULATED = ForgeSettings(poll_s=0)


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def on(self, **by: float) -> None:
        self.now += timedelta(**by)


@dataclass
class Asker:
    """Asks a stand-in in process. Time only passes when told."""

    clock: Clock
    standin: StandIn
    token: str = PERSON
    last: ForgeAnswer = field(default_factory=lambda: ForgeAnswer(0))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The decoded answer; ``last`` is the whole of it."""
        sent = {"authorization": f"Bearer {self.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        data = b"" if body is None else json.dumps(body).encode()
        self.last = self.standin.handle(ForgeRequest.of(method, path, sent, data))
        return self.last.body

    def later(self, **by: float) -> None:
        self.clock.on(**by)
        self.standin.tick()

    def jit(self, name: str, labels: list[str], place: str = "repos/demo/science", group: int = 1) -> Any:
        body = {"name": name, "labels": labels, "runner_group_id": group}
        return self.ask("POST", f"/api/v3/{place}/actions/runners/generate-jitconfig", body)


def forge(rates: FaultRates | None = None, seed: int = 0, settings: ForgeSettings = SIMULATED) -> Asker:
    """A GitHub with the repository demo/science, and a person's token for it."""
    clock = Clock()
    standin = StandIn(clock, Faults(seed, rates), settings)
    standin.forge.personal_tokens[PERSON] = "octocat"
    standin.forge.add_repository("demo/science").files["README.md"] = "Science.\n"
    return Asker(clock, standin)
