"""``openstack gpu list``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from osc_lib.command import command

from gpuyard.client.rows import GPUS, gpu_row
from gpuyard.console.osc_columns import KnownColumns
from gpuyard.model.gpu import GpuState


class ListGpus(KnownColumns, command.Lister):
    """List GPUs: their state, and who has them."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--pool", metavar="<pool>", help="Only GPUs of this pool")
        parser.add_argument("--host", metavar="<host>", help="Only GPUs of this host")
        parser.add_argument("--state", choices=[state.value for state in GpuState], help="Only GPUs in this state")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        client = self.app.client_manager.gpu  # type: ignore[attr-defined]
        rows = client.gpus(pool=parsed_args.pool, host=parsed_args.host, state=parsed_args.state)
        return GPUS, [["" if (value := gpu_row(row)[name]) is None else value for name in GPUS] for row in rows]
