"""Opens the ledger of a site: pools, lanes and rules from the site file, records from a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from gpuyard.bookings.ledger.ledger import BookingSettings, Ledger
from gpuyard.bookings.store import Store
from gpuyard.model.booking import Rules
from gpuyard.model.gpu import Gpu
from gpuyard.openstack.people import domain_of
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject


def open_ledger(compiled: CompiledSite, url: str, now: Callable[[], datetime]) -> Ledger:
    """Open the ledger of a site that has bookings. `url` of the database, as SQLAlchemy spells it. Raises
    StoreError."""
    store = Store.open(url)
    store.sync_lanes(site_lanes(compiled.gpus))
    return Ledger(store, book_of(compiled), now, lambda: str(uuid4()))


def default_database(site: str, environment: Mapping[str, str]) -> str:
    """Return the URL of an SQLite file: where systemd keeps the state of a service, or else in the user's own folder
    for such things."""
    state_directory = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    home = environment.get("XDG_STATE_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".local" / "state"
    )
    folder = Path(state_directory) if state_directory else Path(home) / "gpuyard"
    return f"sqlite:///{folder.absolute() / f'{site}.db'}"


def book_of(compiled: CompiledSite) -> BookingSettings:
    """Return the booking settings of a site. A project that sees no flavor of a pool cannot book there; nor can one of
    another domain anywhere, unless the site file names the one or the other."""
    site = compiled.site
    domains = {"", *(site.booking.domains if site.booking else ())}
    seen_by = {pool: _seen_by(compiled.flavors, pool) for pool in site.pools}

    def known(project: str) -> bool:
        return domain_of(project) in domains or project in site.projects

    def rules(pool: str, project: str) -> Rules:
        stated = site.rules(pool, project)
        if not known(project):
            return replace(stated, may_book=False, origins={**stated.origins, "may_book": "domains"})
        projects = seen_by[pool]
        if projects is None or project in projects:
            return stated
        return replace(stated, may_book=False, origins={**stated.origins, "may_book": "flavors of the pool"})

    return BookingSettings(tuple(site.pools), rules, site.booking.timezone if site.booking else "UTC", known)


def _seen_by(flavors: Sequence[FlavorObject], pool: str) -> frozenset[str] | None:
    """Names of the projects that can see a flavor of a pool; None is all."""
    mine = [flavor for flavor in flavors if flavor.pool == pool and not flavor.variant_of]
    if not mine or any(flavor.public for flavor in mine):
        return None
    return frozenset().union(*(flavor.projects for flavor in mine))


def site_lanes(gpus: Sequence[Gpu]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the slots of a site for `Store.sync_lanes`: (pool, host, addresses), the leader's address first.

    GPUs that can never be offered are left out, as is what is blocked in a slot that has others.
    """
    slots: dict[tuple[str, str, object], list[str]] = {}
    for gpu in gpus:
        if not gpu.blocked:
            group: object = gpu.address if gpu.group is None else gpu.group
            slots.setdefault((gpu.pool, gpu.host, group), []).append(gpu.address)
    return [(pool, host, tuple(addresses)) for (pool, host, _), addresses in slots.items()]


def database_url(url: str, site: str, environment: Mapping[str, str]) -> str:
    """Return the URL of a site's database: the given one, or one in the state folder."""
    return url or default_database(site, environment)
