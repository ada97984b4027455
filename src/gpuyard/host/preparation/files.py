"""The files that gpuyard writes on a host, text by text.

No other file of a host is written, apart from gpuyard's state in ``/var/lib/gpuyard`` and the boot files that tools of
the distribution make.

How a function gets its VFIO driver at boot, by address and before a driver of the host can take it:

- ``00-gpuyard.conf`` makes every driver that could take one depend (softdep) on a module that does not exist,
  ``gpuyard_passthrough``; to load that one, modprobe runs the script below with ``claim``. So it runs first whoever
  loads the driver, in the initramfs too, and also where vfio-pci is part of the kernel and modprobe's options for it
  would do nothing.
- The script sets ``driver_override`` of the listed addresses, loads the VFIO driver and has it take them. Cards with
  the same ids that are not in the list stay with the host.
- A driver that is part of the kernel is there before modprobe is. The service takes its functions over, once, early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from gpuyard.host.modules import PSEUDO_MODULE
from gpuyard.host.preparation.distribution import GRUB_FOLDER
from gpuyard.host.preparation.passthrough import LIST_FILE, Passthrough, render_list

MARK = "# Written by gpuyard"
HEAD = f"{MARK}; changes are lost. 'gpuyard host undo' takes it back.\n"
SCRIPT_FILE = "usr/local/lib/gpuyard/passthrough"
MODPROBE_FILE = "etc/modprobe.d/00-gpuyard.conf"
"""First in its folder: of two softdeps of a module, modprobe heeds the first."""
OPTIONS_FILE = "etc/modprobe.d/zz-gpuyard.conf"
"""Last in its folder: of an option that is given twice, the last one counts."""
UNIT = "gpuyard-passthrough.service"
UNIT_FILE = f"etc/systemd/system/{UNIT}"
WANTS_FILE = "etc/systemd/system/sysinit.target.d/gpuyard.conf"
HOOK_FILE = "etc/initramfs-tools/hooks/gpuyard"
DRACUT_FILE = "etc/dracut.conf.d/gpuyard.conf"
GRUB_FILE = f"{GRUB_FOLDER}/zz-gpuyard.cfg"
"""Last in its folder: another drop-in may set the options anew."""

OUR_FILES = (
    LIST_FILE,
    SCRIPT_FILE,
    MODPROBE_FILE,
    OPTIONS_FILE,
    UNIT_FILE,
    WANTS_FILE,
    HOOK_FILE,
    DRACUT_FILE,
    GRUB_FILE,
)
"""Every file that gpuyard may write on a host."""

PLAIN, EXECUTABLE = 0o644, 0o755


@dataclass(frozen=True)
class HostFile:
    """A file as it shall be."""

    path: str
    text: str
    reason: str
    mode: int = PLAIN


def list_file(functions: Sequence[Passthrough]) -> HostFile:
    reason = f"names the {len(functions)} functions that go to VMs, by address"
    return HostFile(LIST_FILE, HEAD + "# ADDRESS VENDOR:PRODUCT DRIVER\n" + render_list(functions), reason)


def script_file() -> HostFile:
    text = SCRIPT.replace("@HEAD@\n", HEAD).replace("@LIST@", f"/{LIST_FILE}")
    return HostFile(SCRIPT_FILE, text, "gives the functions in the list to their VFIO driver", EXECUTABLE)


def modprobe_file(natives: Sequence[str], others: Mapping[str, Sequence[str]]) -> HostFile:
    """`natives`: modules that would take a listed function. `others`: module -> words of its softdep elsewhere."""
    lines = [f"install {PSEUDO_MODULE} /bin/sh /{SCRIPT_FILE} claim"]
    lines += [_softdep(module, others.get(module, ())) for module in natives]
    text = HEAD + MODPROBE_COMMENT + "".join(f"{line}\n" for line in lines)
    return HostFile(MODPROBE_FILE, text, f"lets VFIO be there before {', '.join(natives) or 'any driver of the host'}")


def _softdep(module: str, others: Sequence[str]) -> str:
    """Ours hides the one that is set elsewhere, so its words are said here too."""
    words = [*others]
    at = words.index("pre:") + 1 if "pre:" in words else 0
    words[at:at] = [PSEUDO_MODULE] if at else ["pre:", PSEUDO_MODULE]
    return f"softdep {module} {' '.join(words)}"


def options_file(lines: Sequence[str]) -> HostFile:
    """`lines`: as in modprobe.d, ``options vfio-pci ids=``."""
    text = HEAD + "".join(f"{line}\n" for line in lines)
    return HostFile(OPTIONS_FILE, text, f"sets {'; '.join(lines)}")


def unit_files() -> Sequence[HostFile]:
    unit = HEAD + UNIT_TEXT.replace("@SCRIPT@", f"/{SCRIPT_FILE}")
    wants = f"{HEAD}[Unit]\nWants={UNIT}\n"
    return (
        HostFile(UNIT_FILE, unit, "takes over what a driver inside the kernel took first, before any VM starts"),
        HostFile(WANTS_FILE, wants, f"starts {UNIT} at boot"),
    )


def hook_file() -> HostFile:
    text = HOOK.replace("@HEAD@\n", HEAD)
    text = text.replace("@FILES@", " ".join(f"/{path}" for path in (SCRIPT_FILE, LIST_FILE)))
    return HostFile(HOOK_FILE, text, "puts script, list and vfio-pci into the initramfs", EXECUTABLE)


def dracut_file() -> HostFile:
    """dracut puts all of modprobe.d into an image for one host only, so what must be in any image is named here."""
    files = " ".join(f"/{path}" for path in (SCRIPT_FILE, LIST_FILE, MODPROBE_FILE))
    text = HEAD + 'add_drivers+=" vfio vfio_iommu_type1 vfio_pci "\n'
    text += f'install_items+=" {files} "\ninstall_optional_items+=" /{OPTIONS_FILE} "\n'
    return HostFile(DRACUT_FILE, text, "puts script, list and vfio-pci into the initramfs")


def grub_file(required: Sequence[str], unwanted: Sequence[str]) -> HostFile:
    """A drop-in that adds options, and takes out what /etc/default/grub or another drop-in has set."""
    text = HEAD
    reasons = []
    if unwanted:
        text += GRUB_FILTER.replace("@UNWANTED@", " | ".join(f"'{word}'" for word in unwanted))
        reasons.append(f"takes {', '.join(unwanted)} from the kernel command line")
    if required:
        text += f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {" ".join(required)}"\n'
        reasons.append(f"puts {', '.join(required)} on the kernel command line")
    return HostFile(GRUB_FILE, text, "; ".join(reasons))


MODPROBE_COMMENT = f"""\
# {PSEUDO_MODULE} is no module: to load it, modprobe runs the script. It comes before each driver that could take one
# of the functions in /{LIST_FILE}.
"""

# Runs in the initramfs as well, so it uses nothing but the shell's own commands and modprobe.
SCRIPT = """\
#!/bin/sh
@HEAD@
# Gives the PCI functions in the list to their VFIO driver, by address.
#   claim  those that no driver has yet: before a driver of the host is loaded
#   bind   also those that a driver of the host has: at boot, before any VM starts. Fails if one cannot be given.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
list=@LIST@
bus=/sys/bus/pci
failed=0
last=

# Run a command for each line whose function is there and is still the one that was meant.
each() {
    [ -r "$list" ] || return
    while read -r address ids driver; do
        case $address in '' | '#'*) continue ;; esac
        device=$bus/devices/$address
        if [ ! -e "$device" ]; then
            tell "$address is not there"
            continue
        fi
        read -r vendor <"$device/vendor"
        read -r product <"$device/device"
        if [ "${vendor#0x}:${product#0x}" != "$ids" ]; then
            tell "$address is ${vendor#0x}:${product#0x} and no longer $ids: left to the host"
            continue
        fi
        "$1"
    done <"$list"
}

# Once, in the last of several rounds.
tell() { [ -z "$last" ] || echo "gpuyard: $1" >&2; }

given() { [ -e "$bus/drivers/$driver/$address" ]; }
prepare() { echo "$driver" >"$device/driver_override" && modprobe "$driver" </dev/null; }
take() { given || [ ! -e "$device/driver" ] || echo "$address" >"$device/driver/unbind"; }
give() { given || echo "$address" >"$bus/drivers_probe"; }
confirm() {
    given && return
    failed=1
    tell "$address did not get the driver $driver"
}

mode=$1
case $mode in
claim)
    each prepare
    each give
    ;;
bind)
    each prepare
    each take
    each give
    last=yes
    each confirm
    ;;
*)
    echo "usage: $0 claim|bind" >&2
    exit 2
    ;;
esac
[ "$mode" = claim ] || exit $failed
exit 0 # the driver of the host must load whatever became of this
"""

UNIT_TEXT = """\
[Unit]
Description=Give PCI functions to VFIO by address (gpuyard)
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service
Before=sysinit.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh @SCRIPT@ bind
TimeoutStartSec=120
"""

HOOK = """\
#!/bin/sh
@HEAD@
[ "$1" = prereqs ] && exit 0
. /usr/share/initramfs-tools/hook-functions
manual_add_modules vfio vfio_iommu_type1 vfio_pci
for file in @FILES@; do
    [ -e "$file" ] && copy_file script "$file"
done
exit 0 # whatever is missing, a kernel must be installed with an initramfs
"""

GRUB_FILTER = """\
gpuyard_without() {
    for word in "$@"; do
        case $word in @UNWANTED@) ;; *) printf '%s ' "$word" ;; esac
    done
}
GRUB_CMDLINE_LINUX="$(set -f && gpuyard_without $GRUB_CMDLINE_LINUX)"
GRUB_CMDLINE_LINUX_DEFAULT="$(set -f && gpuyard_without $GRUB_CMDLINE_LINUX_DEFAULT)"
"""
