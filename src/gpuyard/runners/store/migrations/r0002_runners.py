"""The first tables: jobs, runners, their events and logs, webhooks, scale sets, which repositories are private."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpuyard.database.columns import RISING, flag, maybe_time, number, text

revision = "0002"
down_revision = None


def upgrade() -> None:
    jobs()
    runners()
    history()
    github()


def jobs() -> None:
    op.create_table(
        "jobs",
        *map(text, ("id", "repository", "labels", "state")),
        number("queued"),
        *map(text, ("scope", "scale_set")),
        *map(number, ("run_id", "run_attempt")),
        *map(text, ("workflow", "name", "event", "actor", "trust", "association", "head_branch", "head_sha")),
        *map(text, ("html_url", "wanted", "runner", "conclusion", "reason")),
        number("tries"),
        *map(maybe_time, ("not_before", "started", "completed", "changed")),
        sa.PrimaryKeyConstraint("id", name="jobs_pkey"),
    )
    op.create_index("jobs_state", "jobs", ["state", "queued"])
    op.create_index("jobs_repository", "jobs", ["repository", "queued"])
    op.create_index("jobs_queued", "jobs", ["queued"])
    op.create_index("jobs_started", "jobs", ["started"])


def runners() -> None:
    op.create_table(
        "runners",
        *map(text, ("name", "state", "scope", "repository", "labels", "wanted", "choice", "kind", "pool")),
        *map(number, ("gpu_count", "created", "changed")),
        *map(text, ("for_repository", "for_job", "job", "scale_set", "lease", "server_id")),
        number("github_id"),
        *map(maybe_time, ("active", "online", "busy", "ended", "until")),
        *map(text, ("cause", "reason", "gpus")),
        sa.PrimaryKeyConstraint("name", name="runners_pkey"),
    )
    op.create_index("runners_state", "runners", ["state", "created"])
    op.create_index("runners_ended", "runners", ["ended"])
    op.create_index("runners_job", "runners", ["job"])


def history() -> None:
    op.create_table(
        "runner_events",
        sa.Column("id", RISING, autoincrement=True, nullable=False),
        number("at"),
        *map(text, ("runner", "job", "text")),
        sa.PrimaryKeyConstraint("id", name="runner_events_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index("runner_events_runner", "runner_events", ["runner", "id"])
    op.create_index("runner_events_job", "runner_events", ["job", "id"])
    op.create_index("runner_events_at", "runner_events", ["at"])
    op.create_table(
        "runner_logs",
        text("runner"),
        number("at"),
        text("text"),
        sa.PrimaryKeyConstraint("runner", name="runner_logs_pkey"),
    )
    op.create_index("runner_logs_at", "runner_logs", ["at"])


def github() -> None:
    op.create_table(
        "hook_deliveries",
        *map(text, ("scope", "id", "event")),
        number("received"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        maybe_time("next_try"),
        *map(text, ("outcome", "error")),
        sa.PrimaryKeyConstraint("scope", "id", name="hook_deliveries_pkey"),
    )
    op.create_index("hook_deliveries_next", "hook_deliveries", ["next_try"])
    op.create_index("hook_deliveries_received", "hook_deliveries", ["received"])
    op.create_table(
        "scale_sets",
        *map(text, ("scope", "name")),
        *map(number, ("id", "last_message", "assigned")),
        maybe_time("seen"),
        text("error"),
        sa.PrimaryKeyConstraint("scope", "name", name="scale_sets_pkey"),
    )
    op.create_table(
        "repositories",
        *map(text, ("scope", "name")),
        flag("private"),
        number("seen"),
        sa.PrimaryKeyConstraint("scope", "name", name="repositories_pkey"),
    )
    op.create_table(
        "runner_values",
        *map(text, ("key", "value")),
        sa.PrimaryKeyConstraint("key", name="runner_values_pkey"),
    )
