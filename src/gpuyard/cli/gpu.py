"""``gpuyard gpu``: the commands about GPUs, each from the capability that it belongs to."""

from __future__ import annotations

import typer

from gpuyard.bookings.cli import hold
from gpuyard.diagnosis.cli.why import why
from gpuyard.health.cli import gpu_accept, gpu_health
from gpuyard.inventory.cli import gpu

app = typer.Typer(help="See every GPU of the site, and who has it.", no_args_is_help=True)
app.command("why")(why)
hold.register(app)
gpu_health.register(app)
gpu_accept.register(app)
gpu.register(app)
