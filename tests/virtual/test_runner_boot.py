"""The way of a runner, really: from the user data that gpuyard sends to the job's log, in an image that gpuyard built.

cloud-init reads the config drive that Nova's code has made, checks the GPU on the PCI bus, starts the runner, which
registers with a GitHub outside, has a job, and the server switches itself off. Three servers at once, since each has
one CPU and spends most of its time booting; those where it goes wrong have a smaller image, which boots faster.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.runners import console
from gpuyard.runners.console import Console, GpuVerdict, JobProgress
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.user_data import user_data
from gpuyard.site.runner_rules import Enrolment
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.server import ForgeServer
from tests.support.guest_rules import ANY_JOB
from tests.support.on_request import only_by
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.cloud_image import Baked
from tests.virtual_hypervisor.cloud_server import GATEWAY, CloudServer
from tests.virtual_hypervisor.runner import RUNNER, baked
from tests.virtual_hypervisor.server_image import ImageServer

pytestmark = [pytest.mark.virtual, pytest.mark.slow, only_by("machine", "ten minutes")]

REPOSITORY = "demo/science"
TOKEN = "a-token"  # noqa: S105
SECRET_FILES = (
    "/var/lib/cloud/instance/user-data.txt",
    "/var/lib/cloud/instance/cloud-config.txt",
    "/run/cloud-init/instance-data-sensitive.json",
    "/dev/sr0",
)
LOOK_AROUND = f"""\
echo "job: i am $(id -un), in ${{PWD}}"
listener=/proc/$(pgrep -o -f runner.py)
echo "job: cgroup $(sed 's/.*[/]//' /proc/self/cgroup), the listener's $(sed 's/.*[/]//' $listener/cgroup)"
echo "job: oom $(cat /proc/self/oom_score_adj), the listener's $(cat $listener/oom_score_adj)"
for file in /run/gpuyard/jitconfig {" ".join(SECRET_FILES)}; do
    cat $file >/dev/null 2>&1 && echo "job: reads $file"
done
(echo 'gpuyard-runner: gpu failed it is broken' >/dev/ttyS0) 2>/dev/null || echo "job: the console is not mine"
echo 'gpuyard-runner: gpu failed it is broken'
echo "job: of $(systemctl show -P Slice gpuyard-runner), the agent $(systemctl is-active gpuyard-agent)"
[ "$(df --output=size -B512 / | tail -n 1)" -gt $(($(cat /sys/class/block/vda/size) * 3 / 4)) ] &&
    echo "job: the root has grown"
echo "job: $(cloud-init schema --config-file user-data 2>&1 | tail -n 1)"
"""
EAT_ALL_MEMORY = """\
echo "job: eats"
python3 - <<'END'
eaten = []
while True:
    eaten.append(bytearray(b"x" * (1 << 20)))
END
"""


class GitHub:
    """The fake GitHub, and gpuyard's client of it."""

    def __init__(self, server: ForgeServer, folder: Path) -> None:
        self.server = server
        with server.standin.forge.lock:
            server.standin.forge.add_repository(REPOSITORY)
            server.standin.forge.personal_tokens[TOKEN] = "demo"
        (folder / "token").write_text(TOKEN)
        stated = {"repository": REPOSITORY, "url": server.url, "token_file": str(folder / "token")}
        self.client = GitHubClient(Enrolment.model_validate(stated))

    def push(self, name: str) -> None:
        """A job that only this runner can have."""
        self.server.standin.forge.push(REPOSITORY, [JobOrder((name,), name=f"test of {name}")])

    def job(self, name: str) -> tuple[str, str]:
        """Conclusion, and who had it."""
        with self.server.standin.forge.lock:
            (forge_job,) = [job for job in self.server.standin.forge.jobs.values() if job.order.labels == (name,)]
            return forge_job.conclusion, forge_job.runner_name


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitHub]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ForgeServer(port, runner_url=f"http://{GATEWAY}:{port}") as server:
        github = GitHub(server, tmp_path_factory.mktemp("github"))
        yield github
        github.client.close()


@pytest.fixture(scope="module")
def servers(github: GitHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[CloudServer]]]:
    """By name: servers that have been on, each with a job that waits for it."""
    build = testing.prepared()
    small, whole = testing.cloud(build), testing.server_image().raw(tmp_path_factory.mktemp("image"))
    kinds: dict[str, tuple[type[CloudServer], Path, Baked]] = {
        "runner-good": (ImageServer, whole, baked(LOOK_AROUND)),
        "runner-greedy": (CloudServer, small, RUNNER | baked(EAT_ALL_MEMORY)),
        "runner-bare": (CloudServer, small, RUNNER | baked(LOOK_AROUND, driver="")),
    }

    def boot(name: str, folder: Path) -> CloudServer:
        cloud_config = user_data(name, github.client.jit(name, (name,), REPOSITORY).encoded, 1, ANY_JOB)
        drive = testing.drive(folder, name, cloud_config, {"gpuyard_runner": name})
        extra_files = {
            "opt/actions-runner/user-data": (0o644, cloud_config.encode())
        }  # for cloud-init's own opinion of it
        kind, image, has = kinds[name]
        server = kind(build, image, folder, drive, {**has, **extra_files})
        server.boot()
        if name == "runner-bare":
            server.boot()
        server.disk.unlink()
        return server

    for name in kinds:
        github.push(name)
    with ThreadPoolExecutor(len(kinds)) as pool:
        yield {name: pool.submit(boot, name, tmp_path_factory.mktemp(name)) for name in kinds}


def test_a_job_runs_on_a_server_with_a_good_gpu(servers: dict[str, Future[CloudServer]], github: GitHub) -> None:
    server = servers["runner-good"].result()
    outcome = console.read(server.console)
    assert github.job("runner-good") == ("success", "runner-good")
    assert github.client.runner_named("runner-good", REPOSITORY) is None, "it is registered for one job"
    assert (outcome.gpu, outcome.gpu_words) == (GpuVerdict.OK, "Tesla V100-PCIE-16GB at 00000000:01:00.0")
    assert (outcome.online, outcome.job, outcome.result, outcome.failed, outcome.over) == (
        True, JobProgress.FINISHED, "Succeeded", "", True,
    )  # fmt: skip
    assert "Job test of runner-good completed with result: Succeeded" in outcome.log
    assert "INFO Listener] started as runner" in outcome.log, "of the runner's own files too"
    messages = [line.removeprefix("job: ") for line in outcome.log.splitlines() if line.startswith("job: ")]
    assert messages == [
        "i am runner, in /opt/actions-runner",
        "cgroup job, the listener's runner",
        "oom 500, the listener's -500",
        "the console is not mine",
        "of gpuyard.slice, the agent active",
        "the root has grown",
        "Valid cloud-config: user-data",
    ], "and none of the files with the secret can be read"


def test_a_job_that_eats_all_memory_fails_and_its_runner_does_not(
    servers: dict[str, Future[CloudServer]], github: GitHub
) -> None:
    server = servers["runner-greedy"].result()
    outcome = console.read(server.console)
    assert github.job("runner-greedy") == ("failure", "runner-greedy")
    assert (outcome.job, outcome.result, outcome.over) == (JobProgress.FINISHED, "Failed", True)
    assert "Memory cgroup out of memory: Killed process" in server.console
    assert "job: eats" in outcome.log


def test_a_server_whose_gpu_has_no_driver_never_has_a_job(
    servers: dict[str, Future[CloudServer]], github: GitHub
) -> None:
    server = servers["runner-bare"].result()
    first, second = server.said
    outcome = console.read(first)
    assert outcome.gpu is GpuVerdict.FAILED
    assert outcome.gpu_words == (
        "1 NVIDIA GPUs are on the PCI bus, and the image has no driver for them: there is no nvidia-smi"
    )
    assert (outcome.online, outcome.over) == (False, True)
    assert github.job("runner-bare") == ("", "")
    again = console.read(second)
    assert again == Console(failed="the machine was started a second time", log=again.log), "nor when started again"
