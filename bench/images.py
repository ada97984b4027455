"""Images: how long a build from a warm cache and a boot take, and how large the image is.

python -m bench.images [PEER]

As root, with what docs/how-to/build-images.md installs. The first build fills the cache, and only the second one is
measured. The boot is QEMU's without KVM, until cloud-init and everything after it are done, by the server's own clock.
PEER is another image of qcow2 that is booted likewise: Debian's own cloud image is on cloud.debian.org, and neither on
Debian's mirrors nor in a registry of packages, so it is not fetched here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from uuid import uuid4

from bench.table import SMALL, Measured, finish, leave_out, show
from gpuyard.images.build import build_image
from gpuyard.images.check import check_image
from gpuyard.images.element_files import own_elements
from gpuyard.images.manifest import Manifest
from gpuyard.images.planner import plan_build
from gpuyard.images.programs import run
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity, worst
from gpuyard.site.image_rules import ImageBuild

BUILD_LIMIT, BOOT_LIMIT, SIZE_LIMIT = 300, 180, 400
BUILD = ImageBuild.model_validate({"base": {"distribution": "debian", "release": "bookworm"}, "agent": True})


def main(peer: Path | None = None) -> None:
    if SMALL:
        leave_out("Images", "a build takes minutes, and none is small")
        return
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as name:
        folder = Path(name)
        try:
            for day in (1, 2):
                made = _build(folder, day)
        except (UsageError, BlockedError) as error:
            leave_out("Images", str(error))
            return
        image = folder / made.disk.file
        findings = check_image(image, made.virtual_bytes, made.build, nonce="0" * 16, uuid=str(uuid4()))
    if worst(findings) is not Severity.OK:
        leave_out(
            "The boot of an image",
            "; ".join(finding.reason for finding in findings if finding.severity is not Severity.OK),
        )
        return
    show(
        "An image of Debian 12",
        [
            Measured("build, warm cache", "s", [sum(made.seconds.values())], BUILD_LIMIT),
            *(Measured(f"  {part}", "s", [seconds]) for part, seconds in made.seconds.items()),
            Measured("qcow2", "MiB", [made.disk.bytes / 2**20], SIZE_LIMIT),
            Measured("boot until all is done", "s", [_seconds(findings)], BOOT_LIMIT),
        ],
    )
    if peer is None:
        leave_out("The boot of Debian's own cloud image", "no file of it was named: python -m bench.images FILE")
        return
    size = int(json.loads(run(["qemu-img", "info", "--output=json", str(peer)], peer.name))["virtual-size"])
    peer_findings = check_image(peer, size, None, nonce="1" * 16, uuid=str(uuid4()))
    show(
        peer.name,
        [
            Measured("qcow2", "MiB", [peer.stat().st_size / 2**20]),
            Measured("boot until all is done", "s", [_seconds(peer_findings)]),
        ],
    )


def _seconds(findings: list[Finding]) -> float:
    """Of a boot, by the server's clock. Raises SystemExit when it came to no end."""
    (boots,) = [finding for finding in findings if finding.code == "image-boots"]
    if "seconds" not in boots.payload:
        raise SystemExit(f"the boot came to no end: {boots.reason}")
    return float(boots.payload["seconds"])


def _build(folder: Path, day: int) -> Manifest:
    plan = plan_build("debian-12", BUILD, own_elements(), date(2026, 1, day))
    return build_image(plan, folder, folder / "cache", lambda what: print(what, file=sys.stderr))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    sys.exit(finish())
