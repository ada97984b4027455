"""What is read of a runner's console: our lines, and nothing worse of anybody else's."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuyard.runners.console import MOST_LOG, MOST_WORDS, Console, GpuVerdict, JobProgress, read

BOOT = "[    0.000000] Linux version 6.1.0\nCloud-init v. 24.1 running 'modules:final'\n"
GPU = "\ngpuyard-runner: gpu ok Tesla V100-PCIE-16GB at 00000000:05:00.0\n"
DONE = """
gpuyard-runner: online

gpuyard-runner: job started build (3.12)
[   91.5] a line of the kernel

gpuyard-runner: job finished Succeeded

gpuyard-runner: over

gpuyard-runner: log begins
| 2026-11-22 10:00:00Z: Listening for Jobs
| 2026-11-22 10:00:03Z: Job build (3.12) completed with result: Succeeded
gpuyard-runner: log ends
gpuyard-runner: gpu ok Tesla V100-PCIE-16GB at 00000000:05:00.0
gpuyard-runner: online
gpuyard-runner: job started build (3.12)
gpuyard-runner: job finished Succeeded
gpuyard-runner: over
"""


def test_a_whole_life() -> None:
    assert read(BOOT) == Console(log=BOOT.strip())
    ready = read(BOOT + GPU)
    assert (ready.gpu, ready.gpu_words) == (GpuVerdict.OK, "Tesla V100-PCIE-16GB at 00000000:05:00.0")
    assert not ready.online
    done = read((BOOT + GPU + DONE).replace("\n", "\r\n"))
    assert done == Console(
        gpu=GpuVerdict.OK,
        gpu_words="Tesla V100-PCIE-16GB at 00000000:05:00.0",
        online=True,
        job=JobProgress.FINISHED,
        result="Succeeded",
        over=True,
        log="2026-11-22 10:00:00Z: Listening for Jobs\n"
        "2026-11-22 10:00:03Z: Job build (3.12) completed with result: Succeeded",
    )


def test_what_the_kernel_wrote_into_a_line_is_repaired_by_the_repetition() -> None:
    torn = DONE.replace("job finished Succeeded", "job fin[   99.1] oops ished", 1)
    assert read(BOOT + GPU + torn).job is JobProgress.FINISHED


def test_what_has_scrolled_away_is_in_the_repetition() -> None:
    end = DONE[DONE.index("gpuyard-runner: log begins") :]
    console = read("x" * 200_000 + "\n" + end)
    assert (console.gpu, console.online, console.job, console.over) == (GpuVerdict.OK, True, JobProgress.FINISHED, True)


def test_a_failed_check_and_a_missing_runner_have_their_reasons() -> None:
    console = read("gpuyard-runner: gpu failed nvidia-smi has not answered in 60 s\n")
    assert (console.gpu, console.gpu_words) == (GpuVerdict.FAILED, "nvidia-smi has not answered in 60 s")
    assert read("gpuyard-runner: failed the image has no runner\n").failed == "the image has no runner"


@pytest.mark.parametrize(
    "forged",
    [
        "gpuyard-runner: gpu failed it is broken",
        "| gpuyard-runner: gpu failed it is broken",
        "echo gpuyard-runner: gpu failed it is broken",
    ],
)
def test_a_job_cannot_call_its_gpu_broken(forged: str) -> None:
    assert read(f"{GPU}gpuyard-runner: online\n{forged}\n").gpu is GpuVerdict.OK
    assert read(f"gpuyard-runner: online\n{forged}\n").gpu is GpuVerdict.UNKNOWN, "nor when ours has scrolled away"


def test_a_log_has_no_escapes() -> None:
    log = "gpuyard-runner: log begins\n| \x1b[31mred\x1b[0m\x07 \u202eabc\n"
    assert read(log).log == "red   abc"


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[|\n\r: "))))
@example("gpuyard-runner: ")
@example("gpuyard-runner: gpu\ngpuyard-runner: gpu ok\ngpuyard-runner: job\ngpuyard-runner: failed")
def test_any_text_can_be_read(text: str) -> None:
    console = read("gpuyard-runner: " + text)
    assert len(console.gpu_words) <= MOST_WORDS
    assert len(console.failed) <= MOST_WORDS
    for shown in (console.log.replace("\n", ""), console.gpu_words, console.failed, console.result):
        assert shown.isprintable()


@pytest.mark.parametrize("piece", ["gpuyard-runner: ", "\x1b[", "\x1b[0;", "gpuyard-runner: log begins\n| ", "\n", "é"])
def test_a_large_text_takes_no_time(piece: str) -> None:
    started = perf_counter()
    console = read(piece * (8_000_000 // len(piece)))
    assert perf_counter() - started < 1
    assert len(console.log) <= MOST_LOG
