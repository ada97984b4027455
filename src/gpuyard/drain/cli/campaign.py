"""``gpuyard host campaign``: one change on many hosts, one after the other."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.portal_options import UrlOption, ZoneOption, client_of, zone_of
from gpuyard.console.prepare import YesOption

if TYPE_CHECKING:
    from collections.abc import Callable
    from zoneinfo import ZoneInfo

    from gpuyard.client.client import Client
    from gpuyard.deployment.journal import JournalFile
    from gpuyard.drain.campaign.definition import Campaign
    from gpuyard.drain.campaign.drains import CampaignDrains
    from gpuyard.drain.campaign.planner import CampaignPlan
    from gpuyard.drain.campaign.ports import PortalCampaign
    from gpuyard.drain.read import Keepings

COLUMNS = ("Host", "State", "Next", "Out from", "Moves", "In the way")
LOOK_EVERY = 5.0
"""Seconds."""
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the campaign.")]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where journals and the output of commands are.",
        show_default="~/.local/state/gpuyard/campaigns",
    ),
]

app = typer.Typer(
    help="Change many hosts one after the other: canary, limit, stop after the first failure. For admins.",
    no_args_is_help=True,
)


@app.command()
def plan(
    file: FileArgument,
    state: StateOption = None,
    zone: ZoneOption = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show each host: where it is, what is next and why, when it would be out of use, and who would lose by it.

    Changes nothing.
    """
    from gpuyard.drain.campaign.definition import read_campaign

    campaign, where = read_campaign(file), zone_of(zone)
    portal, journal = _ports(campaign, state, where, site, cloud, url), _journal(campaign, state)
    print_list(_rows(campaign, portal, journal, where), COLUMNS, format_, columns)


@app.command()
def run(
    file: FileArgument,
    yes: YesOption = False,
    state: StateOption = None,
    zone: ZoneOption = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Carry out a campaign: the canary, then the others, until all hosts are back or one has failed.

    Whatever ends it, the same command goes on: hosts that are back are left out, commands that have ended are not run
    again. Exit code 1 when a host has failed, 3 when it was stopped or somebody else maintains a host.
    """
    import secrets

    from gpuyard.console.prompts import confirmed
    from gpuyard.drain.campaign.definition import read_campaign
    from gpuyard.drain.campaign.runner import CampaignRun

    campaign, where = read_campaign(file), zone_of(zone)
    _must_be_there(campaign)
    screen = _Screen()
    portal = _ports(campaign, state, where, site, cloud, url, screen.say)
    journal = _journal(campaign, state)
    again = _again(file, state, zone, site, cloud, url)
    with journal.writer() as writer:
        portal.stop_file.unlink(missing_ok=True)
        rows = _rows(campaign, portal, journal, where)  # also with --yes: a host that nobody knows ends it here
        if not yes:
            print_list(rows, COLUMNS)
            if not confirmed(f"Carry out campaign {campaign.campaign} on {len(campaign.hosts)} hosts?"):
                print("Nothing was run.")
                raise typer.Exit(1)
        campaign_run = CampaignRun(campaign, portal, writer, lambda: datetime.now(UTC), screen.show, screen.unseen)
        try:
            campaign_plan = campaign_run.run(journal.read(secrets.token_hex(4)))
        except KeyboardInterrupt:
            print(
                f"gpuyard: interrupted; commands that are at work go on to their end; go on with: {again}",
                file=sys.stderr,
            )
            raise
    _say_end(campaign, campaign_plan, again)


@app.command()
def status(
    file: FileArgument,
    state: StateOption = None,
    zone: ZoneOption = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """Show where each host is, and whether a run is under way on this machine."""
    from gpuyard.drain.campaign.definition import read_campaign

    campaign, where = read_campaign(file), zone_of(zone)
    portal, journal = _ports(campaign, state, where, site, cloud, url), _journal(campaign, state)
    rows = _rows(campaign, portal, journal, where, forecast=False)
    print_list(rows, COLUMNS[:3], format_, columns)
    if format_ is Format.TABLE:
        back = sum(row["State"] == "back" for row in rows)
        at_it = "a run is under way" if _is_running(journal) else "no run is under way"
        print(f"{back} of {len(rows)} hosts are back; {at_it}.")


@app.command()
def stop(file: FileArgument, state: StateOption = None) -> None:
    """Stop a run: it begins with no further host, waits for those that are being worked on, and ends."""
    from gpuyard.drain.campaign.definition import read_campaign
    from gpuyard.model.errors import BlockedError

    campaign = read_campaign(file)
    if not _is_running(_journal(campaign, state)):
        raise BlockedError(f"no run of campaign {campaign.campaign} is under way on this machine: nothing to stop")
    path = _folder(campaign, state) / "stop"
    path.write_text(f"stopped by {getpass.getuser()}\n")
    print(f"Campaign {campaign.campaign} begins with no further host; 'gpuyard host campaign status' shows the rest.")


def _ports(
    campaign: Campaign,
    state: Path | None,
    zone: ZoneInfo,
    site: Path,
    cloud: str | None,
    url: str,
    say: Callable[[str], None] = lambda text: None,
) -> PortalCampaign:
    from gpuyard.drain.campaign.ports import PortalCampaign

    client, folder = client_of(cloud, url), _folder(campaign, state)
    drains = _drains(campaign, client, site, cloud, say) if campaign.drain else None
    return PortalCampaign(campaign, client, folder, lambda: datetime.now(UTC), lambda: pause(), zone, drains)


def _drains(
    campaign: Campaign, client: Client, site: Path, cloud: str | None, say: Callable[[str], None]
) -> CampaignDrains:
    """Only these take a site file, and the role admin in the cloud."""
    from gpuyard.drain.campaign.drains import drains_of
    from gpuyard.drain.campaign.kept_times import keepings_at
    from gpuyard.drain.campaign.ports import seen
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    def keepings() -> Keepings:
        with seen():
            return keepings_at(client) if loaded.site.booking else ((), {})

    loaded = load_site(site)
    campaign.refuse_strangers(loaded.site.hosts)
    return drains_of(campaign, connect(cloud), loaded, keepings, lambda host, text: say(f"{host}: {text}"))


def _again(file: Path, state: Path | None, zone: str | None, site: Path, cloud: str | None, url: str) -> str:
    """The command that goes on: with another journal it would begin again."""
    options = {
        "--state": str(state or ""),
        "--timezone": zone or "",
        "--site": "" if site == DEFAULT_SITE else str(site),
        "--os-cloud": cloud or "",
        "--url": url,
    }
    words = [word for name, value in options.items() if value for word in (name, value)]
    return shlex.join(["gpuyard", "host", "campaign", "run", str(file), *words])


def pause() -> None:
    """Between two looks."""
    time.sleep(LOOK_EVERY)


def _folder(campaign: Campaign, state: Path | None) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return (state or base / "gpuyard/campaigns") / campaign.campaign


def _journal(campaign: Campaign, state: Path | None) -> JournalFile:
    from gpuyard.deployment.journal import JournalFile

    return JournalFile(_folder(campaign, state) / "journal", f"run of campaign {campaign.campaign} is under way")


def _is_running(journal: JournalFile) -> bool:
    from gpuyard.deployment.journal import JournalBusyError

    if not journal.path.exists():
        return False
    try:
        with journal.writer():
            return False
    except JournalBusyError:
        return True


def _must_be_there(campaign: Campaign) -> None:
    """Raises UsageError for a program that this machine does not have."""
    from gpuyard.model.errors import UsageError

    if campaign.by_hand:
        return
    for host in campaign.hosts:
        program = campaign.words(host)[0]
        if shutil.which(program) is None:
            raise UsageError(f"'run' of campaign {campaign.campaign}: there is no program {program} on this machine")


def _rows(
    campaign: Campaign, portal: PortalCampaign, journal: JournalFile, zone: ZoneInfo, *, forecast: bool = True
) -> list[dict[str, object]]:
    from gpuyard.drain.campaign.planner import CampaignCost, CampaignNow, expected, plan_campaign

    # Of no run: what has failed before is shown as it would be gone on with.
    read, now = journal.read(), datetime.now(UTC)
    states = portal.look(read)
    campaign_plan = plan_campaign(campaign, CampaignNow(states, read, now, portal.stop_asked()))
    times = expected(campaign, campaign_plan.rows, now) if forecast else {}
    rows: list[dict[str, object]] = []
    for row in campaign_plan.rows:
        cost = portal.cost(row.host, *times[row.host]) if row.host in times else CampaignCost()
        act = f"{row.act.value}: {row.reason}" if row.act else row.reason
        start = times[row.host][0].astimezone(zone).strftime("%Y-%m-%d %H:%M") if row.host in times else ""
        keeps = "; ".join(portal.stays(row.host, cost)) if row.host in times else ""
        values = (row.host, row.standing.value, act, start, cost.moves or "", keeps)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _say_end(campaign: Campaign, campaign_plan: CampaignPlan, again: str) -> None:
    """Raises GpuyardError, BlockedError for what is not done."""
    from gpuyard.model.errors import BlockedError, GpuyardError

    if not campaign_plan.left:
        print(f"All {len(campaign.hosts)} hosts are back.")
        return
    head = f"{len(campaign.hosts) - len(campaign_plan.left)} of {len(campaign.hosts)} hosts are back"
    lines = [f"  {row.host}: {row.standing.value}: {row.reason}" for row in campaign_plan.left]
    text = "\n".join([f"{head}; not done:", *lines, f"go on with: {again}"])
    raise GpuyardError(text) if campaign_plan.failed else BlockedError(text)


class _Screen:
    """A line for each host when something becomes other of it."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._unseen = ""

    def show(self, plan: CampaignPlan) -> None:
        self._unseen = ""
        for row in plan.rows:
            text = f"{row.standing.value}: {row.act.value if row.act else ''}{': ' if row.act else ''}{row.reason}"
            if self._shown.get(row.host) != text:
                self.say(f"{row.host}: {text}")
            self._shown[row.host] = text

    def unseen(self, why: str) -> None:
        if why != self._unseen:
            self.say(f"{why}; looking again")
        self._unseen = why

    @staticmethod
    def say(text: str) -> None:
        from gpuyard.model.text import printable

        with suppress(BrokenPipeError):  # who watched has gone; the campaign goes on
            print(f"{datetime.now().astimezone():%H:%M:%S} {printable(text)}", flush=True)
