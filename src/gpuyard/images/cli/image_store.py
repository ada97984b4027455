"""``gpuyard image upload``, ``promote``, ``list`` and ``prune``: builds of images in Glance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import ColumnOption, Format, FormatOption, print_list
from gpuyard.console.prompts import confirmed
from gpuyard.images.cli import image_audit
from gpuyard.images.cli.image_audit import BILLS, BillsOption, audit
from gpuyard.model.errors import BlockedError, UsageError

if TYPE_CHECKING:
    from gpuyard.images.publishing import PruneVerdict, StoredImage
    from gpuyard.site.schema import Image, Site

COLUMNS = ("Image", "Build", "Promoted", "Status", "Visibility", "Created", "MiB", "Driver", "Driver Ends", "ID")
BuildArgument = Annotated[str, typer.Argument(metavar="BUILD", help="The name of a build: IMAGE-DAY-DIGEST.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def register(app: typer.Typer) -> None:
    """Add the commands to a group."""
    app.command()(upload)
    app.command()(promote)
    app.command("list")(list_)
    app.command()(prune)
    app.command()(audit)


def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The image, a qcow2 file, with its manifest beside it.")],
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Also when 'image check' did not find it good.")
    ] = False,
) -> None:
    """Bring a build to Glance under its own name, with the properties and the visibility of the site file.

    Nobody gets it before 'gpuyard image promote'. What is there already is not brought again.
    """
    from gpuyard.images.build import digest_of
    from gpuyard.images.glance import GlanceShelf
    from gpuyard.images.manifest import check_path, read_check, read_manifest
    from gpuyard.images.publishing import record_of
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    made = read_manifest(file.with_suffix(".json"))
    image = image_of(load_site(site).site, made.built.image, site)
    assert image.build is not None
    if not file.is_file() or digest_of(file) != made.disk.sha256:
        raise BlockedError(f"{file}: not the disk that its manifest is about; build it again")
    checked = read_check(check_path(file))
    if not unchecked:
        if checked is None or checked.sha256 != made.disk.sha256:
            raise BlockedError(f"{file.name} was not checked; run 'gpuyard image check {file}', or say --unchecked")
        if checked.errors:
            raise BlockedError(f"{file.name} is not good: {'; '.join(checked.errors)}; or say --unchecked")
    record = record_of(made, image.wanted_properties, image.build.visibility)
    shelf = GlanceShelf(connect(cloud))
    identity = shelf.upload(record, file, print)
    shelf.share(identity, image.build.members)
    print(f"{made.name} is in Glance, as {identity}; servers get it after: gpuyard image promote {made.name}")


def promote(build: BuildArgument, cloud: CloudOption = None) -> None:
    """Give a build the name of its image: servers that ask for the image get this build from now on.

    The build that had the name gets its own name back, and servers that were made of it stay as they are. To go back,
    promote the earlier build.
    """
    from gpuyard.images.glance import GlanceShelf
    from gpuyard.images.naming import parse_built_name
    from gpuyard.images.publishing import plan_promotion
    from gpuyard.openstack.api import connect

    parts = parse_built_name(build)
    if parts is None:
        raise UsageError(f"{build!r} is not the name of a build: IMAGE-DAY-DIGEST, as 'gpuyard image list' has them")
    shelf = GlanceShelf(connect(cloud))
    steps = plan_promotion(build, shelf.builds(parts.image), shelf.others_named(parts.image))
    for step in steps:
        print(f"{step.id}: {step.before} -> {step.after}")
        shelf.rename(step)
    print(f"{parts.image} is {build}")


def list_(
    image: Annotated[str | None, typer.Argument(metavar="[IMAGE]", help="Only builds of this image.")] = None,
    cloud: CloudOption = None,
    format_: FormatOption = Format.TABLE,
    columns: ColumnOption = None,
) -> None:
    """List the builds that are in Glance, and before which day NVIDIA's support of their driver ends."""
    from gpuyard.images.driver_end_dates import end_of
    from gpuyard.images.glance import GlanceShelf
    from gpuyard.openstack.api import connect

    rows: list[dict[str, Any]] = [
        {
            "Image": stored.image,
            "Build": stored.build,
            "Promoted": stored.promoted,
            "Status": stored.status,
            "Visibility": stored.visibility,
            "Created": stored.created,
            "MiB": stored.bytes >> 20,
            "Driver": stored.driver,
            "Driver Ends": str(end_of(stored.driver)) if stored.driver else "",
            "ID": stored.id,
        }
        for stored in sorted(
            GlanceShelf(connect(cloud)).builds(image), key=lambda stored: (stored.image, stored.build, stored.created)
        )
    ]
    print_list(rows, COLUMNS, format_, columns)


def prune(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image of the site file that has a 'build'.")],
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, max=100, help="The newest that stay; as the site file says.")
    ] = None,
    aged: Annotated[
        bool, typer.Option("--aged", help="Being new keeps none of which 'image audit' has a warning.")
    ] = False,
    output: BillsOption = BILLS,
    yes: YesOption = False,
) -> None:
    """Delete builds that nobody needs: not the promoted one, none that a server was made of, and not the newest."""
    from gpuyard.images.glance import GlanceShelf
    from gpuyard.images.publishing import plan_pruning
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    loaded = load_site(site).site
    build = image_of(loaded, image, site).build
    assert build is not None
    shelf = GlanceShelf(connect(cloud))
    keep_count = build.keep if keep is None else keep
    builds = shelf.builds(image)
    old = image_audit.aged(builds, output) if aged else ()

    def judged(builds: Sequence[StoredImage]) -> list[PruneVerdict]:
        return plan_pruning(builds, keep_count, shelf.users(), _named(loaded), old)

    verdicts = judged(builds)
    going = [verdict.stored for verdict in verdicts if not verdict.kept]
    print(*map(_line, verdicts), sep="\n", end="\n" if verdicts else "")
    if not going:
        print("Nothing is deleted.")
        return
    if not yes and not confirmed(f"Delete {len(going)} of {len(verdicts)} builds?"):
        print("Nothing is deleted.")
        raise typer.Exit(1)
    still = {
        verdict.stored for verdict in judged(shelf.builds(image)) if not verdict.kept
    }  # the question may have waited for long
    for stored in going:
        if stored not in still:
            print(f"{stored.build} stays: it has changed meanwhile, or something uses it now")
            continue
        shelf.delete(stored)
        print(f"{stored.build} is deleted")


def _line(verdict: PruneVerdict) -> str:
    return f"{verdict.stored.build}: {f'stays: {verdict.kept}' if verdict.kept else 'goes'}"


def image_of(site: Site, name: str, file: Path) -> Image:
    """An image that the site builds. `file`: where the site is, for the error. Raises UsageError."""
    images = site.images
    built = [image_name for image_name, image in images.items() if image.build is not None]
    if name not in built:
        hint = f"it builds {', '.join(built)}" if built else "no image there has one"
        raise UsageError(f"{file}: there is no image {name!r} with a 'build'; {hint}")
    return images[name]


def _named(site: Site) -> Collection[str]:
    """Names by which the site asks for images."""
    names: set[str] = set()
    if site.runners is not None:
        names |= set(site.runners.allowed.images)
        for scale_set in site.runners.sets.values():
            names |= set(scale_set.images)
    if site.health is not None and site.health.acceptance is not None and site.health.acceptance.image is not None:
        names.add(site.health.acceptance.image)
    return names
