"""``gpuyard host``: look at the GPUs of a hypervisor, and prepare it to give them to VMs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import prepare
from gpuyard.cli.output import Format, print_yaml

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
        write(recording.dumps(recorded), str(output))
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None


prepare.register(app)


@app.command()
def bundle(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to.")],
) -> None:
    """Write what runs on a hypervisor as one file, which Python 3.9 or newer starts: python3 FILE check.

    For Ansible, or for a host that ssh does not reach.
    """
    from gpuyard.host.bundle import write

    print(f"{output}: {write(output) // 1000} kB")
