"""``python -m tests.support.hurried``: gpuyard itself, with shorter waits for what others have lost on the way. A storm
of a few dozen jobs is over in minutes then; nothing else differs."""

from __future__ import annotations

from datetime import timedelta

from gpuyard.cli.main import run
from gpuyard.runners import progress
from gpuyard.runners.controllers import runner_loops, runner_recovery

if __name__ == "__main__":
    runner_loops.RECOVERY_PERIOD = 10.0
    runner_loops.GITHUB_PERIOD = 10.0
    runner_recovery.SILENT = timedelta(seconds=40)
    runner_recovery.SOON = timedelta(seconds=10)
    progress.GRACE = timedelta(seconds=20)
    run()
