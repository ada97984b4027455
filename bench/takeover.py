"""Three portals on one PostgreSQL, on a lab of its own: how soon another one keeps bookings when the leader is gone.

python -m bench.takeover

From the kill until another portal has the turn, and until a booking that begins at the moment of the kill has let its
owner in: that is, the limit of its project is in Keystone.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep

import psycopg
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import RunningLab
from tests.support.portal_processes import Portal, leader_of, portals, until
from tests.support.postgres import Server, server

from bench.lab import running_lab
from bench.table import Measured, finish, show, sized
from gpuyard.openstack.api import connect
from gpuyard_lab.clients import ADMIN_CLOUD

PORTALS, KILLS, STOPS, REST_S = sized((3, 20, 5, 30), (2, 1, 1, 2))
LIMIT_S = 10
RULES = {"must_book": True, "grace": "30 min", "dry_run": False, "most_active": 99}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as name:
        folder, database = Path(name), Path(name) / "postgres"
        database.mkdir()
        with running_lab() as (lab, _), server(database, durable=True) as postgres:
            measure(lab, postgres, folder)


def measure(lab: RunningLab, postgres: Server, folder: Path) -> None:
    url = postgres.database("site")
    operator = connect(ADMIN_CLOUD, lab.status.clouds_file)
    booked = open_booked_lab(lab, operator, folder, RULES, {}, database=url)
    try:
        with portals(PORTALS, folder, lab.status.clouds_file, url) as serving:
            leader_of(serving)
            load = transactions(postgres)
            killed = [taken_over(booked, serving, signal.SIGKILL) for _ in range(KILLS)]
            stopped = [taken_over(booked, serving, signal.SIGSTOP) for _ in range(STOPS)]
        show(
            f"The leader of {PORTALS} portals is gone",
            [
                Measured("kill -9, until another has the turn", "s", [turn for turn, _ in killed], LIMIT_S),
                Measured("kill -9, until a booking lets in", "s", [limit for _, limit in killed], LIMIT_S),
                Measured("the longest of these", "s", [max(limit for _, limit in killed)], LIMIT_S),
                Measured("kill -STOP, until another has the turn", "s", [turn for turn, _ in stopped], LIMIT_S),
                Measured("kill -STOP, until a booking lets in", "s", [limit for _, limit in stopped]),
            ],
        )
        show(f"{PORTALS} portals at rest", [Measured("transactions of PostgreSQL, a second", "", [load])])
    finally:
        booked.clear()


def transactions(postgres: Server) -> float:
    """A second, of all that the portals do."""
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:

        def done() -> int:
            query = "select sum(xact_commit + xact_rollback) from pg_stat_database where datname like 'site%'"
            (row,) = connection.execute(query).fetchall()
            return int(row[0])

        before = done()
        sleep(REST_S)
        return (done() - before) / REST_S


def taken_over(booked: BookedLab, serving: Sequence[Portal], how: signal.Signals) -> tuple[float, float]:
    """Seconds until the turn is taken, and until the booking lets in. All are well at the end."""
    leader = leader_of(serving)
    others = [portal for portal in serving if portal is not leader]
    sleep(random.uniform(0, 5))
    booking = booked.book("ada", start=0)
    leader.signal(how)
    began = monotonic()
    turn = seconds(began, lambda: any(portal.keeps() for portal in others))
    let_in = seconds(began, lambda: booked.limits() == {"physics": 1})
    leader.signal(signal.SIGCONT) if how is signal.SIGSTOP else leader.start()
    booked.ledger.end(booking.id, booked.people["ada"])
    until(lambda: booked.limits() == {} and all(portal.is_ready() for portal in serving))
    return turn, let_in


def seconds(began: float, true: Callable[[], bool]) -> float:
    until(true, 0.02)
    return monotonic() - began


if __name__ == "__main__":
    main()
    sys.exit(finish())
