"""``gpuyard image``: images of servers, from the site file to a checked disk."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, counts, print_findings
from gpuyard.console.options import DEFAULT_SITE, SiteOption
from gpuyard.images.cli import image_store
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Severity, worst

if TYPE_CHECKING:
    from gpuyard.images.planner import BuildPlan

app = typer.Typer(no_args_is_help=True, help="Build images of servers, check them, and bring them to Glance.")
DAY = "%Y-%m-%d"
FolderOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where images are.", show_default="images")
]
DEFAULT_FOLDER = Path("images")


@app.command()
def build(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image of the site file that has a 'build'.")],
    site: SiteOption = DEFAULT_SITE,
    output: FolderOption = DEFAULT_FOLDER,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="FOLDER", help="What later builds use again; ~/.cache/gpuyard/images."),
    ] = None,
    day: Annotated[
        datetime | None,
        typer.Option("--day", formats=[DAY], metavar="DAY", help="The day in its name; today, in UTC, when left out."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be built, and build nothing.")] = False,
) -> None:
    """Make a disk with diskimage-builder: IMAGE-DAY-DIGEST.qcow2, its manifest and its list of packages.

    The same definition and the same day make the same name, and what is there already is not built again.
    """
    from gpuyard.images.build import build_image

    planned = _planned(image, site, (day or datetime.now(UTC)).date())
    if plan:
        print(f"{planned.name}: {' '.join(planned.elements)}")
        return
    made = build_image(
        planned, output, cache or _cache(), lambda what: print(f"{planned.name}: {what}", flush=True), site.parent
    )
    print(
        f"{output / made.disk.file}: {made.disk.bytes / 2**20:.0f} MiB, {made.min_disk_gib} GiB as a disk, "
        f"{made.packages} packages, kernel {', '.join(made.kernels) or 'none'}"
    )


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The image, a qcow2 file, with its manifest beside it.")],
    uefi: Annotated[bool, typer.Option("--uefi", help="Boot it by UEFI, as with hw_firmware_type=uefi.")] = False,
    kvm: Annotated[bool, typer.Option("--kvm", help="With the help of the processor, where that works.")] = False,
    minutes: Annotated[int, typer.Option("--minutes", min=1, max=240, help="Give up after so long.")] = 15,
    console: Annotated[
        Path | None, typer.Option("--console", metavar="FILE", help="Keep what the server says on its console.")
    ] = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
) -> None:
    """Boot an image in QEMU with the config drive of a server, and say whether all works in there.

    It boots, cloud-init does what it is told, the root file system grows, lspci sees a device, and what the image was
    built with is there and runs. Ends with 3 when something does not. What it found is kept beside the image.
    """
    import secrets
    from uuid import uuid4

    from gpuyard.images.check import check_image, keep_verdict
    from gpuyard.images.checking import in_order
    from gpuyard.images.manifest import read_manifest

    if not file.is_file():
        raise UsageError(f"{file}: no such file; name one that 'gpuyard image build' made")
    made = read_manifest(file.with_suffix(".json"))
    findings = in_order(
        check_image(
            file,
            made.virtual_bytes,
            made.build,
            module=made.module,
            nonce=secrets.token_hex(8),
            uuid=str(uuid4()),
            uefi=uefi or made.build.base.architecture == "arm64",
            kvm=kvm,
            within=minutes * 60,
            console=console,
        )
    )
    keep_verdict(file, findings, datetime.now(UTC))
    print_findings(findings, "image-check", format_)
    if worst(findings).rank <= Severity.ERROR.rank:
        raise BlockedError(f"{file.name}: {counts(findings, Severity.ERROR, Severity.WARNING)}")


def _planned(image: str, site: Path, day: date) -> BuildPlan:
    """Raises UsageError for an image that the site file does not build."""
    from gpuyard.images.element_files import elements_beside, own_elements
    from gpuyard.images.planner import plan_build
    from gpuyard.site.image_problems import image_models
    from gpuyard.site.load import load_site

    loaded = load_site(site).site
    definition = image_store.image_of(loaded, image, site).build
    assert definition is not None
    return plan_build(
        image,
        definition,
        {**elements_beside(site.parent / "elements"), **own_elements()},
        day,
        image_models(loaded, definition),
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard" / "images"


image_store.register(app)
