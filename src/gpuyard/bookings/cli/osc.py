"""``openstack gpu booking create|check|list|show|set|extend|cancel|end|accept|open|approve|decline``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from osc_lib.command import command

from gpuyard.bookings.cli.asks import (
    BookingArguments,
    ask_body,
    edit_body,
    extend_body,
    list_query,
    refusal,
    suggestions,
)
from gpuyard.client.errors import ApiRefusedError
from gpuyard.client.rows import BOOKINGS, booking_fields, booking_row
from gpuyard.console.osc import GpuCommand, Table
from gpuyard.model.booking import BookingState
from gpuyard.model.errors import BlockedError

PROGRAM = "openstack gpu booking create"


def _shown(row: Mapping[str, Any], zone: ZoneInfo, use: Mapping[str, Any] | None = None) -> Table:
    """A booking under the names that the API has for its fields, as `openstack ... show` does."""
    cells = booking_fields(row, zone, use)
    return tuple(cells), list(cells.values())


def _several(rows: Sequence[Mapping[str, Any]], zone: ZoneInfo) -> Table:
    """A recurring booking."""
    cells = [booking_row(row, zone) for row in rows]
    return ("series", "ids", "starts"), [
        cells[0]["Series"],
        "\n".join(str(row["ID"]) for row in cells),
        "\n".join(str(row["Start"]) for row in cells),
    ]


def _add_ask(parser: argparse.ArgumentParser) -> None:
    time = "'tomorrow 9:00', 'friday', '17:00', '+4h', 'now', or '2026-12-01 14:00', also with an offset"
    parser.add_argument("--pool", metavar="<pool>", required=True, help="The pool: which model of GPU")
    parser.add_argument("--start", metavar="<time>", default="now", help=f"{time} from now (default: now)")
    parser.add_argument("--end", metavar="<time>", required=True, help=f"{time} from the start")
    parser.add_argument("--gpus", metavar="<number>", type=int, default=1, help="How many (default: 1)")
    parser.add_argument("--same-group", action="store_true", help="One whole IOMMU group, which has this many GPUs")
    parser.add_argument("--same-host", action="store_true", help="All on one host")
    parser.add_argument("--gpu", metavar="<host/address>", default="", help="This GPU; any of the pool otherwise")


def _words(args: argparse.Namespace) -> BookingArguments:
    return BookingArguments(
        **{
            name: value
            for name, value in vars(args).items()
            if name in BookingArguments.__dataclass_fields__ and value is not None
        }
    )


class CreateBooking(GpuCommand, command.ShowOne):
    """Book GPUs of a pool. A refusal says the reasons, and what would be possible."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        _add_ask(parser)
        parser.add_argument("--comment", metavar="<text>", default="", help="For everybody to see")
        parser.add_argument("--waitlist", action="store_true", help="Go on the waitlist when no GPU is free")
        parser.add_argument("--wait", action="store_true", help="Wait until a server can be started")
        parser.add_argument("--repeat", metavar="<rrule>", default="", help="As in 'FREQ=WEEKLY;COUNT=4'")
        parser.add_argument("--override", action="store_true", help="Set rules aside (admin only; it is written down)")
        parser.add_argument("--project", metavar="<project>", default="", help="For this project (admin only)")
        parser.add_argument("--user", metavar="<user>", default="", help="For this colleague in the project")
        parser.add_argument("--shared", action="store_true", help="For every member of the project")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        body = ask_body(_words(parsed_args), zone, datetime.now(UTC))
        try:
            made = self.client().create(body)
        except ApiRefusedError as error:
            raise refusal(error, PROGRAM, zone) from None
        if parsed_args.wait:
            made[0] = self.client().wait_until_usable(made[0])
        return _shown(made[0], zone) if len(made) == 1 else _several(made, zone)


class CheckBooking(GpuCommand, command.Command):
    """Ask whether a booking would be possible, without making it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        _add_ask(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        zone = self.zone(parsed_args)
        answer = self.client().check(ask_body(_words(parsed_args), zone, datetime.now(UTC)))
        if not answer["fits"]:
            reasons = [f"  - {reason['text']}" for reason in answer["reasons"]]
            raise BlockedError("\n".join(["it does not fit:", *reasons, *_alternatives(answer, zone)]))
        self.app.stdout.write("It fits.\n")


def _alternatives(answer: Mapping[str, Any], zone: ZoneInfo) -> list[str]:
    return suggestions(answer.get("alternatives"), PROGRAM, zone)


class ListBookings(GpuCommand, command.Lister):
    """List bookings that are not over, in order of their start."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument("--mine", action="store_true", help="Only yours")
        parser.add_argument("--pool", metavar="<pool>", default="", help="Only of this pool")
        parser.add_argument("--project", metavar="<project>", default="", help="Only of this project")
        parser.add_argument("--user", metavar="<user>", default="", help="Only of this user")
        states = [state.value for state in BookingState]
        parser.add_argument("--state", choices=states, action="append", help="Only in this state; repeatable")
        parser.add_argument("--from", dest="first", metavar="<time>", default="", help="Only what ends after this")
        parser.add_argument("--to", dest="last", metavar="<time>", default="", help="Only what starts before this")
        parser.add_argument("--all", action="store_true", help="Also what is over")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone, args = self.zone(parsed_args), parsed_args
        query = list_query(
            zone,
            datetime.now(UTC),
            first=args.first,
            last=args.last,
            everything=args.all,
            mine=args.mine,
            pool=args.pool,
            project=args.project,
            user=args.user,
            states=args.state or (),
        )
        rows = [booking_row(row, zone) for row in self.client().bookings(**query)]
        return BOOKINGS, [[row[name] for name in BOOKINGS] for row in rows]


class _One(GpuCommand, command.ShowOne):
    """Commands about one booking."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self.add_zone(super().get_parser(prog_name))
        parser.add_argument("booking", metavar="<booking>", help="Id of the booking")
        return parser


def _add_series(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    others = "The others of its series that have not begun, too"
    parser.add_argument("--series", action="store_true", default=None, help=others)
    return parser


class ShowBooking(_One):
    """Show one booking, and what its GPUs do, where agents in its servers tell."""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        client = self.client()
        row = client.booking(parsed_args.booking)[0]
        return _shown(row, self.zone(parsed_args), client.use(row["id"]))


class SetBooking(_One):
    """Change a booking; it stays as it was when that is refused."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        for name, what in (("start", "<time>"), ("end", "<time>"), ("gpu", "<host/address>"), ("comment", "<text>")):
            parser.add_argument(f"--{name}", metavar=what, help=f"Another {name}")
        parser.add_argument("--gpus", metavar="<number>", type=int, help="Another number")
        parser.add_argument("--override", action="store_true", default=None, help="Set rules aside (admin only)")
        return _add_series(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone, args = self.zone(parsed_args), parsed_args
        row, etag = self.client().booking(args.booking)
        wishes = {
            name: getattr(args, name) for name in ("start", "end", "gpu", "comment", "gpus", "override", "series")
        }
        body = edit_body(row, zone, datetime.now(UTC), **wishes)
        try:
            return _shown(self.client().edit(args.booking, body, etag), zone)
        except ApiRefusedError as error:
            raise refusal(error, PROGRAM, zone) from None


class ExtendBooking(_One):
    """Make a booking longer, if its GPUs are free for that."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("until", metavar="<time>", help="The new end; '+4h' counts from the end as it is")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone(parsed_args)
        row, etag = self.client().booking(parsed_args.booking)
        body = extend_body(row, parsed_args.until, zone, datetime.now(UTC))
        try:
            return _shown(self.client().extend(parsed_args.booking, body, etag), zone)
        except ApiRefusedError as error:
            raise refusal(error, PROGRAM, zone) from None


class _Verb(_One):
    """A step in the life of a booking."""

    verb = ""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return _shown(self.client().act(parsed_args.booking, self.verb), self.zone(parsed_args))


class CancelBooking(_One):
    """Give up a booking that has not begun; also leave the waitlist, or refuse an offer."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _add_series(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        cancelled = self.client().act(parsed_args.booking, "cancel", series=bool(parsed_args.series))
        return _shown(cancelled, self.zone(parsed_args))


class EndBooking(_Verb):
    """End a booking that has begun, now; the rest of its time is free at once."""

    verb = "end"


class AcceptBooking(_Verb):
    """Take the GPUs that are offered to a booking on the waitlist."""

    verb = "accept"


class OpenBooking(_Verb):
    """Release the GPUs of a booking for a server of yours once more."""

    verb = "open"


class ApproveBooking(_Verb):
    """Approve a booking that was asked for (admin only)."""

    verb = "approve"


class DeclineBooking(_Verb):
    """Decline a booking that was asked for (admin only)."""

    verb = "decline"
