"""Builds an image: diskimage-builder makes the file system, disk.py a disk of it. It decides nothing of the definition.

An interrupted build continues where it was: the file system is kept until the image is complete, and the manifest is
written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from gpuyard import installed_version
from gpuyard.images import disk as disks
from gpuyard.images.element_files import write_elements
from gpuyard.images.manifest import FORMAT, Artifact, Manifest, manifest_path, read_manifest, to_json
from gpuyard.images.packages import bill_of_materials, installed_packages
from gpuyard.images.planner import BuildPlan, Folders
from gpuyard.images.programs import need_programs, run, run_logged
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.runtime.config_files import replace_file

DIB = "disk-image-create"
PROGRAMS = {DIB: "", "sudo": "sudo", "debootstrap": "debootstrap", "losetup": "mount", **disks.PROGRAMS}
RUNNER = "https://github.com/actions/runner/releases/download/v{version}/actions-runner-linux-{system}-{version}.tar.gz"
SYSTEMS = {"amd64": "x64", "arm64": "arm64"}
MOUNTS = Path("/proc/mounts")
LOOP = Path("/dev/loop-control")
CHUNK = 1 << 20


def build_image(
    plan: BuildPlan, output: Path, cache: Path, report: Callable[[str], None], beside: Path = Path()
) -> Manifest:
    """Build into `output`, with what `cache` has of earlier builds. A build that is complete there is not done again.

    `beside`: the folder of files that the definition names. `report` is called when a part begins. Raises
    BlockedError where this machine cannot build, UsageError for folders that cannot be written, GpuyardError when a
    step fails.
    """
    output, cache = output.absolute(), cache.absolute()
    done = manifest_path(output, plan.name)
    if done.exists():
        report(f"{plan.name} is there already")
        return read_manifest(done)
    _can()
    seconds: dict[str, float] = {}

    def timed(what: str, do: Callable[[], object]) -> None:
        report(what)
        began = monotonic()
        do()
        seconds[what] = round(monotonic() - began, 1)

    with _alone(output, cache):
        folders = Folders(
            cache / "elements", cache / "dib", cache / "work", cache / "trees" / str(plan.name), cache / "runner.tar.gz"
        )
        tree, raw = Path(f"{folders.tree}.raw"), cache / "work" / f"{plan.name}.disk"
        image = output / f"{plan.name}.qcow2"
        raw.parent.mkdir(exist_ok=True)
        if not tree.exists():
            fetch_runner(plan, folders.runner, beside)
            timed("file system", lambda: _make_tree(plan, folders, output / f"{plan.name}.log"))
        timed("disk", lambda: disks.make_disk(tree, raw, str(plan.name), plan.build.base.architecture))
        try:
            timed("compression", lambda: disks.compress(raw, image))
            manifest = _describe(plan, tree, raw, image, seconds)
        finally:
            raw.unlink()
        replace_file(done, manifest.text().encode())
        tree.unlink()
    return manifest


def _can() -> None:
    need_programs(PROGRAMS)
    if os.geteuid() != 0:
        raise BlockedError("diskimage-builder makes a system as root, in mounts of its own: run this with sudo")
    if not LOOP.exists():
        raise BlockedError(f"this machine has no loop devices ({LOOP}), which diskimage-builder needs: modprobe loop")


def _make_tree(plan: BuildPlan, folders: Folders, log: Path) -> None:
    _no_mounts(folders.work)
    for folder in (folders.elements, folders.work, folders.tree.parent):
        shutil.rmtree(folder, ignore_errors=True)  # of builds that were interrupted
    for folder in (folders.elements, folders.work, folders.tree.parent, folders.cache / "locks"):
        folder.mkdir(parents=True, exist_ok=True)
    write_elements(plan.files, folders.elements)
    part = folders.tree.with_name("part")
    begun = replace(folders, tree=part)
    environment = plan.environment(folders, os.environ)
    program = shutil.which(DIB, path=environment["PATH"]) or DIB
    run_logged([program, *plan.arguments(begun)], environment, log)
    shutil.rmtree(part.with_name("part.d"), ignore_errors=True)
    Path(f"{part}.raw").rename(f"{folders.tree}.raw")


def fetch_runner(plan: BuildPlan, archive: Path, beside: Path) -> None:
    """Fetch the archive of actions/runner, unless it is there, and compare it with its digest. Raises UsageError,
    GpuyardError, and BlockedError for another digest."""
    runner = plan.build.runner
    if runner is None or (archive.exists() and digest_of(archive) == runner.sha256):
        return
    where = runner.archive or RUNNER.format(version=runner.version, system=SYSTEMS[plan.build.base.architecture])
    what = f"the archive of actions/runner {runner.version}"
    if where.startswith(("http://", "https://")):
        need_programs({"curl": "curl"})
        run(["curl", "-fsSL", "--max-time", "1800", "-o", str(archive), where], f"{what} from {where}")
    else:
        try:
            shutil.copyfile(beside / where, archive)
        except OSError as error:
            raise UsageError(f"{what}: {beside / where}: {error.strerror}") from None
    if (digest := digest_of(archive)) != runner.sha256:
        archive.unlink()
        raise BlockedError(f"{what} from {where} has the SHA-256 {digest}, and the site file says {runner.sha256}")


def _no_mounts(folder: Path) -> None:
    """A build that was killed leaves the machine's own /dev mounted below, and what is deleted there is gone here."""
    left = mounts_below(str(folder.absolute()), MOUNTS.read_text(encoding="utf-8", errors="replace"))
    if left:
        where = " ".join(left)
        raise BlockedError(f"a build that was killed has left mounts; take them away with: sudo umount -l {where}")


def mounts_below(folder: str, mounts: str) -> list[str]:
    """Return the mounts below a folder in the text of ``/proc/mounts``, the deepest first. Pure."""
    places = [line.split(" ")[1] for line in mounts.splitlines() if line.count(" ") > 1]
    escaped = folder.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    return sorted((place for place in places if place.startswith(f"{escaped}/")), reverse=True)


def _describe(plan: BuildPlan, tree: Path, raw: Path, image: Path, seconds: dict[str, float]) -> Manifest:
    base, made = plan.build.base, datetime.now(UTC).replace(microsecond=0)
    packages = installed_packages(disks.file_in(tree, "/var/lib/dpkg/status").decode(errors="replace"))
    if not packages:
        raise GpuyardError(f"{tree}: no package is installed in it, which cannot be; delete it and build again")
    bill = image.with_suffix(".cdx.json")
    replace_file(bill, to_json(bill_of_materials(packages, plan.name, base.distribution, base.release, made)))
    return Manifest(
        format=FORMAT,
        name=str(plan.name),
        made=made,
        gpuyard=installed_version(),
        elements=plan.elements,
        build=plan.build,
        module=plan.module,
        disk=_artifact(image),
        virtual_bytes=raw.stat().st_size,
        bill=_artifact(bill),
        kernels=tuple(disks.names_in(tree, "/usr/lib/modules")),
        packages=len(packages),
        seconds=seconds,
    )


def _artifact(path: Path) -> Artifact:
    return Artifact(path.name, path.stat().st_size, digest_of(path))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            whole.update(part)
    return whole.hexdigest()


@contextmanager
def _alone(output: Path, cache: Path) -> Iterator[None]:
    """Two builds would use the same folders."""
    try:
        for folder in (output, cache):
            folder.mkdir(parents=True, exist_ok=True)
        lock = (cache / "lock").open("w")
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockedError(f"another build is at work in {cache}; wait for it, or name another --cache") from None
        yield
