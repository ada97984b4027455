"""All measurements, one after the other: `make bench`. It says at the end what missed its limit or was not measured."""

from __future__ import annotations

import sys
import traceback

from bench import (
    agents,
    cloud,
    fleet,
    health,
    history,
    images,
    install,
    lab_start,
    launch,
    ledger,
    local,
    map_pages,
    metrics,
    preparation,
    runners,
    runners_steady,
    scale,
    scheduling,
    scrubs,
    site,
    takeover,
    usage,
    webhooks,
    why,
)
from bench.table import finish, leave_out

PARTS = (
    local,
    site,
    scale,
    preparation,
    fleet,
    ledger,
    install,
    lab_start,
    cloud,
    why,
    launch,
    map_pages,
    metrics,
    scheduling,
    webhooks,
    runners,
    runners_steady,
    health,
    scrubs,
    takeover,
    agents,
    images,
    usage,
    history,
)

if __name__ == "__main__":
    sys.argv = sys.argv[:1]
    for part in PARTS:
        try:
            part.main()
        except Exception as error:  # the others are measured all the same
            traceback.print_exc()
            leave_out(part.__name__, f"{type(error).__name__}: {error}".splitlines()[0])
    sys.exit(finish())
