"""Checks names and values of options: old names, wrong sections, unknown names, and values that cannot be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.config import ConfigFile, Located, View
from gpuyard.nova.filters import with_defaults
from gpuyard.nova.ini import DEFAULT, IniSetting, normal_section
from gpuyard.nova.options import (
    ALIAS,
    AVAILABLE_FILTERS,
    DEVICE_SPEC,
    ENABLED_FILTERS,
    PCI_OPTIONS,
    RENAMED,
    RIGHT,
    SECTIONS,
    SINGLE,
    Place,
    Renamed,
    kind_of,
    names_of,
    not_a,
)
from gpuyard.nova.release import Release

MOST_PROBLEMS = 3
"""Lines that are told of a file that is not read; with more it is something else."""


def check_file(file: ConfigFile, release: Release) -> Iterator[Finding]:
    """Return findings about one file, whichever service reads it."""
    yield from _not_ini(file)
    if file.template:
        reason = "it is a template: values that Kolla fills in are not judged, and both ways of a condition are"
        yield found("template", file.path, reason, "look at what Kolla made of it: /etc/kolla/SERVICE/nova.conf")
    for section, line in file.ini.sections:
        if section != DEFAULT and section.lower() == "default":
            reason = f"[{section}] is a section of its own, which no service reads"
            yield found("default-section-case", file.path, reason, "write [DEFAULT]", line=line)
    settings_by_place: dict[Place, list[IniSetting]] = {}
    for setting in file.ini.settings:
        item, before = Located(file, setting), settings_by_place.setdefault(setting.place, [])
        if setting.place not in RENAMED or not before:
            yield from _name(item, release)
        yield from _value(item)
        same = next((earlier for earlier in reversed(before) if not earlier.excludes(setting)), None)
        if setting.place in SINGLE and same is not None:
            reason = f"{setting} is set in line {same.line} already; this one counts"
            yield found("repeated-option", item, reason, "keep one of them")
        before.append(setting)


def _not_ini(file: ConfigFile) -> Iterator[Finding]:
    problems = file.ini.problems
    more = len(problems) - MOST_PROBLEMS
    for number, problem in enumerate(problems[:MOST_PROBLEMS], start=1):
        message, fix = problem.message, "mend the line; oslo.config stops at it"
        if more > 0 and number == MOST_PROBLEMS:
            message += f", and {more} more line{'' if more == 1 else 's'} like these"
            fix = "is this a nova.conf?"
        yield found("not-an-ini-file", file.path, message, fix, line=problem.line)


def _name(item: Located, release: Release) -> Iterator[Finding]:
    setting = item.setting
    section, key = setting.place
    renamed = RENAMED.get((section, key))
    right = SECTIONS.get(key)
    if renamed is not None:
        old, new = map(_written, (renamed.old, renamed.new))
        if renamed.read_by(release):
            reason = f"{old} is the old name of {new}; Nova still reads it"
            yield found("renamed-option", item, reason, _rename(renamed))
        else:
            yield found("dead-option", item, f"{old} is ignored; the option is {new}", _instead(renamed, item.value))
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


def _written(option: Place) -> str:
    return f"[{option[0]}]{option[1]}"


def _rename(renamed: Renamed) -> str:
    section, key = renamed.new
    return f"rename it to {key}" if section == renamed.old[0] else f"move it to [{section}] as {key}"


def _instead(renamed: Renamed, value: str) -> str:
    """What to write for a name that nobody reads."""
    if renamed.new == ENABLED_FILTERS:
        return f"set {_written(renamed.new)} = {','.join(with_defaults([name.strip() for name in value.split(',')]))}"
    if renamed.new == AVAILABLE_FILTERS:
        new = _written(renamed.new)
        return f"remove it: all filters of Nova are available; only for filters of your own, set {new}"
    return _rename(renamed)


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
        yield found("not-a-value", item, f"{setting} is {value!r}, {what}", f"write {RIGHT[kind_of(setting.place)]}")


def check_view(view: View) -> Iterator[Finding]:
    """Return findings about old and new names together, and about lists that two layers set."""
    for names in map(names_of, (DEVICE_SPEC, ALIAS)):
        items = [item for section, key in names for item in view.all(section, key)]
        used = list(dict.fromkeys(str(item.setting) for item in items))
        current = [item for item in items if item.setting.place == names[0]]
        for item in items:
            if item.setting.place != names[0] and any(not item.setting.excludes(newer.setting) for newer in current):
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
