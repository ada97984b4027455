"""Options that stand under an old name, in a wrong section, or under no name that Nova knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from gpuyard.site.lint import alias, device_spec
from gpuyard.site.lint.ini import DEFAULT, normal_section
from gpuyard.site.lint.model import FALSE, TRUE, ConfigFile, Finding, Located, Severity, View
from gpuyard.site.lint.rules import found
from gpuyard.site.lint.scheduler import mended


@dataclass(frozen=True)
class Renamed:
    """A name of an old guide. The manual has a section for each."""

    old: str
    new: str
    read: bool
    """Whether Nova 31 to 34 still reads the old name."""
    fix: str


RENAMED = {
    ("DEFAULT", "pci_alias"): Renamed("[DEFAULT]pci_alias", "[pci]alias", True, "move it to [pci] as alias"),
    ("DEFAULT", "pci_passthrough_whitelist"): Renamed(
        "[DEFAULT]pci_passthrough_whitelist", "[pci]device_spec", True, "move it to [pci] as device_spec"
    ),
    ("pci", "passthrough_whitelist"): Renamed(
        "[pci]passthrough_whitelist", "[pci]device_spec", True, "rename it to device_spec"
    ),
    ("DEFAULT", "scheduler_default_filters"): Renamed(
        "[DEFAULT]scheduler_default_filters",
        "[filter_scheduler]enabled_filters",
        False,
        "move it to [filter_scheduler] as enabled_filters",
    ),
    ("DEFAULT", "scheduler_available_filters"): Renamed(
        "[DEFAULT]scheduler_available_filters",
        "[filter_scheduler]available_filters",
        False,
        "remove it: all filters of Nova are available; only for filters of your own, set "
        "[filter_scheduler]available_filters",
    ),
    ("devices", "enabled_vgpu_types"): Renamed(
        "[devices]enabled_vgpu_types", "[devices]enabled_mdev_types", True, "rename it to enabled_mdev_types"
    ),
    ("pci", "dev_spec"): Renamed("[pci]dev_spec", "[pci]device_spec", False, "rename it to device_spec"),
}

SECTIONS = {
    "device_spec": "pci",
    "passthrough_whitelist": "pci",
    "report_in_placement": "pci",
    "pci_in_placement": "filter_scheduler",
    "enabled_filters": "filter_scheduler",
    "available_filters": "filter_scheduler",
    "enabled_mdev_types": "devices",
    "cpu_dedicated_set": "compute",
    "cpu_shared_set": "compute",
    "ram_allocation_ratio": DEFAULT,
    "vcpu_pin_set": DEFAULT,
    "reserved_host_cpus": DEFAULT,
}
"""The section of options that are looked for; these names mean nothing anywhere else in Nova's files."""
PCI_OPTIONS = ("device_spec", "alias", "report_in_placement", "passthrough_whitelist")
BOOLEANS = (("pci", "report_in_placement"), ("filter_scheduler", "pci_in_placement"))
NUMBERS = (
    (DEFAULT, "ram_allocation_ratio"),
    (DEFAULT, "initial_ram_allocation_ratio"),
    (DEFAULT, "reserved_host_cpus"),
)
SINGLE = (*BOOLEANS, *NUMBERS, ("filter_scheduler", "enabled_filters"), (DEFAULT, "host"), (DEFAULT, "vcpu_pin_set"),
          ("compute", "cpu_dedicated_set"), ("compute", "cpu_shared_set"), ("quota", "driver"))  # fmt: skip


def check_file(file: ConfigFile) -> Iterator[Finding]:
    """What is wrong with one file whoever reads it."""
    for problem in file.ini.problems:
        fix = "mend the line; oslo.config stops at it"
        yield found("not-an-ini-file", file.path, problem.message, fix, line=problem.line)
    if file.template:
        reason = "it is a template: values that Kolla fills in are not judged, and both ways of a condition are"
        yield found("template", file.path, reason, "look at what Kolla made of it: /etc/kolla/SERVICE/nova.conf")
    for section, line in file.ini.sections:
        if section != DEFAULT and section.lower() == "default":
            reason = f"[{section}] is a section of its own, which no service reads"
            yield found("default-section-case", file.path, reason, "write [DEFAULT]", line=line)
    seen: dict[tuple[str, str], Located] = {}
    for setting in file.ini.settings:
        item = Located(file, setting)
        yield from _name(item)
        yield from _value(item)
        if setting.place in SINGLE and setting.place in seen:
            reason = f"{setting} is set in line {seen[setting.place].setting.line} already; this one counts"
            yield found("repeated-option", item, reason, "keep one of them")
        seen[setting.place] = item


def _name(item: Located) -> Iterator[Finding]:
    setting = item.setting
    section, key = setting.place
    renamed = RENAMED.get((section, key))
    right = SECTIONS.get(key)
    if renamed is not None:
        if renamed.read:
            reason = f"{renamed.old} is the old name of {renamed.new}; Nova still reads it"
            yield found("renamed-option", item, reason, renamed.fix)
        else:
            reason = f"{renamed.old} is ignored; the option is {renamed.new}"
            yield found("dead-option", item, reason, _fix(renamed, item.value))
    elif right is not None and section != normal_section(right):
        reason = f"{setting} is not read: the option {key} belongs into [{right}]"
        yield found("option-in-wrong-section", item, reason, f"move it to [{right}]")
    elif section == DEFAULT and key == "alias":
        reason = f"{setting} is not read: the option alias belongs into [pci]"
        yield found("option-in-wrong-section", item, reason, "move it to [pci]")
    elif section == "pci" and key not in PCI_OPTIONS:
        close = difflib.get_close_matches(key.lower().replace("-", "_"), [*PCI_OPTIONS, "pci_alias"], n=1)
        hint = f"did you mean {close[0].removeprefix('pci_')}?" if close else f"[pci] has {', '.join(PCI_OPTIONS[:3])}"
        yield found("unknown-option", item, f"{setting} is not an option of Nova and is ignored", hint)


def _fix(renamed: Renamed, value: str) -> str:
    if renamed.new != "[filter_scheduler]enabled_filters":
        return renamed.fix
    return f"set {renamed.new} = {','.join(mended([name.strip() for name in value.split(',')]))}"


def _value(item: Located) -> Iterator[Finding]:
    place, value = item.setting.place, item.value
    if item.setting.open:
        return
    if place in BOOLEANS and value.lower() not in (*TRUE, *FALSE):
        yield found("not-a-value", item, f"{item.setting} is {value!r}, not a truth value", "write true or false")
    elif place in NUMBERS:
        try:
            float(value)
        except ValueError:
            yield found("not-a-value", item, f"{item.setting} is {value!r}, not a number", "write a number")


def check_view(view: View) -> Iterator[Finding]:
    """Old and new names together, and lists that two layers set."""
    for names in (device_spec.NAMES, alias.NAMES):
        items = [item for section, key in names for item in view.all(section, key)]
        used = list(dict.fromkeys(str(item.setting) for item in items))
        current = [item for item in items if item.setting.place == names[0]]
        for item in items:
            if current and item.setting.place != names[0]:
                reason = (
                    f"{item.setting} and {current[0].setting} ({current[0]}) are both set: Nova does not choose one, "
                    "it takes the values of both, the old ones first"
                )
                yield found("old-and-new-names", item, reason, f"move all values to {current[0].setting}")
        files = list(dict.fromkeys(item.file.path for item in items))
        if len(files) > 1:
            last = next(item for item in items if item.file.path == files[-1])
            reason = (
                f"{' and '.join(used)} is set in {files[0]} too, which {view.name} also reads: Nova adds the values of "
                "both files up, Kolla's merge keeps only those of the later file"
            )
            yield found("two-layers", last, reason, "set it in one of the files", severity=Severity.WARNING)
