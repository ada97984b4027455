"""``gpuyard host``: look at the GPUs of a hypervisor, and prepare it to give them to VMs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console import prepare
from gpuyard.console.options import CloudOption
from gpuyard.console.output import Format, print_yaml
from gpuyard.console.portal_options import UrlOption, client_of
from gpuyard.drain.cli import campaign, host_moves
from gpuyard.health.cli import maintenance

if TYPE_CHECKING:
    from gpuyard.host.tree import Tree
    from gpuyard.model.host import Inventory

app = typer.Typer(help="Look at a hypervisor's GPUs, and prepare it to give them to VMs.", no_args_is_help=True)

RootOption = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Folder that holds sys and proc, instead of this machine's own.")
]
RecordingOption = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Look at what 'gpuyard host record' wrote instead.")
]


@app.command()
def scan(
    root: RootOption = Path("/"),
    recording: RecordingOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All functions, not only GPUs and their groups.")] = False,
    format_: Annotated[Format, typer.Option("-f", "--format", help="table, json or yaml.")] = Format.TABLE,
) -> None:
    """Show GPUs by IOMMU group, and which of them can be given to a VM.

    Needs no lspci. With -f json everything that was seen, as docs/reference/inventory.schema.json describes it.
    """
    from gpuyard.host import report
    from gpuyard.host.preparation import pending
    from gpuyard.model.errors import UsageError
    from gpuyard.model.text import printable

    tree, inventory = look(root, recording)
    settings = pending.seen(tree, inventory)
    if format_ is Format.JSON:
        print(report.to_json(inventory, settings))
    elif format_ is Format.YAML:
        print_yaml(report.to_dict(inventory, settings))
    elif format_ is Format.TABLE:
        lines = report.lines(inventory, everything)
        lines += [*([""] if lines else []), *report.verdict_lines(inventory)]
        print("\n".join(map(printable, lines)))
        for setting in pending.needs_reboot(settings):
            print(f"needs a reboot: {setting.name}: {setting.state.value}")
    else:
        raise UsageError(f"a scan is no flat list and cannot be printed as {format_.value}; use -f json")


def look(root: Path, recording: Path | None) -> tuple[Tree, Inventory]:
    """The tree and the inventory of a machine, or of a recording of one."""
    from gpuyard.host.pci_ids import PciIds
    from gpuyard.host.recording import read_file, replay_tree
    from gpuyard.host.scan import scan as scan_tree
    from gpuyard.host.tree import open_tree

    if recording is not None:
        return replay_tree(read_file(recording), str(recording))
    tree = open_tree(str(root))
    return tree, scan_tree(tree, PciIds.of_this_machine())


@app.command()
def record(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to; - is standard output.")],
    root: RootOption = Path("/"),
    note: Annotated[
        str, typer.Option("--note", help="How this recording was made.")
    ] = "recorded on the machine itself",
    fact: Annotated[
        list[str] | None, typer.Option("--fact", metavar="KEY=VALUE", help="Replace a fact of the host; repeatable.")
    ] = None,
) -> None:
    """Write what a scan reads to one small file: for site.yaml, and to attach to a bug report.

    It holds PCI functions, IOMMU groups, the kernel command line, and which disks and network ports are in use.
    """
    from gpuyard.host import pci_ids, recording, tree
    from gpuyard.host.__main__ import parse_facts, write
    from gpuyard.model.errors import UsageError

    try:
        facts = parse_facts(fact or [])
        recorded = recording.record(tree.open_tree(str(root)), pci_ids.PciIds.of_this_machine(), note, facts)
        text = recording.dumps(recorded)
        write(text, str(output))
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    if warning := recording.missing_gpus(text):
        typer.echo(warning, err=True)


prepare.register(app)
host_moves.register(app)
app.add_typer(maintenance.app, name="maintenance")
app.add_typer(campaign.app, name="campaign")


@app.command()
def watch(
    url: Annotated[str, typer.Option("--url", help="The portal, as in https://gpus.example.org.")] = "",
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="What 'gpuyard host token' has printed.")
    ] = "",
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", metavar="FILE", help="Certificates to trust instead of the system's.")
    ] = None,
    name: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Of this host in the site file, if it is not its own.")
    ] = "",
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Between looks.")] = "10s",
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --once: print the look, and send nothing.")] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Print the systemd unit that does it.")] = False,
    root: RootOption = Path("/"),
) -> None:
    """Tell the portal, again and again, how this machine's GPUs are. Changes nothing.

    docs/how-to/watch-gpu-health.md says what is looked at, and how it runs as a service.
    """
    from gpuyard.host.watch_loop import WatchOptions, run, seconds

    run(WatchOptions(str(root), url, token_file, ca_file, name, seconds(every), once, json, unit))


class TokenPurpose(StrEnum):
    """What a host's token is good for."""

    WATCH = "watch"
    SCRUB = "scrub"


@app.command()
def token(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name in the site file.")],
    purpose: Annotated[
        TokenPurpose, typer.Option("--purpose", help="What the host does with it.")
    ] = TokenPurpose.WATCH,
    cloud: CloudOption = None,
    url: UrlOption = "",
) -> None:
    """Make a token with which a host says how its GPUs are, or fetches what it is to reset. For admins.

    It is printed this once, and the one that the host had for this is good no more.
    """
    print(client_of(cloud, url).host_token(host, purpose.value))


@app.command()
def scrub(
    url: Annotated[str, typer.Option("--url", help="The portal, as in https://gpus.example.org.")] = "",
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="Has the token of this host for this purpose.")
    ] = "",
    ca_file: Annotated[
        str | None, typer.Option("--ca-file", metavar="FILE", help="Certificates to trust instead of the system's.")
    ] = None,
    name: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Of this host in the site file, if it is not its own.")
    ] = "",
    once: Annotated[
        str, typer.Option("--once", metavar="ADDRESS", help="Reset and probe this GPU's group now, by hand.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="With --once: print the result as JSON.")] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Print the systemd unit that does it.")] = False,
) -> None:
    """Reset and probe GPUs between two servers, as the portal asks. Only what this host gives away and nobody has open.

    docs/how-to/watch-gpu-health.md says what that is worth, and how it runs as a service. Exit code 3: not clean.
    """
    from gpuyard.host.scrub_unit import ScrubOptions, run

    raise typer.Exit(run(ScrubOptions("/", url, token_file, ca_file, name, once, json, unit)))


@app.command()
def bundle(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to.")],
) -> None:
    """Write what runs on a hypervisor as one file, which Python 3.9 or newer starts: python3 FILE check.

    For Ansible, or for a host that ssh does not reach.
    """
    from gpuyard.host.bundle import write

    print(f"{output}: {write(output) // 1000} kB")
