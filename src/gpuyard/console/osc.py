"""Base class for commands of the `openstack` plugin that ask the portal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.client import Client
from gpuyard.client.times import find_zone, local_zone
from gpuyard.console.osc_columns import KnownColumns

Table = tuple[Sequence[str], Sequence[Any]]
"""Names of columns, and rows; of one thing: names of fields, and values."""


class GpuCommand(KnownColumns):
    """Mixed in before a command that asks the portal, and shows times."""

    app: Any

    def add_zone(self, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument(
            "--timezone", metavar="<zone>", help="Time zone of times without an offset, and of what is shown"
        )
        return parser

    def client(self) -> Client:
        client = self.app.client_manager.gpu
        assert isinstance(client, Client)
        return client

    @staticmethod
    def zone(parsed_args: argparse.Namespace) -> ZoneInfo:
        return find_zone(parsed_args.timezone) if parsed_args.timezone else local_zone()
