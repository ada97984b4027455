"""``gpuyard site adopt``: a site file for a cloud that was set up by hand."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpuyard.console.findings import FindingFormat, print_findings
from gpuyard.console.options import CloudOption
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding

if TYPE_CHECKING:
    from gpuyard.diagnosis.adopt.model import Adoption, CloudFacts
    from gpuyard.nova.config import ConfigFile
    from gpuyard.openstack.api import CloudApi
    from gpuyard.site.compile import CompiledSite
    from gpuyard.site.objects import SeenObjects
    from gpuyard.site.steps import SitePlan

T = TypeVar("T")
STDOUT = Path("-")
NAMED = re.compile(r"^(?P<host>[^/=]+)=(?P<file>.+)$")


def adopt(
    nova_conf: Annotated[
        list[str],
        typer.Option(
            "--nova-conf",
            metavar="[HOST=]FILE",
            help="nova-api's nova.conf, and HOST=FILE for that of a hypervisor's nova-compute; repeatable.",
        ),
    ],
    recording: Annotated[
        list[str],
        typer.Option(
            "--recording",
            metavar="[HOST=]FILE",
            help="What 'gpuyard host record' wrote; HOST= where nova-compute has another name. Repeatable.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The site file to write; - for standard output.")
    ],
    cloud: CloudOption = None,
    release: Annotated[
        str | None,
        typer.Option(
            "--release", metavar="RELEASE", help="The cloud's OpenStack release; asked of Nova when left out."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="SITE", help="Name of the site; the cloud's when left out.")
    ] = None,
    all_flavors: Annotated[bool, typer.Option("--all-flavors", help="Also flavors that ask for no GPU.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the site file.")] = False,
    format_: Annotated[
        FindingFormat, typer.Option("-f", "--format", help="Format of the report.")
    ] = FindingFormat.TEXT,
) -> None:
    """Write a site file for a cloud that was set up by hand. Changes nothing in the cloud.

    Flavors, nova.conf and recorded hosts become a site that plans to nothing. The command tries that, and ends with 3
    when a plan would change something. Without a cloud the files alone become a site, and its flavors are missing.
    """
    from gpuyard.diagnosis.adopt.config import hand_made, read_config
    from gpuyard.diagnosis.adopt.model import AdoptOptions
    from gpuyard.diagnosis.adopt.planner import adopt as make_site
    from gpuyard.diagnosis.adopt.recordings import read_recordings
    from gpuyard.nova.release import release_of

    _check_place(output, force)
    files = read_config(map(named, nova_conf))
    api, objects, facts = _cloud(cloud)
    recorded = read_recordings(map(named, recording), objects.hosts if api else None)
    inventories = {item.host: item.inventory for item in recorded}
    config = hand_made(with_service_names(files, inventories), inventories)
    wishes = AdoptOptions(
        site=_site_name(name, api),
        release=release_of(release, facts.microversion),
        recordings={item.host: _relative(item.path, output) for item in recorded},
        all_flavors=all_flavors,
    )
    adoption = make_site(objects, facts, inventories, config, wishes)
    compiled = _write(adoption, output, force)
    with redirect_stdout(sys.stderr if output == STDOUT else sys.stdout):
        _print(adoption.report, format_)
        if api is None:
            print(f"{output}: written of the files alone; with --os-cloud its flavors and limits come along too.")
        else:
            _conclude(_plan(api, compiled), output)


def _cloud(cloud: str | None) -> tuple[CloudApi | None, SeenObjects, CloudFacts]:
    """What is seen of the cloud that is named, here or in the environment; nothing where none is."""
    from gpuyard.diagnosis.adopt.model import CloudFacts
    from gpuyard.site.objects import SeenObjects

    if not cloud and not os.environ.get("OS_AUTH_URL"):
        return None, SeenObjects(flavors=(), limits=(), projects={}), CloudFacts()
    from gpuyard.diagnosis.adopt.read import read_facts
    from gpuyard.openstack.api import connect
    from gpuyard.provisioning.read import read_objects

    api = connect(cloud)
    objects = read_objects(api)
    return api, objects, read_facts(api, objects)


def named(text: str) -> tuple[str | None, Path]:
    """``HOST=FILE``, or ``FILE`` alone."""
    match = NAMED.match(text)
    return (match["host"], Path(match["file"])) if match else (None, Path(text))


def _check_place(output: Path, force: bool) -> None:
    """Before anything else is done: whether the file can be written."""
    if output == STDOUT:
        return
    if output.exists() and not force:
        raise UsageError(f"{output} exists; write to another file, or overwrite it with --force")
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is not a folder; make it, or write elsewhere")


def with_service_names(files: Sequence[ConfigFile], hosts: Mapping[str, object]) -> list[ConfigFile]:
    """The files of hosts under the names that Nova has for them. Raises UsageError for a host without a recording."""
    from dataclasses import replace

    from gpuyard.diagnosis.adopt.recordings import service_name

    renamed = []
    for file in files:
        host = None if file.host is None else service_name(file.host, list(hosts))
        if host is not None and host not in hosts:
            raise UsageError(
                f"--nova-conf {file.host}={file.path}: no recording of {file.host}; there are {', '.join(hosts)}; "
                "a path that has an = in it begins with ./"
            )
        renamed.append(replace(file, host=host))
    return renamed


def _site_name(name: str | None, api: CloudApi | None) -> str:
    """What was asked for, which load_site judges, or something like the cloud's name."""
    return name or re.sub(r"[^A-Za-z0-9_-]+", "-", api.name if api else "").strip("-_")[:60] or "cloud"


def _relative(path: Path, output: Path) -> str:
    """A recording as the site file names it."""
    return os.path.relpath(path, output.parent)


def _write(adoption: Adoption, output: Path, force: bool) -> CompiledSite:
    """Write the file, and what was compiled of it; for standard output, of the same document."""
    from gpuyard.diagnosis.adopt.document import render
    from gpuyard.site.load import load_site

    header = (
        f"Site {adoption.compiled.site.site}, made by 'gpuyard site adopt' from a cloud that was set up by hand.",
        "It describes the cloud as it was found, so 'gpuyard site plan' shows nothing. Read it before you change it.",
    )
    text = render(adoption.document, adoption.comments, header)
    if output == STDOUT:
        print(text, end="")
        return adoption.compiled
    return save(text, output, force, load_site).compiled


def _plan(api: CloudApi, compiled: CompiledSite) -> SitePlan:
    from gpuyard.provisioning.read import read_objects
    from gpuyard.site.plan import plan_site

    return plan_site(compiled, read_objects(api, compiled))


def save(text: str, path: Path, force: bool, check: Callable[[Path], T]) -> T:
    """Write a file beside its place, check it there, and put it into place; what the check returned.

    The file appears whole or not at all, and never over another one without `force`. Raises UsageError when it cannot
    be written, and what the check raises.
    """
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; write elsewhere") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        checked = check(Path(draft))
        os.chmod(draft, 0o644)
        if path.exists() and not force:
            raise UsageError(f"{path} exists; write to another file, or overwrite it with --force")
        os.replace(draft, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; write elsewhere") from None
    finally:
        Path(draft).unlink(missing_ok=True)
    return checked


def _print(report: Sequence[Finding], format_: FindingFormat) -> None:
    from gpuyard.diagnosis.adopt.report import SECTIONS

    if format_ is not FindingFormat.TEXT:
        print_findings(report, "adopt", format_)
        return
    for code, title in SECTIONS.items():
        lines = [finding.reason for finding in report if finding.code == code]
        if lines:
            print(f"{title}:")
            for number, line in enumerate(lines, start=1):
                print(f"  {number}. {line}" if code == "next-step" else f"  - {line}")


def _conclude(plan: SitePlan, output: Path) -> None:
    """Say whether the file plans to nothing. Raises BlockedError when it does not."""
    name = "standard output" if output == STDOUT else str(output)
    for note in plan.notes:
        print(f"note: {note}")
    if not plan.steps and not plan.refusals and not plan.waits:
        print(f"{name}: written, and it plans to nothing.")
        return
    lines = [*(f"- {step} ({step.reason})" for step in plan.steps)]
    lines += [f"- {text}" for text in (*plan.waits, *plan.refusals)]
    raise BlockedError("\n".join([f"{name}: written, and a plan of it would change something:", *lines]))
