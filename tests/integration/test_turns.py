"""On PostgreSQL a turn is the session's: when that ends, the turn is over, and whoever had it is not taken for the one
that has it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from gpuyard.ledger.store import Store
from tests.support.postgres import server


def test_who_has_lost_its_session_has_lost_its_turn_even_if_nobody_else_wants_it(tmp_path: Path) -> None:
    with server(tmp_path) as postgres:
        url = postgres.database()
        dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(Store.open(url)) as store, closing(Store.open(url)) as other:
            assert store.take_turn("bookings")
            assert store.has_turn("bookings")
            with psycopg.connect(dsn, autocommit=True) as admin:
                admin.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
            assert not store.has_turn("bookings"), "another one may have had it meanwhile"
            assert not store.has_turn("bookings")
            assert other.take_turn("bookings")
            assert (other.has_turn("bookings"), store.take_turn("bookings")) == (True, False)
