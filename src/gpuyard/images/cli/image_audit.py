"""``gpuyard image audit``: what has become of builds since they were made."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, print_findings
from gpuyard.console.options import CloudOption
from gpuyard.model.finding import Finding, Severity

if TYPE_CHECKING:
    from gpuyard.images.publishing import StoredImage

BillsOption = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Where 'image build' left lists of packages.", show_default="images"
    ),
]
BILLS = Path("images")


def audit(
    image: Annotated[str | None, typer.Argument(metavar="[IMAGE]", help="Only builds of this image.")] = None,
    output: BillsOption = BILLS,
    cloud: CloudOption = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
) -> None:
    """Say of the builds in Glance whether their driver's branch has ended, and which packages have security updates.

    Packages are compared with what the distribution's archive of security updates has now.
    """
    from gpuyard.images.glance import GlanceShelf
    from gpuyard.openstack.api import connect

    builds = sorted(GlanceShelf(connect(cloud)).builds(image), key=lambda stored: stored.build)
    print_findings(findings_of(builds, output), "image-audit", format_)


def aged(builds: Iterable[StoredImage], bills: Path) -> set[str]:
    """Names of those of which something must be said."""
    return {finding.object for finding in findings_of(builds, bills) if finding.severity is Severity.WARNING}


def findings_of(builds: Iterable[StoredImage], bills: Path) -> list[Finding]:
    """Raises UsageError for lists that cannot be read, GpuyardError when an archive does not answer."""
    from gpuyard.images.ageing import driver_findings, hole_findings
    from gpuyard.images.archive import security_versions
    from gpuyard.images.manifest import manifest_path, read_manifest
    from gpuyard.images.packages import read_bill

    today = datetime.now(UTC).date()
    mended: dict[str, dict[str, str]] = {}
    findings = []
    for build in builds:
        findings += driver_findings(build, today)
        manifest = manifest_path(bills, build.build)
        if not manifest.exists():
            reason = f"its list of packages is not in {bills}, so its holes are not known"
            findings.append(
                Finding("image-holes", Severity.UNKNOWN, build.build, reason, "name the folder that has it with -o")
            )
            continue
        made = read_manifest(manifest)
        base = made.build.base
        archive = base.model_dump_json()
        if archive not in mended:
            mended[archive] = security_versions(base)
        findings += hole_findings(build.build, read_bill(bills / made.bill.file), mended[archive])
    return findings
