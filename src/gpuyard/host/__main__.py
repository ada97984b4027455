"""The command line on a hypervisor, ``python3 -m gpuyard.host``, with Python 3.9 and nothing else.

Each verb imports what it needs: the file that goes to hosts has no bytecode, so that there every module is compiled at
each call.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Dict, List, Optional

from gpuyard.host.commands import VERBS, CommandOptions
from gpuyard.host.commands import run as run_verb
from gpuyard.host.tree import Tree, open_tree
from gpuyard.model.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.host.scrub_unit import ScrubOptions
    from gpuyard.host.watch_loop import WatchOptions

INTERRUPTED = 130
HELP = {
    "check": "say what is right, what is wrong and why",
    "plan": "show what apply would change",
    "apply": "change it",
    "verify": "prove that VMs can have the GPUs",
    "undo": "bring the machine back to what it was",
    "look": "say how far the machine is on its way to a host of a cloud",
    "reboot": "reboot it, if it is in that boot still",
}


def main(arguments: Optional[List[str]] = None) -> int:
    try:
        return execute(sys.argv[1:] if arguments is None else arguments)
    except GpuyardError as error:
        print(f"gpuyard-host: {error}", file=sys.stderr)
        return error.exit_code
    except (ValueError, OSError) as error:
        print(f"gpuyard-host: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpuyard-host: interrupted; the same command again does what is left", file=sys.stderr)
        return INTERRUPTED


def execute(arguments: List[str]) -> int:
    """Do what a command line says; the exit code. Raises GpuyardError, ValueError, OSError."""
    options = _parser().parse_args(arguments)
    tree = open_tree(options.root)
    if options.verb == "scan":
        _scan(tree, options.json)
    elif options.verb == "record":
        _record(tree, options)
    elif options.verb == "watch":
        from gpuyard.host.watch_loop import run as run_watch

        return run_watch(_watch_options(options))
    elif options.verb == "scrub":
        from gpuyard.host.scrub_unit import run as run_scrub

        return run_scrub(_scrub_options(options))
    else:
        return run_verb(options.verb, _options(options))
    return 0


def _scan(tree: Tree, in_one_line: bool) -> None:
    from gpuyard.host import report
    from gpuyard.host.pci_ids import PciIds
    from gpuyard.host.preparation import pending
    from gpuyard.host.scan import scan

    inventory = scan(tree, PciIds.of_this_machine())
    document = report.to_dict(inventory, pending.seen(tree, inventory))
    result = {"event": "result", "verb": "scan", "exit": 0, "inventory": document}
    print(json.dumps(result) if in_one_line else json.dumps(document, indent=1))


def _record(tree: Tree, options: argparse.Namespace) -> None:
    from gpuyard.host.pci_ids import PciIds
    from gpuyard.host.recording import dumps, missing_gpus, record

    text = dumps(record(tree, PciIds.of_this_machine(), options.note, parse_facts(options.fact)))
    write(text, options.output)
    if warning := missing_gpus(text):
        print(warning, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuyard-host", description="Prepare this machine to give its GPUs to VMs.")
    parser.add_argument("--root", default="/", metavar="DIR", help="folder that holds sys, proc and etc (default: /)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    scanner = verbs.add_parser("scan", help="print the inventory and the slots as JSON")
    scanner.add_argument("--json", action="store_true", help="in one line, as the other verbs do")
    recorder = verbs.add_parser("record", help="write what a scan reads to one file")
    recorder.add_argument("-o", "--output", default="-", metavar="FILE", help="default: standard output")
    recorder.add_argument("--note", default="recorded on the machine itself", help="how this recording was made")
    recorder.add_argument("--fact", action="append", default=[], metavar="KEY=VALUE", help="replace a host fact")
    _watch_parser(verbs.add_parser("watch", help="tell the portal, again and again, how the GPUs are"))
    _scrub_parser(verbs.add_parser("scrub", help="reset and probe GPUs between two servers, as the portal asks"))
    for verb in VERBS:
        _verb_options(verb, verbs.add_parser(verb, help=HELP[verb]))
    return parser


def _watch_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="", help="the portal, as in https://gpus.example.org")
    parser.add_argument("--token-file", default="", metavar="FILE", help="file with this host's token")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("--host", default="", metavar="NAME", help="of this host in the site file (default: its own)")
    parser.add_argument("--every", default="10s", metavar="TIME", help="between looks (default: 10s)")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--json", action="store_true", help="with --once: print the look, and send nothing")
    parser.add_argument("--unit", action="store_true", help="print the systemd unit that does it")


def _watch_options(parsed: argparse.Namespace) -> WatchOptions:
    from gpuyard.host.watch_loop import WatchOptions, seconds

    return WatchOptions(
        root=parsed.root,
        url=parsed.url,
        token_file=parsed.token_file,
        ca_file=parsed.ca_file,
        host=parsed.host,
        every=seconds(parsed.every),
        once=parsed.once,
        json=parsed.json,
        unit=parsed.unit,
    )


def _scrub_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="", help="the portal, as in https://gpus.example.org")
    parser.add_argument("--token-file", default="", metavar="FILE", help="has the token of this host for this purpose")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("--host", default="", metavar="NAME", help="of this host in the site file (default: its own)")
    parser.add_argument("--once", default="", metavar="ADDRESS", help="reset and probe this GPU's group now, by hand")
    parser.add_argument("--json", action="store_true", help="with --once: print the result as JSON")
    parser.add_argument("--unit", action="store_true", help="print the systemd unit that does it")


def _scrub_options(parsed: argparse.Namespace) -> ScrubOptions:
    from gpuyard.host.scrub_unit import ScrubOptions

    return ScrubOptions(
        root=parsed.root,
        url=parsed.url,
        token_file=parsed.token_file,
        ca_file=parsed.ca_file,
        host=parsed.host,
        once=parsed.once,
        json=parsed.json,
        unit=parsed.unit,
    )


def _verb_options(verb: str, parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line, the result last")
    if verb in ("plan", "apply", "look"):
        for name, text in (("keep", "leave this GPU to the host"), ("give", "give this GPU away again")):
            parser.add_argument(f"--{name}", action="append", default=[], metavar="ADDRESS", help=text)
        parser.add_argument("--only", metavar="ADDRESS,...", help="the GPUs to give away, instead of all that can be")
        for name, text in (
            ("iommu-pt", "the host's own devices reach memory without translation (iommu=pt)"),
            ("unsafe-interrupts", "let VFIO go on without interrupt remapping"),
            ("replace-legacy", "leave out ids= options and others that are in the way"),
        ):
            parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
        parser.add_argument("--all", action="store_true", help="forget --keep, --give and --only of earlier calls")
    if verb in ("check", "plan"):
        parser.add_argument("--from", dest="source", metavar="FILE", help="look at what 'record' wrote instead")
    if verb in ("plan", "apply", "undo", "look"):
        text = "change drivers while the machine runs, or at the next boot only"
        parser.add_argument("--live", action=argparse.BooleanOptionalAction, default=None, help=text)
    if verb in ("apply", "undo"):
        parser.add_argument("--expect", metavar="DIGEST", help="do nothing if the plan has not this digest")
        parser.add_argument("--yes", action="store_true", help="do not ask")
    if verb == "verify":
        parser.add_argument("--against", metavar="FILE", help="compare with what 'record' wrote before")
        parser.add_argument("--recording", action="store_true", help="with --json: give a recording of the host along")
    if verb == "reboot":
        parser.add_argument("--boot-id", default="", metavar="ID", help="as 'look' shows it")
    if verb == "undo":
        parser.add_argument("--dry-run", action="store_true", help="only show what would be done")


def options_of(arguments: List[str]) -> CommandOptions:
    """What a command line of one of VERBS says. Raises UsageError for a root that is none of a machine."""
    parsed = _parser().parse_args(arguments)
    open_tree(parsed.root)
    return _options(parsed)


def _options(parsed: argparse.Namespace) -> CommandOptions:
    """The verbs have different options; those that one does not have are left as they are."""
    arguments = vars(parsed)
    only, against, source = arguments.get("only"), arguments.get("against"), arguments.get("source")
    return CommandOptions(
        root=parsed.root,
        json=parsed.json,
        yes=arguments.get("yes", False),
        live=arguments.get("live"),
        keep=tuple(arguments.get("keep", ())),
        give=tuple(arguments.get("give", ())),
        only=None if only is None else tuple(filter(None, only.split(","))),
        everything=arguments.get("all", False),
        expect=arguments.get("expect"),
        identity=arguments.get("iommu_pt"),
        unsafe_interrupts=arguments.get("unsafe_interrupts"),
        replace_legacy=arguments.get("replace_legacy"),
        recording=arguments.get("recording", False),
        dry_run=arguments.get("dry_run", False),
        boot_id=arguments.get("boot_id", ""),
        recorded=None if against is None else _text(against),
        source=None if source is None else _text(source),
    )


def _text(recording: str) -> str:
    from gpuyard.host.recording import read_file

    return read_file(PurePath(recording))


def parse_facts(pairs: List[str]) -> Dict[str, object]:
    """``["cpus=48"]`` -> ``{"cpus": 48}``. Raises ValueError with the reason."""
    from gpuyard.host.recording import check_facts

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
