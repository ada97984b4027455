"""``gpuyard host``: look at the GPUs of a hypervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.output import Format, print_yaml

app = typer.Typer(help="Look at a hypervisor's GPUs and IOMMU groups.", no_args_is_help=True)

RootOption = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Folder that holds sys and proc, instead of this machine's own.")
]


@app.command()
def scan(
    root: RootOption = Path("/"),
    recording: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Scan what 'gpuyard host record' wrote.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All functions, not only GPUs and their groups.")] = False,
    format_: Annotated[Format, typer.Option("-f", "--format", help="table, json or yaml.")] = Format.TABLE,
) -> None:
    """Show GPUs by IOMMU group, and which of them can be given to a VM.

    Needs no lspci. With -f json everything that was seen, as docs/reference/inventory.schema.json describes it.
    """
    from gpuyard.host import judge, pci_ids, report, tree
    from gpuyard.host.recording import replay_file
    from gpuyard.host.scan import scan as scan_tree
    from gpuyard.model.errors import UsageError

    if recording is not None:
        inventory = replay_file(recording)
    else:
        inventory = scan_tree(tree.FileTree(str(root)), pci_ids.PciIds.of_this_machine())
    if format_ is Format.JSON:
        print(report.to_json(inventory))
    elif format_ is Format.YAML:
        print_yaml(report.to_dict(inventory))
    elif format_ is Format.TABLE:
        slots = judge.judge(inventory)
        lines = report.lines(inventory, everything)
        print("\n".join([*lines, *([""] if lines else []), *report.verdict_lines(slots)]))
    else:
        raise UsageError(f"a scan is no flat list and cannot be printed as {format_.value}; use -f json")


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
        recorded = recording.record(tree.FileTree(str(root)), pci_ids.PciIds.of_this_machine(), note, facts)
        write(recording.dumps(recorded), str(output))
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
