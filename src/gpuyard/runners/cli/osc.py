"""``openstack gpu runner list`` and ``openstack gpu runner job list|show``."""

from __future__ import annotations

import argparse

from osc_lib.command import command

from gpuyard.console.osc import GpuCommand, Table
from gpuyard.runners.cli.job_lookup import find_job
from gpuyard.runners.cli.runner_rows import EVENTS, JOBS, RECENT, RUNNERS, event_row, fields, listed_jobs, runner_row


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help=f"Also the last {RECENT} that are over")


class ListRunners(GpuCommand, command.Lister):
    """List runners for GitHub jobs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        _add_all(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        rows = self.client().runners(RECENT if parsed_args.all else 0)["runners"]
        return RUNNERS, [[runner_row(row, zone)[name] for name in RUNNERS] for row in rows]


class ListJobs(GpuCommand, command.Lister):
    """List GitHub jobs: those that run, then those that wait in the order of their turns, and why they wait."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        _add_all(parser)
        parser.add_argument("--repository", metavar="<owner/name>", default="", help="Only of this repository")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        rows = listed_jobs(self.client(), parsed_args.repository, parsed_args.all, self.zone(parsed_args))
        return JOBS, [[row[name] for name in JOBS] for row in rows]


class ShowJob(GpuCommand, command.ShowOne):
    """Show a GitHub job; its field 'events' has what happened to it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument(
            "job",
            metavar="<job>",
            help="GitHub's number or address of the job or its run, or the job's id here: github.com/123456",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        row = find_job(self.client(), parsed_args.job)
        events = [event_row(line, zone) for line in row["events"]]
        lines = "\n".join("  ".join(str(line[name]) for name in EVENTS if line[name]) for line in events)
        record = {**fields(row, zone), "events": lines}
        return tuple(record), list(record.values())
