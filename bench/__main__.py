"""All measurements, one after the other: `make bench`."""

from __future__ import annotations

import sys

from bench import cloud, fleet, lab_start, ledger, local, preparation, scheduling, site, why

if __name__ == "__main__":
    local.main()
    site.main()
    preparation.main()
    fleet.main()
    ledger.main()
    sys.argv = sys.argv[:1]
    missed = lab_start.main()
    cloud.main()
    why.main()
    scheduling.main()
    sys.exit(missed)
