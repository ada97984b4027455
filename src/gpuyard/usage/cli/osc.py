"""``openstack gpu usage report|export|budget``."""

from __future__ import annotations

import argparse

from osc_lib.command import command

from gpuyard.console.osc import GpuCommand, Table
from gpuyard.usage.cli.usage_rows import (
    BUDGETS,
    BY,
    INTERVALS,
    budget_row,
    days_of,
    exported,
    interval_row,
    usage_columns,
    usage_row,
)


def _add_span(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Of which days, and of whose use."""
    parser.add_argument(
        "--month", metavar="<month>", default="", help="As in 2026-11; this month without --from and --to"
    )
    parser.add_argument("--from", metavar="<day>", dest="first", default="", help="The first day, as in 2026-11-23")
    parser.add_argument("--to", metavar="<day>", dest="end", default="", help="The first day not in it; tomorrow")
    for name in ("project", "user", "pool", "host"):
        parser.add_argument(f"--{name}", metavar=f"<{name}>", default="", help=f"Only of this {name}")
    parser.add_argument("--repository", metavar="<owner/name>", default="", help="Only of jobs of this repository")
    return parser


def _asked(parsed_args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Days, and whose. Raises UsageError."""
    days = days_of(parsed_args.month, parsed_args.first, parsed_args.end)
    return days, {name: getattr(parsed_args, name) for name in ("project", "user", "pool", "host", "repository")}


class ReportUsage(GpuCommand, command.Lister):
    """Report what GPUs were used for, in GPU-hours, and what that costs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _add_span(super().get_parser(prog_name))
        parser.add_argument(
            "--by", choices=BY, action="append", help="What it is by, in this order; repeatable. By project"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        (days, whose), by = _asked(parsed_args), parsed_args.by or ["project"]
        document, columns = self.client().usage({"by": by, **whose, **days}), usage_columns(by)
        rows = [usage_row(line, by) for line in document["lines"]]
        return columns, [[row[name] for name in columns] for row in rows]


class ExportUsage(GpuCommand, command.Lister):
    """Export who had which GPU from when to when: the intervals that reports are made of, cut at midnight."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _add_span(self.add_zone(super().get_parser(prog_name)))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        days, whose = _asked(parsed_args)
        zone = self.zone(parsed_args)
        rows = [interval_row(line, zone) for line in exported(self.client(), days, whose)]
        return INTERVALS, [[row[name] for name in INTERVALS] for row in rows]


class ListBudgets(GpuCommand, command.Lister):
    """List what is left of the budgets of your projects, in GPU-hours; for admins of all."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return self.add_zone(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        rows = [budget_row(line, zone) for line in self.client().budgets()]
        return BUDGETS, [[row[name] for name in BUDGETS] for row in rows]
