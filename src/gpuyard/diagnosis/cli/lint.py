"""``gpuyard site lint``: what would go wrong with GPUs in a nova.conf."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, counts, print_findings
from gpuyard.console.output import ColumnOption
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity, worst
from gpuyard.nova.release import NEWEST

if TYPE_CHECKING:
    from gpuyard.diagnosis.lint.model import FlavorText
    from gpuyard.model.host import Inventory


class Service(StrEnum):
    COMPUTE = "nova-compute"
    API = "nova-api"
    SCHEDULER = "nova-scheduler"
    CONDUCTOR = "nova-conductor"


def lint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="nova.conf files, or folders with them.")],
    service: Annotated[
        Service | None,
        typer.Option("--service", help="The service that reads the files, where their names do not say."),
    ] = None,
    release: Annotated[
        str, typer.Option("--release", metavar="RELEASE", help="The cloud's OpenStack release.")
    ] = NEWEST,
    recordings: Annotated[
        list[str] | None,
        typer.Option(
            "--recording",
            metavar="[HOST=]FILE",
            help="A recorded host that the files are for; HOST= where the files have another name. Repeatable.",
        ),
    ] = None,
    flavors: Annotated[
        str | None,
        typer.Option("--flavors", metavar="FILE", help="Output of 'openstack flavor list --all --long -f json', or -."),
    ] = None,
    cloud: Annotated[
        str | None, typer.Option("--os-cloud", metavar="CLOUD", help="Read the flavors of this cloud of clouds.yaml.")
    ] = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Say what would go wrong with GPUs in any nova.conf: with file, line, reason and fix."""
    from gpuyard.diagnosis.lint import lint as find
    from gpuyard.diagnosis.lint import subject_of
    from gpuyard.nova.release import RELEASES

    if release not in RELEASES:
        raise UsageError(f"release {release!r} is not known; write one of {', '.join(RELEASES)}")
    read, origin = _flavors(flavors, cloud)
    recorded = _recorded(recordings or [])
    subject, unused = subject_of(_texts(files), RELEASES[release], service, recorded, read, origin, str(Path.cwd()))
    if unused:
        raise UsageError(
            f"no file is for the host of {', '.join(unused)}: the files are for other hosts (nova/HOST/nova.conf) or "
            "services, or several recordings were given and no file names this host"
        )
    findings = find(subject)
    _show(findings, len(subject.files), format_, columns)
    if worst(findings).rank <= Severity.WARNING.rank:
        raise BlockedError(counts(findings, Severity.ERROR, Severity.WARNING))


def _show(findings: Sequence[Finding], files: int, format_: FindingFormat, columns: Sequence[str] | None) -> None:
    print_findings(findings, "lint", format_, columns, payload=("file", "line"))
    if format_ is not FindingFormat.TEXT or columns:
        return
    where = f"{files} file{'' if files == 1 else 's'}"
    if not findings:
        print(f"Nothing found in {where}.")
    elif worst(findings) is Severity.NOTE:
        print(f"{len(findings)} note{'' if len(findings) == 1 else 's'}, no errors and no warnings in {where}.")


def _texts(paths: Sequence[Path]) -> dict[str, str]:
    """The text of each file. Raises UsageError for one that cannot be read, or for a folder without any."""
    texts: dict[str, str] = {}
    for path in paths:
        for file in _files(path):
            texts[str(file)] = _text(file)
    return texts


def _files(path: Path) -> Iterator[Path]:
    from gpuyard.diagnosis.lint.layout import concerns_nova

    if not path.is_dir():
        yield path
        return
    try:
        files = sorted(file for file in path.rglob("*.conf") if file.is_file())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    ours = [file for file in files if concerns_nova(str(file.absolute()))]
    if not files:
        raise UsageError(f"{path}: no *.conf in this folder, nor in folders below it; name a file")
    yield from ours or files


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}:{line}: not UTF-8 text; is it a configuration file?") from None
    if "\0" in text:
        raise UsageError(f"{file}: has zero bytes; is it a configuration file?")
    return text


def _recorded(texts: Sequence[str]) -> dict[str, Inventory]:
    """Recordings by the name that was given, or by the file's. Raises UsageError for a name that comes twice."""
    from gpuyard.diagnosis.cli.adopt import named
    from gpuyard.host.recording import replay_file

    inventories: dict[str, Inventory] = {}
    for text in texts:
        host, path = named(text)
        name = host or str(path)
        if name in inventories:
            raise UsageError(f"--recording {text}: {name} is given twice; give one recording for each host")
        inventories[name] = replay_file(path)
    return inventories


def _flavors(source: str | None, cloud: str | None) -> tuple[tuple[FlavorText, ...], str]:
    """Flavors and where they are from."""
    from gpuyard.diagnosis.lint.flavor_checks import read_flavors

    if source is not None and cloud is not None:
        raise UsageError("--flavors and --os-cloud both name flavors; give one of them")
    if cloud is not None:
        return _flavors_of_cloud(cloud), f"cloud {cloud}"
    if source is None:
        return (), "flavors"
    text = sys.stdin.read() if source == "-" else _text(Path(source))
    name = "standard input" if source == "-" else source
    return read_flavors(text, name), name


def _flavors_of_cloud(cloud: str) -> tuple[FlavorText, ...]:
    from gpuyard.diagnosis.lint.model import FlavorText
    from gpuyard.openstack.api import connect
    from gpuyard.provisioning.read import read_objects

    objects = read_objects(connect(cloud))
    return tuple(FlavorText(item.flavor.name, dict(item.flavor.extra_specs)) for item in objects.flavors)
