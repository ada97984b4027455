"""``openstack gpu health list|show``, ``gpu report|quarantine|accept`` and ``gpu repair list|start|note|...``."""

from __future__ import annotations

import argparse

from osc_lib.command import command

from gpuyard.bookings.cli.asks import lasting_minutes
from gpuyard.console.osc import GpuCommand, Table
from gpuyard.health.cli.health_rows import (
    HEALTH,
    RECORD,
    REPAIRS,
    TRIES,
    health_fields,
    health_row,
    loan_lines,
    record_row,
    repair_row,
    try_row,
)
from gpuyard.health.records import HealthState


class ListHealth(GpuCommand, command.Lister):
    """List how GPUs are: fine, in use, out of use, and since when and why."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument("--pool", metavar="<pool>", help="Only GPUs of this pool")
        parser.add_argument("--host", metavar="<host>", help="Only GPUs of this host")
        parser.add_argument("--state", choices=[state.value for state in HealthState], help="Only GPUs in this state")
        parser.add_argument("--card", metavar="<serial>", help="Only where this card is")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args, zone = parsed_args, self.zone(parsed_args)
        rows = self.client().health(pool=args.pool, host=args.host, state=args.state, card=args.card)
        return HEALTH, [[health_row(row, zone)[name] for name in HEALTH] for row in rows]


class _OneGpu(GpuCommand, command.ShowOne):
    """Commands about one GPU."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument("gpu", metavar="<host/address>", help="The GPU")
        return parser


class ShowHealth(_OneGpu):
    """Show how a GPU is; its field 'events' has what happened to it, the newest first."""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        response = self.client().gpu_health(parsed_args.gpu)
        events = [record_row(row, zone) for row in response["events"]]
        lines = "\n".join("  ".join(str(line[name]) for name in RECORD if line[name]) for line in events)
        shown = {**health_fields(response["gpu"], zone), "events": lines}
        return tuple(shown), list(shown.values())


class ReportFault(_OneGpu):
    """Report a fault of a GPU that one has, or had in the last week."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("words", metavar="<words>", help="What is wrong with it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        shown = health_fields(self.client().report(parsed_args.gpu, parsed_args.words), self.zone(parsed_args))
        return tuple(shown), list(shown.values())


class QuarantineGpu(_OneGpu):
    """Take a GPU out of use until somebody has looked at it (admin only)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--comment", metavar="<text>", required=True, help="Why; kept in its record")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        row = self.client().quarantine(parsed_args.gpu, parsed_args.comment)
        shown = health_fields(row, self.zone(parsed_args))
        return tuple(shown), list(shown.values())


class ListRepairs(GpuCommand, command.Lister):
    """List what is out of use: since when, why, who looks after it and what was tried last (admin only)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return self.add_zone(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        rows = self.client().repairs()["out"]
        return REPAIRS, [[repair_row(row, zone)[name] for name in REPAIRS] for row in rows]


class _Step(_OneGpu):
    """A step of a repair, which is the command's last word."""

    step = ""
    needs_comment = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        comment = "What and why; kept in its record"
        parser.add_argument("--comment", metavar="<text>", default="", required=self.needs_comment, help=comment)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        row = self.client().repair(parsed_args.gpu, self.step, parsed_args.comment)
        shown = health_fields(row, self.zone(parsed_args))
        return tuple(shown), list(shown.values())


class StartRepair(_Step):
    """Look after a GPU that is quarantined, in place of who does (admin only)."""

    step, needs_comment = "start", False


class NoteRepair(_Step):
    """Write down what was seen or tried (admin only)."""

    step = "note"


class EndRepair(_Step):
    """Say that a GPU is well: it goes back to use, after its acceptance where the site needs one (admin only)."""

    step = "done"


class AbandonRepair(_Step):
    """Look after a GPU no more; it stays out of use (admin only)."""

    step = "abandon"


class ReleaseGpu(_Step):
    """Give a GPU back to use that was not repaired (admin only)."""

    step = "release"


class ClearBaseline(_Step):
    """Forget what a GPU was accepted with: it is judged as a new one (admin only)."""

    step = "clear-baseline"


class LendGpu(_OneGpu):
    """Let the site's project for repairs start a server on a GPU that is out of use; its field 'next' says how (admin
    only)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--for", metavar="<duration>", dest="lasting", default="2h", help="How long; 2h")
        parser.add_argument("--comment", metavar="<text>", default="", help="What and why; kept in its record")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        lent = self.client().lend_gpu(parsed_args.gpu, lasting_minutes(parsed_args.lasting, zone), parsed_args.comment)
        shown = {**health_fields(lent["gpu"], zone), "next": "\n".join(loan_lines(lent, parsed_args.gpu, zone))}
        return tuple(shown), list(shown.values())


class ReturnGpu(_Step):
    """Lend a GPU no more; it stays out of use (admin only)."""

    step, needs_comment = "return", False


class AcceptGpus(GpuCommand, command.Lister):
    """Have GPUs accepted: a server is started on each, and checks them (admin only)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument(
            "targets", metavar="<target>", nargs="*",
            help="Host/address, a host or a pool; all GPUs that are to be accepted when left out",
        )  # fmt: skip
        parser.add_argument(
            "--fresh", action="store_true", help="What they show is their baseline, whatever was before"
        )
        parser.add_argument("--no-canary", action="store_true", help="All hosts at once, and not one of them first")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        response, zone = (
            self.client().accept(parsed_args.targets, canary=not parsed_args.no_canary, fresh=parsed_args.fresh),
            self.zone(parsed_args),
        )
        for skipped in response["left_out"]:
            self.app.stderr.write(f"not tried: GPU {skipped['gpu']} {skipped['reason']}\n")
        return TRIES, [[try_row(row, zone)[name] for name in TRIES] for row in response["tries"]]
