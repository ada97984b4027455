"""Prepares what the virtual hypervisor is made of: QEMU, a stock Debian kernel, an initramfs and the id shim.

``python -m tests.virtual_hypervisor.build`` does it all once and says where it is; after that it takes no time.
Only QEMU, kmod and a C compiler must be installed in the system, and that needs root; the kernel and busybox are
unpacked into the build folder and never touch the system.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "modprobe": "kmod", "gcc": "gcc libc6-dev", "mke2fs": "e2fsprogs"}
"""Command that is needed -> what to install for it. kmod is for inside: the machine's root is this machine's root."""

BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "crc32c_generic", "ext4", "nvme")
"""What the initramfs needs to put the root together; everything else is loaded by the job from the modules share."""


class Missing(Exception):
    """The virtual hypervisor cannot be prepared here; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Build:
    """Where everything is, once prepared."""

    folder: Path
    kernel: Path
    initramfs: Path
    modules: Path
    busybox: Path
    shim: Path
    release: str
    """Release of the kernel, ``6.1.0-56-amd64``."""
    qemu_version: str


def default_folder() -> Path:
    """$GPUYARD_VHOST, or a folder in the user's cache: some 1 GB that can be deleted at any time."""
    given = os.environ.get("GPUYARD_VHOST")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "gpuyard" / "vhost"


def prepare(folder: Path | None = None, install: bool = False) -> Build:
    """Prepare what is not there yet. With `install`, missing system packages are installed if we are root.

    Raises Missing.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Missing("the virtual hypervisor needs Linux on x86_64")
    need_commands(PACKAGES, install)
    folder = folder or default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        root, release = _kernel_package(folder)
        busybox = _busybox(folder)
        return Build(
            folder=folder,
            kernel=_kernel(folder, root, release),
            initramfs=_initramfs(folder, root, release, busybox),
            modules=_modules(root, release, busybox),
            busybox=busybox,
            shim=_shim(folder),
            release=release,
            qemu_version=_qemu_version(),
        )


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two test runs at once must not unpack into the same place."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def need_commands(needed: Mapping[str, str], install: bool) -> None:
    """`needed`: command -> Debian package. With `install`, what is missing is installed if we are root."""
    missing = [packages for command, packages in needed.items() if which(command) is None]
    if not missing:
        return
    command = f"apt-get install -y --no-install-recommends {' '.join(missing)}"
    if shutil.which("apt-get") is None:
        raise Missing(f"missing: {' '.join(missing)} (names of Debian packages), and there is no apt-get here")
    if not (install and os.geteuid() == 0):
        raise Missing(f"missing packages: {' '.join(missing)}; as root: {command}")
    run(["apt-get", "update"])
    # Modules that run side by side may both be here: apt waits for its locks when it is told to.
    run([*command.split(), "-o", "DPkg::Lock::Timeout=300"])
    need_commands(needed, install=False)


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        raise Missing(f"{what} of Debian's packages can only be built by root")


def which(command: str) -> str | None:
    """Also in /sbin, which is not in the PATH of a normal user."""
    return shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@contextmanager
def alone(name: str) -> Iterator[None]:
    """One process at a time: apt's locks on its lists cannot be waited for."""
    with (Path(tempfile.gettempdir()) / f"gpuyard-tests-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    with alone("apt") if command[0] == "apt-get" else nullcontext():
        done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise Missing(f"{' '.join(command)} failed ({done.returncode}):\n{last}")
    return done.stdout


def _unpack(folder: Path, package: str, into: Path) -> None:
    """Download one Debian package and unpack it into `into`, which exists only once that is complete."""
    downloads, part = folder / "downloads", into.with_name(into.name + ".part")
    shutil.rmtree(downloads, ignore_errors=True)
    shutil.rmtree(part, ignore_errors=True)
    downloads.mkdir()
    try:
        run(["apt-get", "download", package], cwd=downloads)
    except Missing:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "update"])  # a fresh container has no package lists
        run(["apt-get", "download", package], cwd=downloads)
    run(["dpkg", "-x", str(next(downloads.glob("*.deb"))), str(part)])
    part.rename(into)
    shutil.rmtree(downloads)


def _kernel_package(folder: Path) -> tuple[Path, str]:
    """The unpacked generic kernel and its release. The cloud flavour would not do: no AMD IOMMU, no sound, no 9p."""
    root = folder / "linux"
    if not root.exists():
        for attempt in (1, 2):
            depends = run(["apt-cache", "depends", "linux-image-amd64"]) if _apt_knows("linux-image-amd64") else ""
            match = re.search(r"Depends: (linux-image-\S+)", depends)
            if match or attempt == 2 or os.geteuid() != 0:
                break
            run(["apt-get", "update"])
        if match is None:
            raise Missing("apt knows no linux-image-amd64: this needs the package lists (apt-get update) of Debian")
        _unpack(folder, match.group(1), root)
    kernels = list((root / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise Missing(f"{root} holds no kernel; delete it and try again")
    return root, kernels[0].name.removeprefix("vmlinuz-")


def _apt_knows(package: str) -> bool:
    shown = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
    return shown.returncode == 0


def _busybox(folder: Path) -> Path:
    if not (folder / "busybox").exists():
        _unpack(folder, "busybox-static", folder / "busybox")
    paths = [path for path in (folder / "busybox").rglob("busybox") if path.is_file() and path.parent.name == "bin"]
    if not paths:
        raise Missing(f"{folder / 'busybox'} holds no busybox; delete it and try again")
    return paths[0]


def _kernel(folder: Path, root: Path, release: str) -> Path:
    """The kernel without its decompressor: QEMU starts that directly, and emulating the decompressor takes 4 s."""
    plain = folder / f"vmlinux-{release}"
    if not plain.exists():
        _write(plain, _decompressed((root / "boot" / f"vmlinuz-{release}").read_bytes()))
    return plain


def _decompressed(image: bytes) -> bytes:
    """The payload of a bzImage (Documentation/x86/boot.rst); the image itself if we cannot read its compression."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset :][:length]
    if payload.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload[:-4])
    return image


def _modules(root: Path, release: str, busybox: Path) -> Path:
    """The folder that becomes /lib/modules/RELEASE, with its dependencies worked out (the package does that late)."""
    folder = next(path for path in (root / "lib/modules", root / "usr/lib/modules") if path.exists()) / release
    if not (folder / "modules.dep").exists():
        base = folder.parent.parent.parent
        program = which("depmod")
        run([program, "-b", str(base), release] if program else [str(busybox), "depmod", "-b", str(base), release])
    return folder


def module_files(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """For an initramfs: modules by name, and all that they need; ``modules/order`` says in which order to load them."""
    modules = _with_needs(folder, names)
    files = {f"modules/{_plain_name(module)}": (0o644, _plain_module(module)) for module in modules}
    order = "".join(_plain_name(module) + "\n" for module in modules)
    return files | {"modules/order": (0o644, order.encode())}


def _with_needs(folder: Path, names: Iterable[str]) -> list[Path]:
    needs: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
    by_name = {re.sub(r"\.ko.*", "", Path(file).name).replace("-", "_"): file for file in needs}
    ordered: list[str] = []
    for name in names:
        if name in by_name:  # otherwise it is built into this kernel
            file = by_name[name]
            ordered += [*reversed(needs[file]), file]  # modules.dep lists what is needed first last
    return [folder / file for file in dict.fromkeys(ordered)]


def _initramfs(folder: Path, root: Path, release: str, busybox: Path) -> Path:
    init = (HERE / "init.sh").read_bytes()
    built = folder / f"initramfs-{release}-{digest(init, Path(__file__).read_bytes())}.cpio"
    if not built.exists():
        files = {"bin/busybox": (0o755, busybox.read_bytes()), "init": (0o755, init)}
        files |= module_files(_modules(root, release, busybox), BOOT_MODULES)
        _write(built, cpio(files))
    return built


def _plain_name(module: Path) -> str:
    return re.sub(r"\.ko.*", ".ko", module.name)


def _plain_module(module: Path) -> bytes:
    return lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An archive in the format that the kernel unpacks as an initramfs: path -> (permissions, content)."""
    folders = dict.fromkeys(str(parent) for path in files for parent in reversed(Path(path).parents) if parent.name)
    entries = [(path, 0o040755, b"") for path in folders]
    entries += [(path, 0o100000 | mode, content) for path, (mode, content) in files.items()]
    archive = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        for part in (b"070701" + b"".join(b"%08x" % field for field in fields) + name, content):
            archive += part + b"\0" * (-(len(archive) + len(part)) % 4)
    return bytes(archive)


def _shim(folder: Path) -> Path:
    source = HERE / "shim.c"
    built = folder / f"shim-{digest(source.read_bytes())}.so"
    if not built.exists():
        part = built.with_suffix(".part")
        run(["gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(part), str(source), "-ldl"])
        part.rename(built)
    return built


def disk(build: Build, gib: int) -> Path:
    """An empty ext4 of that size. The file is sparse: some MB, however large it says it is."""
    image = build.folder / f"disk-{gib}.raw"
    with only_one(build.folder):
        if not image.exists():
            part = image.with_suffix(".part")
            with part.open("wb") as file:
                file.truncate(gib * 1024**3)
            mke2fs = which("mke2fs") or "mke2fs"
            run([mke2fs, "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-N", "4096", str(part)])
            part.rename(image)
    return image


def _qemu_version() -> str:
    match = re.search(r"version (\S+)", run(["qemu-system-x86_64", "--version"]))
    return match.group(1) if match else "unknown"


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, so that an interrupted build is not taken for a finished one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.rename(path)


def main() -> int:
    try:
        build = prepare(install=True)
    except Missing as error:
        print(f"vhost: {error}", file=sys.stderr)
        return 1
    print(f"{build.folder}: Linux {build.release}, QEMU {build.qemu_version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
