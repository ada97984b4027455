"""Jobs that are pushed to the GitHub beside a lab."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuyard_lab.errors import LabError
from gpuyard_lab.github.server import ForgeServer
from gpuyard_lab.jobs import job_seen, push_job
from gpuyard_lab.settings import Lab


def test_a_job_of_a_repository_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with ForgeServer() as github:
        github.standin.forge.add_account("demo", organization=True)
        github.standin.forge.add_repository("demo/science")
        lab = cast("Lab", SimpleNamespace(github_url=github.url, state=tmp_path))
        for name in ("demo/nope", "nope", ""):
            with pytest.raises(LabError) as refused:
                push_job(lab, name, "gpu", 1)
            assert str(refused.value) == f"the lab's GitHub has no repository {name!r}; it has demo/science"
        assert job_seen(lab, push_job(lab, "Demo/Science", "gpu", 1)).status == "queued", "as GitHub reads names"
    with pytest.raises(LabError, match="no GitHub runs beside the lab"):
        push_job(lab, "demo/science", "gpu", 1)
