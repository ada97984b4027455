"""``python3 -m gpuyard.host``: scan, judge and record on a hypervisor that has Python 3.9 and nothing else."""

from __future__ import annotations

import argparse
import sys
from typing import Dict, List, Optional

from gpuyard.host import report
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.recording import check_facts, dumps, record
from gpuyard.host.scan import scan
from gpuyard.host.tree import FileTree
from gpuyard.model.errors import GpuyardError


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="gpuyard-host", description="Look at the GPUs of this machine.")
    parser.add_argument("--root", default="/", metavar="DIR", help="folder that holds sys and proc (default: /)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="scan|record")
    verbs.add_parser("scan", help="print the inventory and the slots as JSON")
    recorder = verbs.add_parser("record", help="write what a scan reads to one file")
    recorder.add_argument("-o", "--output", default="-", metavar="FILE", help="default: standard output")
    recorder.add_argument("--note", default="recorded on the machine itself", help="how this recording was made")
    recorder.add_argument("--fact", action="append", default=[], metavar="KEY=VALUE", help="replace a host fact")
    options = parser.parse_args(arguments)
    tree, names = FileTree(options.root), PciIds.of_this_machine()
    try:
        if options.verb == "scan":
            print(report.to_json(scan(tree, names)))
        else:
            write(dumps(record(tree, names, options.note, parse_facts(options.fact))), options.output)
    except (GpuyardError, ValueError, OSError) as error:
        print(f"gpuyard-host: {error}", file=sys.stderr)
        return 1
    return 0


def parse_facts(pairs: List[str]) -> Dict[str, object]:
    """``["cpus=48"]`` -> ``{"cpus": 48}``. Raises ValueError with the reason."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--fact {pair}: write KEY=VALUE")
    return check_facts(dict(pair.split("=", 1) for pair in pairs))


def write(text: str, output: str) -> None:
    if output == "-":
        sys.stdout.write(text)
    else:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(main())
