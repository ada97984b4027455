"""The tables of runners. Times are whole seconds since 1970 (UTC)."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, Table, Text

from gpuyard.database.columns import RISING, flag, maybe_time, new_tables, number, text, time
from gpuyard.database.schema_modules import SchemaModule

TABLES = new_tables()
SCHEMA_MODULE = SchemaModule("runners", Path(__file__).parent / "migrations", TABLES, "runners_version")

JOBS = Table(
    "jobs",
    TABLES,
    Column("id", Text, primary_key=True),
    text("repository"),
    text("labels"),  # JSON
    text("state"),
    time("queued"),
    text("scope"),
    text("scale_set"),
    number("run_id"),
    number("run_attempt"),
    text("workflow"),
    text("name"),
    text("event"),
    text("actor"),
    text("trust"),  # empty: not known
    text("association"),
    text("head_branch"),
    text("head_sha"),
    text("html_url"),
    text("wanted"),  # JSON; empty: not known
    text("runner"),
    text("conclusion"),
    text("reason"),
    number("tries"),
    maybe_time("not_before"),
    maybe_time("started"),
    maybe_time("completed"),
    maybe_time("changed"),
    Index("jobs_state", "state", "queued"),
    Index("jobs_repository", "repository", "queued"),
    Index("jobs_queued", "queued"),
    Index("jobs_started", "started"),
)

RUNNERS = Table(
    "runners",
    TABLES,
    Column("name", Text, primary_key=True),
    text("state"),
    text("scope"),
    text("repository"),
    text("labels"),  # JSON
    text("wanted"),  # JSON
    text("choice"),  # JSON
    text("kind"),  # of what is wanted; the next two are of the choice
    text("pool"),
    number("gpu_count"),
    time("created"),
    time("changed"),
    text("for_repository"),
    text("for_job"),
    text("job"),
    text("scale_set"),
    text("lease"),
    text("server_id"),
    number("github_id"),
    maybe_time("active"),
    maybe_time("online"),
    maybe_time("busy"),
    maybe_time("ended"),
    maybe_time("until"),
    text("cause"),  # empty: none yet
    text("reason"),
    text("gpus"),  # JSON
    Index("runners_state", "state", "created"),
    Index("runners_ended", "ended"),
    Index("runners_job", "job"),
)

EVENTS = Table(
    "runner_events",
    TABLES,
    Column("id", RISING, primary_key=True, autoincrement=True),
    time("at"),
    text("runner"),
    text("job"),
    text("text"),
    Index("runner_events_runner", "runner", "id"),
    Index("runner_events_job", "job", "id"),
    Index("runner_events_at", "at"),
    sqlite_autoincrement=True,
)

LOGS = Table(
    "runner_logs",
    TABLES,
    Column("runner", Text, primary_key=True),
    time("at"),
    text("text"),
    Index("runner_logs_at", "at"),
)

DELIVERIES = Table(
    "hook_deliveries",
    TABLES,
    Column("scope", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    text("event"),
    time("received"),
    Column("body", LargeBinary, nullable=False),  # empty once it is done
    Column("tries", Integer, nullable=False),
    Column("next_try", BigInteger, nullable=True),  # none: it is done, or given up
    text("outcome"),  # of one that is done
    text("error"),  # of the last try, where it failed
    Index("hook_deliveries_next", "next_try"),
    Index("hook_deliveries_received", "received"),
)

SETS = Table(
    "scale_sets",
    TABLES,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    number("id"),
    number("last_message"),
    number("assigned"),
    maybe_time("seen"),
    text("error"),
    Column("waiting", BigInteger, nullable=False, server_default="0"),  # came later
)

REPOSITORIES = Table(
    "repositories",
    TABLES,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),  # in lower case
    flag("private"),
    time("seen"),
)

VALUES = Table(
    "runner_values",
    TABLES,
    Column("key", Text, primary_key=True),
    text("value"),
)
