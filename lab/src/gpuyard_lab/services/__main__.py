"""``python -m gpuyard_lab.services PROCESS STATE``: one process of the lab."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

from gpuyard_lab.services.threads import choose_threads


def main(name: str, state: Path) -> None:
    """Prepare, make the schema when it is not there yet, serve."""
    choose_threads(name)  # before anything is imported that knows threads
    from gpuyard_lab.services.startup import prepare_database
    from gpuyard_lab.settings import remembered

    os.chdir(state)
    sys.argv = [name]  # the services parse it
    lab = remembered(state)
    assert lab is not None
    service = importlib.import_module(f"gpuyard_lab.services.{name}")
    service.prepare(lab)
    prepare_database(lab, name, service.create)
    service.serve(lab)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a service's threads would keep a process alive that serves nobody
