"""An organisation that does not exist, in the shape of a real community's configuration, and a site that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from gpuyard.runners.facts import FactsUnavailableError, TextFile
from gpuyard.runners.records import Job, JobState, Trust
from gpuyard.runners.resolve import Configuration, RepositoryFiles, read
from gpuyard.site.schema import Site

COMMUNITY = Path(__file__).parents[1] / "unit/community"
ORGANIZATION = "geo-forge"
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
LISTS = TextFile("geo-forge/open-gpus", "main", "access/users.json")
FLAVORS = ("gpu_large", "gpu_xlarge", "gpu_2xlarge", "gpu_4xlarge")


def flavor(**more: Any) -> dict[str, Any]:
    return {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", **more}


def document(runners: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Of a site with six V100, which nobody has recorded."""
    return {
        "site": "test",
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"v100": {"models": ["10de:1db4"]}},
        "flavors": {
            **{name: flavor(gpus={"v100": 1}) for name in FLAVORS},
            "gpu_pair": flavor(gpus={"v100": 2}, same_group=True),
            "cpu_large": flavor(),
        },
        "booking": {},
        "runners": {
            "project": "ci",
            "enrolments": [{"organization": ORGANIZATION, "token_file": "token"}],
            "forks": "everybody",
            **(runners or {}),
        },
        **more,
    }


def site_of(**runners: Any) -> Site:
    return Site.model_validate(document(runners))


@cache
def community() -> Configuration:
    return read(
        RepositoryFiles(None, *((COMMUNITY / name).read_text() for name in (".cirun.global.yml", ".access.yml")))
    )


def job(repository: str, *labels: str, **more: Any) -> Job:
    """A queued job of the organisation, of a push by somebody who may."""
    defaults = {
        "id": "github.com/1",
        "repository": f"{ORGANIZATION}/{repository}" if "/" not in repository else repository,
        "labels": labels,
        "state": JobState.QUEUED,
        "queued": NOW,
        "scope": ORGANIZATION,
        "event": "push",
        "actor": "ada-maintains",
        "trust": Trust.REPOSITORY,
    }
    return Job(**{**defaults, **more})


@dataclass
class People:
    """What GitHub says of people. `asked` has every question."""

    roles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(repository, login) -> role; all in lower case."""
    teams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[TextFile, str] = field(default_factory=dict)
    down: bool = False
    asked: list[str] = field(default_factory=list)

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        if self.down:
            raise FactsUnavailableError("GitHub does not answer")

    def role(self, repository: str, user: str) -> str:
        self._ask(f"role {user} {repository}")
        return self.roles.get((repository.lower(), user.lower()), "")

    def in_team(self, organization: str, team: str, user: str) -> bool:
        self._ask(f"team {user} {organization}/{team}")
        return user.lower() in self.teams.get(team, ())

    def text(self, file: TextFile) -> str | None:
        self._ask(f"file {file.repository} {file.ref} {file.path}")
        return self.files.get(file)

    def gone(self) -> People:
        return replace(self, down=True, asked=[])
