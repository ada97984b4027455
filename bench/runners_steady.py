"""The loops of runners at rest: what a thousand runners at work cost, and how soon a webhook becomes a request to Nova.

python -m bench.runners_steady

GitHub and Nova are stand-ins in this process (their work is counted as ours; what HTTP costs is not), the leases a
list: no example site has a thousand GPUs. The rest is the code that serves.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter, process_time

from tests.support.simulated_runners import SimServer, SimulatedRunners, cirun_repository, hook

from bench.table import Measured, finish, show, sized
from gpuyard.bookings.records import Query
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState
from gpuyard.openstack.servers import ServerWish
from gpuyard.runners.records import Job, JobState, Runner, RunnerState
from gpuyard_lab.github.records import ForgeRunner, JobOrder

RUNNERS, MINUTES, HOOKS = sized((1_000, 5, 4), (20, 1, 1))
CORE_LIMIT, HOOK_LIMIT_MS, CALLS_LIMIT = 5.0, 1_000, 5_000


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        world = SimulatedRunners(Path(folder))
        cirun_repository(world)
        hook(world)
        fill(world)
        steady(world)
        latency(world)


def fill(world: SimulatedRunners) -> None:
    """A thousand jobs that run for hours."""
    world.until(lambda: bool(world.github.forge.sets))
    now, spec = world.clock(), world.runners.site.set_wanted("gpuyard-v100")
    spec = replace(spec, longest=timedelta(hours=20))
    leases, runners, jobs = [], [], []
    for number in range(RUNNERS):
        name, id = world.runners.site.new_name("v100"), f"github.test/{10_000 + number}"
        end = now + timedelta(hours=20)
        runners.append(
            Runner(
                name,
                RunnerState.BUSY,
                "github.test/demo",
                "",
                ("gpuyard-v100",),
                spec,
                spec.choices[0],
                now,
                now,
                "demo/science",
                id,
                id,
                "",
                f"lease-{number}",
                f"busy-{number}",
                50_000 + number,
                now,
                now,
                now,
                None,
                end,
            )
        )
        jobs.append(
            Job(
                id,
                "demo/science",
                ("cirun-gpu",),
                JobState.RUNNING,
                now,
                "github.test/demo",
                runner=name,
                spec=spec,
                started=now,
                changed=now,
            )
        )
        ask = Ask("v100", now, end + timedelta(minutes=10))
        leases.append(
            Booking(f"lease-{number}", BookingKind.RUNNER, ask, BookingState.ACTIVE, "", "gpuyard", "p", "p", now, now,
                    server=name)
        )  # fmt: skip
        server = SimServer(f"busy-{number}", ServerWish(name, "gpu_tiny", "tiny", ""), now, 0, "ACTIVE", lives=False)
        world.nova.servers[server.id] = server
        world.github.forge.runners[50_000 + number] = ForgeRunner(
            50_000 + number, name, "demo", "", ("cirun-gpu",), 1, f"s{number}", now, 0, f"t{number}", now, now,
        )  # fmt: skip
    world.nova.gpus = {pool: count + RUNNERS for pool, count in world.nova.gpus.items()}
    world.store.put(jobs, runners)
    own = world.ledger.leases.current
    world.ledger.leases.current = lambda: [*leases, *own()]  # type: ignore[method-assign]


def steady(world: SimulatedRunners) -> None:
    client = next(iter(world.runners.ports.clients.values()))
    world.step()
    cores = []
    before = client.usage()
    for _ in range(MINUTES):
        began = process_time()
        for _ in range(12):
            world.step()
        cores.append((process_time() - began) / 60 * 100)
    after = client.usage()
    counted = after.calls - before.calls - (after.unchanged - before.unchanged)
    assert len(world.store.runners()) == RUNNERS
    show(
        f"{RUNNERS} runners at work",
        [
            Measured("of a core", "%", cores, CORE_LIMIT),
            Measured("calls of GitHub's that count, an hour", "", [counted * 60 / MINUTES], CALLS_LIMIT),
        ],
    )


def latency(world: SimulatedRunners) -> None:
    """From the kept webhook to Nova's POST, with the thousand beside it."""
    times = []
    for _ in range(HOOKS):
        before = len(world.nova.posts)
        world.github.forge.push("demo/science", [JobOrder(("cirun-gpu",), 10_000)])
        began = perf_counter()
        world._deliver()
        world.runners.take_in()
        world.runners.controller.run()
        if len(world.nova.posts) > before:
            times.append((perf_counter() - began) * 1000)
    assert times, world.ledger.find(Query())
    show("one job", [Measured("webhook to Nova's POST", "ms", times, HOOK_LIMIT_MS)])


if __name__ == "__main__":
    main()
    sys.exit(finish())
