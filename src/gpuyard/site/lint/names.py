"""Options that stand under an old name, in a wrong section, or under no name that Nova knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
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
INTEGERS = ((DEFAULT, "reserved_host_cpus"), (DEFAULT, "reserved_host_memory_mb"), (DEFAULT, "reserved_host_disk_mb"))
FLOATS = tuple(
    (DEFAULT, f"{kind}{what}_allocation_ratio") for kind in ("", "initial_") for what in ("ram", "cpu", "disk")
)
CPU_SETS = ((DEFAULT, "vcpu_pin_set"), ("compute", "cpu_dedicated_set"), ("compute", "cpu_shared_set"))
SINGLE = (*BOOLEANS, *INTEGERS, *FLOATS, *CPU_SETS, ("filter_scheduler", "enabled_filters"), (DEFAULT, "host"),
          ("quota", "driver"))  # fmt: skip
MOST_PROBLEMS = 3
"""Lines that are told of a file that is not read; with more it is something else."""


def check_file(file: ConfigFile) -> Iterator[Finding]:
    """What is wrong with one file whoever reads it."""
    yield from _not_ini(file)
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


def _not_ini(file: ConfigFile) -> Iterator[Finding]:
    problems = file.ini.problems
    more = len(problems) - MOST_PROBLEMS
    for number, problem in enumerate(problems[:MOST_PROBLEMS], start=1):
        message, fix = problem.message, "mend the line; oslo.config stops at it"
        if more > 0 and number == MOST_PROBLEMS:
            message += f", and {more} more line{'' if more == 1 else 's'} like these"
            fix = "is this a nova.conf?"
        yield found("not-an-ini-file", file.path, message, fix, line=problem.line)


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
    if item.setting.open:
        return
    setting, value = item.setting, item.value
    what = not_a(setting.place, value)
    if what is None:
        return
    before = re.split("[#;]", value, maxsplit=1)[0]
    if before != value and before.strip() and not_a(setting.place, before.strip()) is None:
        reason = (
            f"{setting} is {value!r}, {what}: oslo.config has no comments behind a value, and the service that reads "
            "it does not start"
        )
        yield found("comment-behind-value", item, reason, "move the comment to a line of its own")
    else:
        fix = "write true or false" if setting.place in BOOLEANS else "write " + RIGHT[_kind(setting.place)]
        yield found("not-a-value", item, f"{setting} is {value!r}, {what}", fix)


RIGHT = {"integer": "a whole number", "float": "a number", "cpus": "CPUs as in 4-11,^6"}


def _kind(place: tuple[str, str]) -> str:
    return "integer" if place in INTEGERS else "float" if place in FLOATS else "cpus" if place in CPU_SETS else ""


def not_a(place: tuple[str, str], value: str) -> str | None:
    """What a value is not that the option must be, by Nova's own rules; None when Nova takes it."""
    if place in BOOLEANS:
        return None if value.lower() in (*TRUE, *FALSE) else "not a truth value"
    kind = _kind(place)
    if kind == "cpus":
        return _not_cpus(value)
    if not kind or not value.strip():
        return None
    try:
        number = int(value) if kind == "integer" else float(value)
    except ValueError:
        return f"not {RIGHT[kind]}"
    return "less than 0" if number < 0 else None


def _not_cpus(text: str) -> str | None:
    """As parse_cpu_spec of nova/virt/hardware.py, and those who call it."""
    chosen: list[tuple[int, int]] = []
    without: list[tuple[int, int]] = []
    for rule in filter(None, map(str.strip, text.split(","))):
        first, dash, last = rule.removeprefix("^").partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            return "not a set of CPUs"
        if high < low:
            return f"and the range {rule} runs backwards"
        (without if rule.startswith("^") else chosen).append((low, high))
    if not text or any(_left(one, without) for one in chosen):
        return None
    return "which leaves no CPU"


def _left(chosen: tuple[int, int], without: Sequence[tuple[int, int]]) -> bool:
    """Whether a range has a number that none of the others has."""
    low, high = chosen
    for start, end in sorted(without):
        if start > low:
            break
        low = max(low, end + 1)
    return low <= high


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
