"""``openstack gpu flavor list``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from osc_lib.command import command

from gpuyard.client.times import local_zone
from gpuyard.console.osc_columns import KnownColumns
from gpuyard.diagnosis.cli.flavor_rows import FLAVORS, flavor_row


class ListFlavors(KnownColumns, command.Lister):
    """List flavors: how many servers of each could be started now, until when, and why not more."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--pool", metavar="<pool>", help="Only flavors with GPUs of this pool")
        parser.add_argument("--project", metavar="<project>", help="Whose limits (admins: any project)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        client = self.app.client_manager.gpu  # type: ignore[attr-defined]
        document, zone = client.flavors(pool=parsed_args.pool, project=parsed_args.project), local_zone()
        rows = [flavor_row(row, zone) for row in document["flavors"]]
        return FLAVORS, [["" if (value := row[name]) is None else value for name in FLAVORS] for row in rows]
