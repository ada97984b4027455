"""A model of a RHEL or Rocky host: boot loader entries, grubby and dracut in place of GRUB's menu and its helpers.

grubby and dracut do here what the real ones were seen to do (grubby 8.40 of RHEL 8.9 and 9.2, dracut 059), with the
traps: options are changed in up to four places, one file after the other; an added option displaces other values of
the same name; /etc/default/grub may lose lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.host.local_host import CommandFailed
from gpuyard.host.preparation.files import DRACUT_FILE
from gpuyard.host.tree import LINK
from tests.support.hypervisors import INTEL, debian
from tests.support.kernel import GRUB_CFG, INITRD, ModelHost
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, Sysfs

ID = "0123456789abcdef0123456789abcdef"
ENTRIES = "boot/loader/entries"
RESCUE = f"{ENTRIES}/{ID}-0-rescue.conf"
DEFAULTS = "etc/default/grub"
GRUBENV = "boot/grub2/grubenv"
COMMAND_LINE = "etc/kernel/cmdline"
BASE = "root=/dev/mapper/rl-root ro crashkernel=1G-4G:192M"
KERNELS = ("5.14.0", "6.1.0")
"""The last one is the newest and runs."""
OS_RELEASE = 'NAME="Rocky Linux"\nVERSION="9.5"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
NO_PLUGIN = {
    "dnf": (
        1,
        (
            "No such command: needs-restarting. Please use /usr/bin/dnf --help\n"
            "It could be a DNF plugin command, try: \"dnf install 'dnf-command(needs-restarting)'\"\n"
        ),
    ),
    "dnf5": (
        2,
        (
            'Unknown argument "needs-restarting" for command "dnf5". Add "--help" for more information about the '
            "arguments.\n"
            "It could be a command provided by a plugin, try: dnf5 install 'dnf5-command(needs-restarting)'\n"
        ),
    ),
}
"""Exit code and standard error where the plugin is not installed: as users quote dnf 4, and as dnf5 tests itself."""


def entry(kernel: str) -> str:
    return f"{ENTRIES}/{ID}-{kernel}.conf"


def image(kernel: str) -> str:
    return f"boot/initramfs-{kernel}.img"


@dataclass
class RhelHost(ModelHost):
    """Its commands are not one change each: power can be lost between any two files that they write."""

    def run(self, command: Sequence[str]) -> None:
        if command[0] not in ("grubby", "dracut"):
            super().run(command)
            return
        self._change()
        self.commands.append(tuple(command))
        if command[0] in self.failing:
            raise CommandFailed(f"{command[0]} ended with 1")
        if command[0] == "grubby":
            self._grubby(command[1:])
        else:
            self._dracut(command[1:])

    def boot(self) -> None:
        """The newest kernel, by its entry."""
        words = self._expanded(self.entries()[0]) if self.entries() else [self.text("proc/cmdline")]
        self.put("proc/cmdline", " ".join(words))
        super().boot()

    def text(self, path: str) -> str:
        return self.tree.read(path) or ""

    def entries(self) -> list[str]:
        """Newest first, the rescue entry last."""
        return [f"{ENTRIES}/{name}" for name in reversed(self.tree.names(ENTRIES))]

    def install_kernel(self, kernel: str) -> None:
        """What the kernel's package does: the options of now, or where it was not told any, those that it runs with."""
        options = "$kernelopts" if "kernelopts" in self._environment() else self.text(COMMAND_LINE)
        self.put(entry(kernel), bls(kernel, options or self.text("proc/cmdline")))
        self.put(f"lib/modules/{kernel}/modules.dep", self.text("lib/modules/6.1.0/modules.dep"))
        self._make_image(kernel)

    # grubby

    def _grubby(self, arguments: Sequence[str]) -> None:
        names = [argument.partition("=")[0] for argument in arguments]
        if "--no-etc-grub-update" in names[:-1]:  # it loses the argument after it
            raise CommandFailed("grubby: invalid option")
        assert names[0] == "--update-kernel"
        assert arguments[0] == "--update-kernel=ALL"
        values = dict(argument.partition("=")[::2] for argument in arguments)
        removed, added = values.get("--remove-args", "").split(), values.get("--args", "").split()
        if not removed and not added:
            return
        if "--no-etc-grub-update" not in names:
            self._update_defaults(removed, added)
        environment = self._environment()
        if "kernelopts" in environment:
            changed = " ".join(update_args(environment["kernelopts"].split(), removed, added))
            self._write(self.tree.resolve(GRUBENV), self.text(GRUBENV).replace(environment["kernelopts"], changed))
        for path in self.entries():
            words = self._words(path)
            if "$kernelopts" not in words:
                self._write(path, set_options(self.text(path), update_args(words, removed, added)))
        if self.tree.read(COMMAND_LINE) is None:  # from the oldest entry, which is the rescue entry
            last = self.entries()[-1]
            words = [part for word in self._words(last) for part in self._kernelopts(word).split()]
            self._write(COMMAND_LINE, " ".join(words))
        words = self.text(COMMAND_LINE).split("\n")[0].split()
        self._write(COMMAND_LINE, " ".join(update_args(words, removed, added)))

    def _update_defaults(self, removed: Sequence[str], added: Sequence[str]) -> None:
        matches = re.findall(r'^GRUB_CMDLINE_LINUX="(.*)"$', self.text(DEFAULTS), re.MULTILINE)
        if matches and matches[-1]:
            line = f'GRUB_CMDLINE_LINUX="{" ".join(update_args(matches[-1].split(), removed, added))}"'
            text = re.sub(r"^GRUB_CMDLINE_LINUX.*$", lambda _: line, self.text(DEFAULTS), flags=re.MULTILINE)
            self._write(DEFAULTS, text)

    def _environment(self) -> dict[str, str]:
        return dict(re.findall(r"^(\w+)=(.*)$", self.text(GRUBENV), re.MULTILINE))

    def _words(self, path: str) -> list[str]:
        (options,) = re.findall(r"^options (.*)$", self.text(path), re.MULTILINE)
        return str(options).split()

    def _kernelopts(self, word: str) -> str:
        return self._environment()["kernelopts"] if word == "$kernelopts" else word

    def _expanded(self, path: str) -> list[str]:
        environment = self._environment()
        words = [environment.get(word[1:], "") if word[0] == "$" else word for word in self._words(path)]
        return " ".join(words).split()

    def _write(self, path: str, text: str) -> None:
        self._change()
        self.put(path, text)

    # dracut

    def _dracut(self, arguments: Sequence[str]) -> None:
        assert list(arguments) == ["--regenerate-all", "--force"]
        for kernel in self.tree.names("lib/modules"):
            if self.tree.read(f"lib/modules/{kernel}/modules.dep") is not None:
                self._change()
                self._make_image(kernel)

    def _make_image(self, kernel: str) -> None:
        """With all files that the configuration names, as an image for any host has them."""
        lists = re.findall(r'^install(_optional)?_items\+="(.*)"$', self.text(DRACUT_FILE), re.MULTILINE)
        inside = []
        for optional, paths in lists:
            for path in paths.split():
                text = self.tree.read(path[1:])
                assert text is not None or optional, f"dracut-install: ERROR: installing '{path}'"
                inside.append(text or "")
        self.put(image(kernel), f"# run {len(self.commands)}\n" + "\n".join(inside))


def dnf(path: Path, updated: Sequence[str] = (), version: str = "dnf", plugin: bool = True, error: str = "") -> str:
    """A program that answers ``needs-restarting -r`` as dnf-plugins-core 4.x (plugins/needs_restarting.py) and dnf5
    (needs_restarting.cpp) do: the packages that were updated since the boot, with exit code 1, which any `error` of
    dnf's has, too. With a language set its text would be another one."""
    if error or not plugin:
        code, text = (1, f"{error}\n") if error else NO_PLUGIN[version]
        answer = f"printf %s {shlex.quote(text)} >&2; exit {code}"
    elif updated:
        lines = [
            "Core libraries or services have been updated since boot-up:",
            *(f"  * {name}" for name in updated),
            "",
        ]
        lines += ["Reboot is required to fully utilize these updates."]
        lines += ["More information: https://access.redhat.com/solutions/27943", ""]
        answer = f"printf %s {shlex.quote(chr(10).join(lines))}; {'echo Error: >&2; ' * (version == 'dnf')}exit 1"
    else:
        answer = (
            "echo No core libraries or services have been updated since boot-up.; echo Reboot should not be necessary."
        )
    guard = '[ "$*" = "needs-restarting -r" ] || exit 64'
    translated = '[ "$LC_ALL" = C.UTF-8 ] && [ -z "$LANGUAGE" ] || { echo Neustart erforderlich; exit 1; }'
    path.write_text(f"#!/bin/sh\n{guard}\n{translated}\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def update_args(words: Sequence[str], removed: Sequence[str], added: Sequence[str]) -> list[str]:
    """As grubby: ``NAME=VALUE`` takes that one out, and adding it takes out every value of NAME."""
    left = list(words)
    for word in removed:
        if "=" not in word:
            left = [other for other in left if other.partition("=")[0] != word]
        elif word in left:
            left.remove(word)
    names = {word.partition("=")[0] for word in added}
    return [*(word for word in left if word.partition("=")[0] not in names), *added]


def set_options(text: str, words: Sequence[str]) -> str:
    return re.sub(r"^options.*$", lambda _: f"options {' '.join(words)}", text, flags=re.MULTILINE)


def bls(kernel: str, options: str) -> str:
    return f"title Rocky Linux ({kernel})\nversion {kernel}\nlinux /vmlinuz-{kernel}\noptions {options}\n"


def titan_xps() -> Sysfs:
    sysfs = Sysfs()
    for bus, group in (("01", 13), ("02", 14)):
        sysfs.function(f"{bus}:00.0", TITAN_XP, "0300", group, boot_vga="0")
        sysfs.function(f"{bus}:00.1", TITAN_XP_AUDIO, "0403", group)
    return sysfs


def rhel(
    release: int = 9,
    options: str = "intel_iommu=on quiet",
    sysfs: Sysfs | None = None,
    cpu: str = INTEL,
    groups: dict[str, int] | None = None,
) -> RhelHost:
    """RHEL 8 has its options in GRUB's environment block, RHEL 9 in each entry. `options`: the operator's own."""
    nodes = debian(sysfs or titan_xps(), cpu, options, "", groups).nodes
    for path in (GRUB_CFG, INITRD, "usr/sbin/update-grub", "usr/sbin/update-initramfs", "etc/initramfs-tools"):
        folder, _, name = path.rpartition("/")
        node = nodes
        for part in folder.split("/"):
            node = node[part]
        del node[name]
    del nodes["boot"]["grub"]
    drivers = debian(Sysfs()).drivers
    nodes["var"]["lib"] = {"rpm": {"rpmdb.sqlite": ""}}
    host = RhelHost(nodes, drivers, groups=groups or {})
    host.put("etc/os-release", OS_RELEASE)
    for program in ("grubby", "dracut"):
        host.put(f"usr/sbin/{program}", "")
    words = f"{BASE} {options}".strip()
    host.put("etc/kernel/postinst.d/51-dracut-rescue-postinst.sh", "")
    old = release < 9
    for kernel in KERNELS:
        host.put(entry(kernel), bls(kernel, "$kernelopts $tuned_params" if old else words))
        host.put(f"lib/modules/{kernel}/modules.dep", host.text("lib/modules/6.1.0/modules.dep"))
        host.put(image(kernel), "as installed")
    host.put(RESCUE, bls(f"0-rescue-{ID}", "$kernelopts" if old else words))
    host.put(image(f"0-rescue-{ID}"), "as installed")
    host.put(image("6.1.0kdump"), "as kdump made it")
    if old:
        host.put("boot/efi/EFI/rocky/grubenv", f"saved_entry={ID}-6.1.0\nkernelopts={words}\nboot_success=0")
        host.put(GRUBENV, {LINK: "../efi/EFI/rocky/grubenv"})
    else:
        host.put(GRUBENV, f"saved_entry={ID}-6.1.0\nboot_success=0")
    host.put(
        DEFAULTS, f'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="crashkernel=1G-4G:192M {options}"\nGRUB_ENABLE_BLSCFG=true'
    )
    host.boot()
    return host
