"""The commands ``gpuyard host check|plan|apply|verify|undo``: on this machine, or over ssh on many."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.output import ColumnOption, Format, FormatOption

if TYPE_CHECKING:
    from gpuyard.host.fleet import Outcome
    from gpuyard.model.finding import Finding
    from gpuyard.model.host import Inventory

SshOption = Annotated[
    list[str] | None, typer.Option("--ssh", metavar="HOST", help="A host to do it on, over ssh; repeatable.")
]
SiteOption = Annotated[
    Path | None,
    typer.Option("--site", metavar="FILE", help="Do it on this site's hosts (or those of --ssh), for its pools."),
]
SudoOption = Annotated[bool, typer.Option("--sudo", help="Become root there with sudo.")]
PythonOption = Annotated[str, typer.Option("--python", metavar="NAME", help="Python 3.9 or newer there.")]
SshConfigOption = Annotated[
    Path | None, typer.Option("--ssh-config", metavar="FILE", help="A file for ssh instead of ~/.ssh/config.")
]
RootOption = Annotated[Path, typer.Option("--root", metavar="DIR", help="Folder that holds sys, proc and etc.")]
KeepOption = Annotated[
    list[str] | None, typer.Option("--keep", metavar="ADDRESS", help="Leave this GPU to the host; repeatable.")
]
GiveOption = Annotated[
    list[str] | None, typer.Option("--give", metavar="ADDRESS", help="Give it away after all; repeatable.")
]
IdentityOption = Annotated[
    bool | None,
    typer.Option("--iommu-pt/--no-iommu-pt", help="The host's own devices reach memory without translation."),
]
UnsafeOption = Annotated[
    bool | None,
    typer.Option("--unsafe-interrupts/--no-unsafe-interrupts", help="Let VFIO go on without interrupt remapping."),
]
LegacyOption = Annotated[
    bool | None,
    typer.Option("--replace-legacy/--no-replace-legacy", help="Leave out ids= options and others in the way."),
]
LiveOption = Annotated[
    bool | None, typer.Option("--live/--no-live", help="Change drivers while it runs, or at the next boot only.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

CanaryOption = Annotated[
    str, typer.Option("--canary", metavar="HOST", help="This one first and alone.", show_default="the first host")
]
NoCanaryOption = Annotated[bool, typer.Option("--no-canary", help="No host is tried before the others.")]
AtOnceOption = Annotated[
    int, typer.Option("--at-once", metavar="N", min=1, help="At most so many hosts at the same time.")
]
KeepGoingOption = Annotated[bool, typer.Option("--keep-going", help="Go on with other hosts when one has failed.")]

AllOption = Annotated[bool, typer.Option("--all", help="Forget --keep, --give and --site of earlier calls.")]

DEFAULT_ROOT = Path("/")
NO_ANSWER = "no-answer"
AT_ONCE = 32
SHORT, LONG = 600.0, 7200.0
"""The most that one host may take, in seconds: update-initramfs takes minutes for each kernel."""


@dataclass(frozen=True)
class Order:
    """In which order hosts are changed."""

    canary: str
    """First and alone, and no other one when it fails; empty: none."""
    at_once: int
    stop: bool
    """After one fails no other one begins."""

    def __str__(self) -> str:
        first = f"{self.canary} first, then " if self.canary else ""
        return f"{first}{self.at_once} at once{', and it stops when one fails' if self.stop else ''}"


@dataclass(frozen=True)
class Where:
    """On which hosts, and how they are reached. No host: this machine."""

    hosts: tuple[str, ...] = ()
    sudo: bool = False
    python: str = "python3"
    ssh_config: Path | None = None
    gpus: Mapping[str, tuple[str, ...]] | None = None
    """Host -> addresses of its GPUs that the site's pools have; None without a site."""
    recorded: Mapping[str, Inventory] | None = None
    """Host -> its inventory as the site file has it."""
    order: Order | None = None
    """In which hosts are changed; None: all at once."""


def where(ssh: Iterable[str] | None, site: Path | None, sudo: bool, python: str, ssh_config: Path | None) -> Where:
    """Raises UsageError for a host that the site does not have."""
    from gpuyard.model.errors import UsageError

    hosts = tuple(ssh or ())
    given_by_option = {"--sudo": sudo, "--python": python != "python3", "--ssh-config": ssh_config is not None}
    lost = [option for option, given in given_by_option.items() if given]
    if lost and not hosts and site is None:
        raise UsageError(f"{lost[0]} is for other hosts: name them with --ssh or --site")
    if site is None:
        return Where(hosts, sudo, python, ssh_config)
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    unknown = [host for host in hosts if host not in loaded.site.hosts]
    if unknown:
        raise UsageError(f"{site} has no host {unknown[0]}; it has {', '.join(loaded.site.hosts)}")
    hosts = hosts or tuple(loaded.site.hosts)
    whole = [gpu for gpu in loaded.compiled.whole_gpus if gpu.pool]
    gpus = {host: tuple(gpu.address for gpu in whole if gpu.host == host) for host in hosts}
    empty = [host for host, addresses in gpus.items() if not addresses]
    if empty:
        raise UsageError(f"{site} gives no GPU of {empty[0]} away; name the other hosts with --ssh")
    return Where(hosts, sudo, python, ssh_config, gpus, loaded.inventories)


def in_order(hosts: Where, canary: str, no_canary: bool, at_once: int, keep_going: bool) -> Where:
    """With the order in which they are changed. Raises UsageError."""
    from dataclasses import replace

    from gpuyard.model.errors import UsageError

    if not hosts.hosts:
        if canary or no_canary or keep_going or at_once != AT_ONCE:
            raise UsageError(
                "--canary, --no-canary, --at-once and --keep-going need several hosts; name them with --ssh or --site"
            )
        return hosts
    if canary and no_canary:
        raise UsageError("--canary and --no-canary exclude each other: give one of them")
    if canary and canary not in hosts.hosts:
        raise UsageError(f"--canary {canary} is not one of the hosts: {', '.join(hosts.hosts)}")
    first = "" if no_canary or len(set(hosts.hosts)) == 1 else canary or hosts.hosts[0]
    return replace(hosts, order=Order(first, at_once, not keep_going))


def register(app: typer.Typer) -> None:
    """The verbs, as commands of ``gpuyard host``."""
    for command in (check, plan, apply, verify, undo):
        app.command()(command)


def check(
    root: RootOption = DEFAULT_ROOT,
    recording: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Check what 'gpuyard host record' wrote instead.")
    ] = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
    ssh: SshOption = None,
    site: SiteOption = None,
    sudo: SudoOption = False,
    python: PythonOption = "python3",
    ssh_config: SshConfigOption = None,
) -> None:
    """Say what is right, what is wrong and why, for giving this machine's GPUs to VMs. Changes nothing.

    Exit code 3 when something is in the way.
    """
    hosts = where(ssh, site, sudo, python, ssh_config)
    if recording and hosts.hosts:
        raise typer.BadParameter("--from is for a recording, not for --ssh and --site")
    words = ["--from", str(recording)] if recording else []
    _leave(_found("check", words, root, hosts, format_, columns))


def plan(
    keep: KeepOption = None,
    give: GiveOption = None,
    iommu_pt: IdentityOption = None,
    unsafe_interrupts: UnsafeOption = None,
    replace_legacy: LegacyOption = None,
    live: LiveOption = None,
    everything: AllOption = False,
    root: RootOption = DEFAULT_ROOT,
    recording: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Plan for what 'gpuyard host record' wrote instead.")
    ] = None,
    format_: FormatOption = Format.TABLE,
    ssh: SshOption = None,
    site: SiteOption = None,
    sudo: SudoOption = False,
    python: PythonOption = "python3",
    ssh_config: SshConfigOption = None,
) -> None:
    """Show what 'apply' would change, file by file as a diff and driver by driver, with the reason. Changes nothing.

    Without options every GPU that can be given away is; wishes of the last 'apply' stay until they are changed.
    """
    words = _wishes(keep, give, iommu_pt, unsafe_interrupts, replace_legacy, live, everything)
    hosts = where(ssh, site, sudo, python, ssh_config)
    if recording and hosts.hosts:
        raise typer.BadParameter("--from is for a recording, not for --ssh and --site")
    words += ["--from", str(recording)] if recording else []
    _leave(_run("plan", words, root, hosts, format_))


def apply(
    keep: KeepOption = None,
    give: GiveOption = None,
    iommu_pt: IdentityOption = None,
    unsafe_interrupts: UnsafeOption = None,
    replace_legacy: LegacyOption = None,
    live: LiveOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
    root: RootOption = DEFAULT_ROOT,
    format_: FormatOption = Format.TABLE,
    ssh: SshOption = None,
    site: SiteOption = None,
    sudo: SudoOption = False,
    python: PythonOption = "python3",
    ssh_config: SshConfigOption = None,
    canary: CanaryOption = "",
    no_canary: NoCanaryOption = False,
    at_once: AtOnceOption = AT_ONCE,
    keep_going: KeepGoingOption = False,
) -> None:
    """Prepare the machine: show the plan, ask, and do it. What was before is kept for 'undo'.

    Whatever interrupts it, the same command again does what is left. Of several hosts one is first, and none begins
    after one has failed.
    """
    words = _wishes(keep, give, iommu_pt, unsafe_interrupts, replace_legacy, live, everything)
    hosts = in_order(where(ssh, site, sudo, python, ssh_config), canary, no_canary, at_once, keep_going)
    _leave(_change("apply", ("plan", *words), words, yes, root, hosts, format_))


def verify(
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Compare with what 'gpuyard host record' wrote.")
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
    ssh: SshOption = None,
    site: SiteOption = None,
    sudo: SudoOption = False,
    python: PythonOption = "python3",
    ssh_config: SshConfigOption = None,
) -> None:
    """Prove that VMs can have the GPUs: open each through VFIO, as QEMU would. Exit code 3 when one cannot be had.

    With --site also say what differs from the recordings that the site file names.
    """
    hosts = where(ssh, site, sudo, python, ssh_config)
    words = ["--against", str(against)] if against else []
    if hosts.hosts and against:
        raise typer.BadParameter("--against is for this machine; --site compares each host with its own recording")
    if hosts.recorded is not None:
        words = ["--recording"]
    _leave(_found("verify", words, root, hosts, format_, columns))


def undo(
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    live: LiveOption = None,
    root: RootOption = DEFAULT_ROOT,
    format_: FormatOption = Format.TABLE,
    ssh: SshOption = None,
    site: SiteOption = None,
    sudo: SudoOption = False,
    python: PythonOption = "python3",
    ssh_config: SshConfigOption = None,
    canary: CanaryOption = "",
    no_canary: NoCanaryOption = False,
    at_once: AtOnceOption = AT_ONCE,
    keep_going: KeepGoingOption = False,
) -> None:
    """Bring the machine back to what it was before the first 'apply': drivers, files, kernel options, initramfs.

    Of several hosts one goes first, and none begins after one has failed.
    """
    hosts = in_order(where(ssh, site, sudo, python, ssh_config), canary, no_canary, at_once, keep_going)
    words = ["--no-live"] if live is False else []
    if dry_run:
        _leave(_run("undo", ["--dry-run", *words], root, hosts, format_))
    else:
        _leave(_change("undo", ("undo", "--dry-run", *words), words, yes, root, hosts, format_))


def _found(
    verb: str, words: Sequence[str], root: Path, hosts: Where, format_: FindingFormat, columns: Sequence[str] | None
) -> int:
    """Run a verb that answers with findings, and print those. On many hosts each finding's object is its host."""
    if not hosts.hosts:
        from gpuyard.host import commands
        from gpuyard.host.__main__ import options_of
        from gpuyard.model.finding import Finding

        output = commands.Kept()
        code = commands.run(verb, options_of(["--root", str(root), verb, *words]), output)
        print_findings([Finding.from_dict(entry) for entry in output.data["findings"]], verb, format_, columns)
        return code
    from gpuyard.host import fleet

    if format_ is FindingFormat.TEXT and not columns:
        return _remote(verb, words, _here(root, hosts), Format.TABLE)
    outcomes = _outcomes(verb, words, _here(root, hosts))
    print_findings(
        [finding for outcome in outcomes.values() for finding in findings_of(outcome)], verb, format_, columns
    )
    return fleet.worst(outcomes)


def findings_of(outcome: Outcome) -> list[Finding]:
    """What a host found; of one that has no answer, why."""
    from dataclasses import replace

    from gpuyard.console.fleet_output import verdict
    from gpuyard.host.fleet import Ending
    from gpuyard.model.finding import Finding, Severity

    findings = [replace(finding, object=outcome.host) for finding in _parsed(outcome)]
    if outcome.ending is not Ending.DONE or "error" in outcome.result:
        reason = f"{verdict(outcome)}: {outcome.reason}"
        findings.append(Finding(NO_ANSWER, Severity.ERROR, outcome.host, reason, "look there: nothing is known of it"))
    return findings


def _parsed(outcome: Outcome) -> list[Finding]:
    from gpuyard.model.finding import Finding, Severity

    try:
        return [Finding.from_dict(entry) for entry in outcome.result.get("findings", ())]
    except (KeyError, TypeError, ValueError):
        return [Finding(NO_ANSWER, Severity.ERROR, "", "what it answered is no finding of gpuyard's", "look there")]


def _wishes(
    keep: list[str] | None,
    give: list[str] | None,
    iommu_pt: bool | None,
    unsafe_interrupts: bool | None,
    replace_legacy: bool | None,
    live: bool | None,
    everything: bool,
) -> list[str]:
    """As words for the verb on the host."""
    words = [word for address in keep or () for word in ("--keep", address)]
    words += [word for address in give or () for word in ("--give", address)]
    switches = {"iommu-pt": iommu_pt, "unsafe-interrupts": unsafe_interrupts, "replace-legacy": replace_legacy}
    switches["live"] = live
    words += [f"--{name}" if on else f"--no-{name}" for name, on in switches.items() if on is not None]
    return [*words, *(["--all"] if everything else [])]


def _change(
    verb: str, dry: Sequence[str], words: Sequence[str], yes: bool, root: Path, hosts: Where, format_: Format
) -> int:
    """Run a verb that changes hosts. On many, all plans are shown before one question."""
    agreed: dict[str, str] = {}
    if hosts.hosts and not yes:
        code = _remote(dry[0], dry[1:], hosts, Format.TABLE, plans=agreed)
        if code:
            print("nothing was changed: not every host can do it; leave those out, or mend them first", file=sys.stderr)
            return code
        order = f" ({hosts.order})" if hosts.order and len(hosts.hosts) > 1 else ""
        typer.confirm(f"{verb} on {len(hosts.hosts)} hosts{order}?", abort=True)
    return _run(verb, [*words, *(["--yes"] if yes or hosts.hosts else [])], root, hosts, format_, agreed)


def _run(
    verb: str,
    words: Sequence[str],
    root: Path,
    hosts: Where,
    format_: Format,
    agreed: Mapping[str, str] | None = None,
) -> int:
    from gpuyard.host.__main__ import execute
    from gpuyard.model.errors import UsageError

    if format_ not in (Format.TABLE, Format.JSON):
        raise UsageError(f"{verb} has no list to print as {format_.value}; use -f json")
    if hosts.hosts:
        return _remote(verb, words, _here(root, hosts), format_, agreed)
    return execute(["--root", str(root), verb, *(["--json"] if format_ is Format.JSON else []), *words])


def _here(root: Path, hosts: Where) -> Where:
    """Raises UsageError for a root of other hosts."""
    from gpuyard.model.errors import UsageError

    if root != DEFAULT_ROOT:
        raise UsageError("--root is for this machine, not for --ssh and --site")
    return hosts


def _remote(
    verb: str,
    words: Sequence[str],
    hosts: Where,
    format_: Format,
    agreed: Mapping[str, str] | None = None,
    plans: dict[str, str] | None = None,
) -> int:
    """`agreed`: host -> digest of the plan to carry out. `plans`: where the digests of the plans go."""
    from gpuyard.console.fleet_output import print_summary
    from gpuyard.host import fleet

    outcomes = _outcomes(verb, words, hosts, agreed)
    if plans is not None:
        plans.update(
            {host: outcome.result["digest"] for host, outcome in outcomes.items() if "digest" in outcome.result}
        )
    if format_ is Format.TABLE:
        for host, outcome in outcomes.items():
            if lines := _lines(outcome):
                print("\n".join([f"{host}:", *(f"  {line}" for line in lines), ""]))
    print_summary(outcomes, format_)
    return fleet.worst(outcomes)


def _outcomes(
    verb: str, words: Sequence[str], hosts: Where, agreed: Mapping[str, str] | None = None
) -> dict[str, Outcome]:
    from dataclasses import replace

    from gpuyard.console.fleet_output import FleetDisplay
    from gpuyard.host import fleet

    ssh = ("ssh",) if hosts.ssh_config is None else ("ssh", "-F", str(hosts.ssh_config))
    own: dict[str, list[str]] = {host: ["--expect", digest] for host, digest in (agreed or {}).items()}
    if hosts.gpus is not None and verb in ("plan", "apply"):
        for host, addresses in hosts.gpus.items():
            own.setdefault(host, []).extend(["--only", ",".join(addresses)])
    options = fleet.FleetOptions(ssh, hosts.python, hosts.sudo, AT_ONCE, seconds=SHORT)
    if verb in ("apply", "undo"):
        options = replace(options, seconds=LONG)
        if hosts.order is not None and "--dry-run" not in words:
            order = hosts.order
            options = replace(options, at_once=order.at_once, canary=order.canary, stop=order.stop)
    display = FleetDisplay(len(hosts.hosts))
    outcomes = fleet.run(hosts.hosts, [verb, "--json", *words], options, display, own=own)
    return {host: _with_the_site(outcome, hosts) for host, outcome in outcomes.items()}


def _with_the_site(outcome: Outcome, hosts: Where) -> Outcome:
    """What a host found out itself, and what differs from the site file: from its recording, from its pools."""
    import json
    from dataclasses import replace

    from gpuyard.host.checks.changed_since_recording import drift
    from gpuyard.host.commands import exit_code
    from gpuyard.host.recording import replay
    from gpuyard.model.finding import Finding, Severity

    recorded = (hosts.recorded or {}).get(outcome.host)
    if recorded is None or hosts.gpus is None or "recording" not in outcome.result:
        return outcome
    findings = drift(recorded, replay(json.dumps(outcome.result["recording"]), outcome.host))
    findings += [
        Finding(
            "site",
            Severity.ERROR,
            "",
            f"{address} is in a pool of the site and not prepared",
            "gpuyard host plan --site",
        )
        for address in hosts.gpus[outcome.host]
        if address not in outcome.result.get("given", ())
    ]
    result = {**outcome.result, "findings": [*outcome.result["findings"], *(finding.as_dict() for finding in findings)]}
    return replace(outcome, result=result, exit=exit_code(findings) or outcome.exit)


def _lines(outcome: Outcome) -> list[str]:
    """What a verb found out, as it would have printed it on the host."""
    from gpuyard.host.preparation import plan_text

    if "findings" in outcome.result:
        return [line for finding in _parsed(outcome) for line in finding.lines()]
    return plan_text.lines(outcome.result) if "steps" in outcome.result else []


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)
