"""All GPUs can be used, no order of requests splits an IOMMU group, and requests that come together all get theirs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.model.errors import BlockedError
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.errors import CloudError
from gpuyard_lab.exercise import Exercise, choose, prove, split_groups
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

HOST = "gpu-server"
SHARED = {"gpu_pair-a": 19, "gpu_pair-b": 87}
GROUPS = {19: 2, 32: 1, 75: 1, 87: 2}


def test_the_exercise_as_a_command(lab: RunningLab, exercise: Exercise) -> None:
    result = CliRunner().invoke(app, ["lab", "exercise", "--state", str(lab.settings.state)])
    assert result.exit_code == 0, result.output
    assert "6 of 6 GPUs of gpu-server were in use" in result.stdout
    assert result.stdout.count("ACTIVE") == 8
    assert not [s for s in exercise.statuses() if s.state is not GpuState.FREE], "it cleans up behind itself"


def test_the_exercise_refuses_a_host_that_is_in_use(exercise: Exercise) -> None:
    other = exercise.boot("gpu_tiny")
    stranger = Exercise(exercise._operator, exercise._user, exercise._compiled, prefix="somebody-else-")
    with pytest.raises(BlockedError, match=rf"all GPUs of gpu-server: .* is claimed by server {other.name}"):
        list(prove(stranger, choose(stranger._compiled)))
    assert other.server_id in {s.claim.server_id for s in exercise.statuses() if s.claim}


@dataclass
class Model:
    """What must come of a request, by the rules of IOMMU groups alone."""

    taken: dict[int, str] = field(default_factory=dict)
    """Group -> server."""

    def possible(self, flavor: str) -> bool:
        if flavor in SHARED:
            return SHARED[flavor] not in self.taken
        return len(self.taken) < len(GROUPS)


steps = st.lists(
    st.one_of(st.sampled_from(["gpu_tiny", "gpu_tiny", *SHARED]), st.integers(0, 5)), min_size=3, max_size=7
)


@pytest.mark.slow
@settings(
    max_examples=5,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # no shrinking: each step takes seconds
)
@given(sequence=steps)
def test_random_orders_of_create_and_delete(exercise: Exercise, sequence: list[str | int]) -> None:
    """A text is a flavor to boot, a number is the server to delete (the n-th of those that live)."""
    exercise.clear()
    model = Model()
    for step in sequence:
        if isinstance(step, int):
            alive = list(model.taken.items())
            if alive:
                ending, server = alive[step % len(alive)]
                exercise.delete([server])
                del model.taken[ending]
        else:
            try:
                boot = exercise.boot(step)
            except CloudError as error:  # a pair beside five that are taken is over the project's limit, too
                if "over a limit" in str(error) and not model.possible(step):
                    continue
                raise
            assert boot.status == ("ACTIVE" if model.possible(step) else "ERROR"), (step, model, boot.fault)
            if boot.status == "ACTIVE":
                held = [s.gpu for s in exercise.statuses() if s.claim and s.claim.server_id == boot.server_id]
                (group,) = {gpu.group for gpu in held}
                assert group is not None
                assert group not in model.taken
                assert len(held) == (GROUPS[group] if step in SHARED else 1)
                model.taken[group] = boot.server_id
        statuses = exercise.statuses()
        assert split_groups(statuses) == []
        free = {s.gpu.group for s in statuses if s.gpu.host == HOST and s.state is GpuState.FREE}
        assert free == GROUPS.keys() - model.taken.keys(), "what the ledger calls free is what can be had"


@pytest.mark.slow
def test_rounds_of_ten_at_once(exercise: Exercise) -> None:
    """As many requests at the same moment as there are free GPUs of their pools: each gets one. GPUYARD_TEST_ROUNDS=50
    is more of it."""
    together = ["gpu_tiny"] * 4 + ["t4.15cores90GB"] * 4 + ["k4200.4cores"] * 2
    for _ in range(int(os.environ.get("GPUYARD_TEST_ROUNDS", "2"))):
        boots = exercise.boot_together(together)
        assert Counter(boot.status for boot in boots) == {"ACTIVE": 10}, [boot for boot in boots if boot.fault]
        assert split_groups(exercise.statuses()) == []
        exercise.delete(boot.server_id for boot in boots)
