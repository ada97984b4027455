"""Checks for ``gpuyard serve --check-config``: whether the portal could serve, without changing anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.error import URLError
from urllib.request import urlopen

from gpuyard.bookings.controllers.site_ledger import database_url
from gpuyard.database.errors import StoreError
from gpuyard.database.migrate import Unknown
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.model.text import counted
from gpuyard.openstack.api import CloudApi
from gpuyard.provisioning.read import read_objects
from gpuyard.server.database_upkeep import is_there, site_versions
from gpuyard.server.server import bind, refuse_no_gateway, refuse_public, url_of
from gpuyard.server.serving import ServeOptions
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site

Check = Callable[[ServeOptions, LoadedSite, CloudApi], str]


def check_serving(options: ServeOptions, loaded: LoadedSite, api: CloudApi, say: Callable[[str], None]) -> None:
    """Report each part, good or wrong. Raises an error of the kind of the first wrong one, after all have been
    reported."""
    first: GpuyardError | None = None
    say(f"ok: {loaded.path}: {loaded.site.site}, {counted(len(loaded.compiled.gpus), 'GPU')}")
    for name, check in CHECKS.items():
        try:
            say(f"ok: {name}: {check(options, loaded, api)}")
        except GpuyardError as error:
            say(f"wrong: {name}: {error}")
            first = first or error
    if first is not None:
        raise type(first)("it cannot serve like this; nothing was changed") from None


def _options(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> str:
    booked = loaded.site.booking is not None
    if not options.public:
        refuse_public(options.host, login=booked)
    if booked:
        refuse_no_gateway(options.settings)
    return "as they have to be"


def _secrets(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> str:
    """Files that the site file names."""
    paths = list(_files(loaded))
    for path in paths:
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}; the site file names it") from None
    return f"{counted(len(paths), 'file')} that the site file names"


def _files(loaded: LoadedSite) -> Iterator[str]:
    runners, accounting = loaded.site.runners, loaded.site.accounting
    for enrolment in runners.enrolments if runners else ():
        yield from filter(
            None,
            (enrolment.token_file, enrolment.webhook_secrets_file, enrolment.app.key_file if enrolment.app else None),
        )
    outside = accounting.external if accounting else None
    if outside is not None and outside.token_file:
        yield outside.token_file


def _database(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> str:
    if loaded.site.booking is None:
        return "none, as the site has no bookings"
    url = database_url(options.database, loaded.site.site, os.environ)
    if not is_there(url):
        return "will be made when it starts"
    schema_versions = site_versions(url)
    for why in Unknown:
        if rooms := [version.room for version in schema_versions if version.unknown is why]:
            raise StoreError(f"{why}: {', '.join(rooms)}; {why.remedy}")
    due = [
        f"{version.room} {version.at} -> {version.newest}"
        for version in schema_versions
        if version.at is not None and version.due
    ]
    if due and not options.upgrade:
        raise BlockedError(f"of an older release: {', '.join(due)}; gpuyard db upgrade brings it up to date")
    return f"will be brought up to date: {', '.join(due)}" if due else "reachable, and of this release"


def _cloud(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> str:
    """All that a plan of the site reads: Nova, Placement, Keystone, and the rights for it."""
    plan = plan_site(loaded.compiled, read_objects(api, loaded.compiled))
    left = len(plan.steps) + len(plan.refusals)
    return f"{api.name} answers" + (f"; {counted(left, 'step')} of the site left to apply" if left else "")


def _port(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> str:
    try:
        with closing(bind(options.host, options.port)) as listener:
            return f"{url_of(listener)} is free"
    except UsageError:
        raise
    except GpuyardError:
        host = f"[{options.host}]" if ":" in options.host else options.host
        try:
            with urlopen(f"http://{host}:{options.port}/healthz", timeout=5) as answer:
                if answer.read(100) == b"ok\n":
                    return f"port {options.port} has a portal already, which is this service where it runs"
        except (URLError, OSError, ValueError):
            pass
        raise


CHECKS: dict[str, Check] = {
    "options": _options,
    "secrets": _secrets,
    "database": _database,
    "cloud": _cloud,
    "port": _port,
}
