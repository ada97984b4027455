"""``gpuyard host drain``, ``evacuate``, ``return`` and ``leftovers``: servers leave a host, and it comes back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption
from gpuyard.console.portal_options import UrlOption, client_of
from gpuyard.console.prompts import require_confirmed
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.text import printable

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from gpuyard.drain.planner import MovePlan, MoveRules, MoveVerdict
    from gpuyard.drain.read import Keepings
    from gpuyard.openstack.api import CloudApi
    from gpuyard.site.load import LoadedSite


class PlanFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="Its name in the site file.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it, and do not ask.")]
PlanOption = Annotated[bool, typer.Option("--plan", help="Only show what would be done.")]
ShelveOption = Annotated[
    bool,
    typer.Option(
        "--shelve",
        help="Shelve servers for which there is no room, and offload shelved ones: their owners unshelve them later.",
    ),
]
AheadOption = Annotated[
    str, typer.Option("--ahead", metavar="TIME", help="Use no GPU elsewhere that is booked within this time.")
]
BlindOption = Annotated[
    bool, typer.Option("--without-bookings", help="Go on although no portal says which GPUs are booked or held.")
]
PlanFormatOption = Annotated[PlanFormat, typer.Option("-f", "--format", help="Of the plan: text or json.")]


def register(app: typer.Typer) -> None:
    app.command("drain")(drain)
    app.command("evacuate")(evacuate)
    app.command("return")(return_)
    app.command("leftovers")(leftovers)


def drain(
    host: HostArgument,
    shelve: ShelveOption = False,
    ahead: AheadOption = "24 h",
    plan: PlanOption = False,
    yes: YesOption = False,
    blind: BlindOption = False,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: PlanFormatOption = PlanFormat.TEXT,
) -> None:
    """Move all servers off a host that runs: shows of each where it can go, when, and what it loses; then asks.

    The host takes no new servers from then on, until 'gpuyard host return'. Killed at any moment, the same command goes
    on. Exit code 3 when servers stay.
    """
    from gpuyard.drain.planner import MoveRules
    from gpuyard.openstack.disabled_reason import Purpose

    rules = MoveRules(Purpose.DRAIN, shelve, _ahead(ahead))
    _empty(host, rules, site, cloud, url, plan=plan, yes=yes, blind=blind, format_=format_)


def evacuate(
    host: HostArgument,
    fenced: Annotated[
        bool, typer.Option("--fenced", help="You have made sure that the machine is off; Nova is told so.")
    ] = False,
    ahead: AheadOption = "24 h",
    plan: PlanOption = False,
    yes: YesOption = False,
    blind: BlindOption = False,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: PlanFormatOption = PlanFormat.TEXT,
) -> None:
    """Rebuild the servers of a dead host on others, without their local disks; shows the plan first, and asks.

    The host must be off: nova-compute forced down, or --fenced. Killed at any moment, the same command goes on. Exit
    code 3 when servers stay.
    """
    from gpuyard.drain.planner import MoveRules
    from gpuyard.openstack.disabled_reason import Purpose

    rules = MoveRules(Purpose.EVACUATE, ahead=_ahead(ahead))
    _empty(host, rules, site, cloud, url, plan=plan, yes=yes, blind=blind, format_=format_, fenced=fenced)


def return_(
    host: HostArgument,
    unmaintained: Annotated[
        bool, typer.Option("--without-maintenance", help="Go on although no portal says whether it is maintained.")
    ] = False,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Open a host again that drain or evacuate has closed, once nothing is left behind there and nobody works on it.

    Undoes only what those two have done. Exit code 3, with all reasons, when it stays closed.
    """
    from gpuyard.drain.host_return import give_back
    from gpuyard.drain.leftovers_apply import own_holds
    from gpuyard.openstack.api import connect

    loaded = _site_with(site, host)
    in_the_way = _maintained(loaded, host, cloud, url, blind=unmaintained)
    give_back(connect(cloud), host, in_the_way, _say, own_holds(loaded, host))


def leftovers(
    host: HostArgument,
    clean: Annotated[bool, typer.Option("--clean", help="Take away what is safe to, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Say what servers that have left a host leave behind there, and who cleans it up.

    Exit code 3 when something keeps the host closed.
    """
    from gpuyard.drain.leftovers import find_leftovers, keeps_closed, steps_of
    from gpuyard.drain.leftovers_apply import clean_leftovers, own_holds, read_leftovers
    from gpuyard.openstack.api import connect

    if yes and not clean:
        raise UsageError("--yes answers what --clean asks; give both, or neither")
    ours = own_holds(_site_with(site, host), host)
    api = connect(cloud)
    findings = find_leftovers(read_leftovers(api, host, ours))
    print_findings(findings, "leftovers", format_, columns, payload=("cleans",))
    if not findings and format_ is FindingFormat.TEXT and not columns:
        print(f"Nothing is left behind on {host}.")
    steps = steps_of(findings)
    if clean and steps:
        if not yes:
            require_confirmed(f"Take away what {len(steps)} of them have of {host}?")
        for line in clean_leftovers(api, host, steps):
            _say(line)
        findings = find_leftovers(read_leftovers(api, host, ours))
    left = keeps_closed(findings)
    if left:
        raise BlockedError(f"{len(left)} leftover{'s' * (len(left) != 1)} on {host}; {_cleanable(len(steps_of(left)))}")


def _cleanable(number: int) -> str:
    return f"--clean takes {number} of them away" if number else "none of them can be taken away from here now"


def _empty(
    host: str,
    rules: MoveRules,
    site: Path,
    cloud: str | None,
    url: str,
    *,
    plan: bool,
    yes: bool,
    blind: bool,
    format_: PlanFormat,
    fenced: bool = False,
) -> None:
    from gpuyard.drain.apply import HostMover
    from gpuyard.drain.read import MovesReader
    from gpuyard.openstack.api import connect

    if plan and yes:
        raise UsageError("--plan only shows, and --yes does it; give one of them")
    loaded = _site_with(site, host)
    api = connect(cloud)

    def keepings() -> Keepings:
        return keepings_of_portal(cloud, url, blind=blind) if loaded.site.booking else ((), {})

    reader = MovesReader(api, loaded, host, keepings)
    mover = HostMover(api, reader.read, rules, _say)
    first = mover.plan(host, fenced or plan)
    _show(api, first, format_)
    if plan:
        _end(first, done=False)
        return
    if not yes:
        require_confirmed(
            f"Close {host} on cloud {api.name}" + (f", and do that with {len(first.acts)}?" if first.acts else "?")
        )
    _end(mover.run(host, fenced), done=True)


def _show(api: CloudApi, plan: MovePlan, format_: PlanFormat) -> None:
    if format_ is PlanFormat.JSON:
        rows = [verdict.as_dict() for verdict in plan.verdicts]
        print(json.dumps({"host": plan.host, "purpose": plan.purpose.value, "servers": rows}, indent=2, default=str))
        return
    print(f"{plan.host} of cloud {api.name}: {_counted(plan)}")
    for verdict in plan.verdicts:
        print("\n".join(lines(verdict)))


def _say(text: str) -> None:
    print(printable(text), flush=True)


def lines(verdict: MoveVerdict) -> Iterable[str]:
    """A server, for people."""
    return map(printable, _lines(verdict))


def _lines(verdict: MoveVerdict) -> Iterator[str]:
    gpus = f", {len(verdict.server.gpus)} GPU{'s' * (len(verdict.server.gpus) != 1)}" if verdict.server.gpus else ""
    yield (
        f"{verdict.server.name} ({verdict.server.id}), {verdict.server.status}, {verdict.server.flavor.name}{gpus}, of "
        f"{verdict.server.user} ({verdict.server.project})"
    )
    target = f" to {verdict.target}" if verdict.target else ""
    yield f"  {verdict.way.value}{target}: {verdict.reason}"
    yield from (f"    {loss}" for loss in verdict.losses)
    if verdict.not_live:
        yield f"    not live: {verdict.not_live}"
    yield from (f"    not {host}: {reason}" for host, reason in verdict.others)


def _counted(plan: MovePlan) -> str:
    if not plan.verdicts:
        return "no server is on it"
    ways = [verdict.way.value for verdict in plan.verdicts]
    return ", ".join(f"{ways.count(way)} to {way}" for way in dict.fromkeys(ways))


def _end(plan: MovePlan, *, done: bool) -> None:
    """Raises BlockedError when servers stay."""
    if plan.left:
        names = "\n  ".join(map(str, plan.left))
        raise BlockedError(f"{plan.host} {'is' if done else 'would'} not {'' if done else 'be '}empty:\n  {names}")
    if done:
        print(f"{plan.host} is empty. gpuyard host leftovers {plan.host} says what is left behind there.")


def _site_with(site: Path, host: str) -> LoadedSite:
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    if host not in loaded.site.hosts:
        raise UsageError(f"the site has no host {host!r}; it has {', '.join(loaded.site.hosts)}")
    return loaded


def _ahead(text: str) -> timedelta:
    from gpuyard.site.booking_rules import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--ahead: {error}") from None


def keepings_of_portal(cloud: str | None, url: str, *, blind: bool) -> Keepings:
    """Bookings and holds as the portal has them; `blind`: without one, as if there were none."""
    from gpuyard.client.errors import PortalError
    from gpuyard.client.portal import NoPortalError, PortalUnreachableError
    from gpuyard.drain.campaign.kept_times import keepings_at

    try:
        return keepings_at(client_of(cloud, url))
    except (NoPortalError, PortalUnreachableError, PortalError) as problem:
        if blind:
            return (), {}
        print(f"{problem}\nSo it is not known which GPUs bookings and holds keep.", file=sys.stderr)
        return None, {}


def _maintained(loaded: LoadedSite, host: str, cloud: str | None, url: str, *, blind: bool) -> list[str]:
    """Why a maintenance keeps a host closed. One that is being checked does not: the check wants it open."""
    from gpuyard.client.errors import PortalError
    from gpuyard.client.portal import NoPortalError, PortalUnreachableError

    if loaded.site.health is None:
        return []
    try:
        rows = client_of(cloud, url).maintenances(host=host)
    except (NoPortalError, PortalUnreachableError, PortalError) as problem:
        if blind:
            return []
        raise BlockedError(
            f"{problem}\nSo it is not known whether somebody works on {host}; --without-maintenance goes on anyway"
        ) from None
    return [
        f"its maintenance is {row['state']} ({row['comment']}): gpuyard host maintenance "
        f"{'done' if 'done' in row['may'] else 'cancel'} {host}"
        for row in rows
        if row["state"] in ("draining", "in work")
    ]
