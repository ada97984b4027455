"""What the linter reads and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

from gpuyard.model.host import Inventory
from gpuyard.site.lint.ini import DEFAULT, IniFile, Setting, normal_section, references
from gpuyard.site.release import Release

T = TypeVar("T")

TRUE = ("true", "1", "on", "yes")
FALSE = ("false", "0", "off", "no")

COMPUTE, API, SCHEDULER, CONDUCTOR = "nova-compute", "nova-api", "nova-scheduler", "nova-conductor"
SERVICES = (COMPUTE, API, SCHEDULER, CONDUCTOR)
PLACEMENT = "placement"


class Severity(StrEnum):
    ERROR = "error"
    """A service does not start, or the setting does not do what it says."""
    WARNING = "warning"
    """It works, and will surprise."""
    NOTE = "note"
    """Worth knowing; nothing needs to be done."""


@dataclass(frozen=True)
class Rule:
    """One kind of finding. Its id does not change."""

    id: str
    severity: Severity
    """The usual one; a finding that is less sure of itself has a lower one."""
    sentence: str


@dataclass(frozen=True)
class Finding:
    """Something that goes wrong, with its place and what to write instead."""

    rule: str
    severity: Severity
    file: str
    line: int | None
    """From 1; None when it is about a file as a whole, or about a flavor."""
    reason: str
    fix: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class ConfigFile:
    """One file, and who reads it."""

    path: str
    ini: IniFile
    folder: str = ""
    """Files of one folder belong together: the services read them in layers."""
    service: str | None = None
    """None: every Nova service, or nobody knows which."""
    host: str | None = None
    """Set for what only one hypervisor reads."""
    template: bool = False
    """Kolla fills it in before Nova reads it."""
    alone: bool = False
    """A whole configuration in itself, that no other file is added to: ``nova-gpu.conf``."""


@dataclass(frozen=True)
class Located:
    """A setting with its file."""

    file: ConfigFile
    setting: Setting

    @property
    def value(self) -> str:
        return self.setting.value

    def __str__(self) -> str:
        return f"{self.file.path}:{self.setting.line}"


@dataclass(frozen=True)
class View:
    """What one service on one host reads: its files in order, the later ones win."""

    service: str | None
    """None when it is not known whose the files are: any service may be meant."""
    host: str | None
    files: tuple[ConfigFile, ...]
    inventory: Inventory | None = None
    """Of the host, when a recording of it was given."""
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, what: str, make: Callable[[View], T]) -> T:
        """What `make` makes of this view; it is made once."""
        if what not in self.memory:
            self.memory[what] = make(self)
        return cast(T, self.memory[what])

    def serves(self, service: str) -> bool:
        """Whether the service may read this."""
        return self.service in (None, service)

    @property
    def name(self) -> str:
        """For messages: ``nova-compute on gpu1``."""
        who = self.service or "Nova"
        return f"{who} on {self.host}" if self.host else who

    def under(self, names: Sequence[tuple[str, str]]) -> list[Located]:
        """The settings under all names of an option, newest name first: file by file and the older names first, as
        oslo.config adds them up."""
        found: list[Located] = []
        for file in self.files:
            for section, key in reversed(names):
                found += [item for item in self.all(section, key) if item.file is file]
        return found

    def all(self, section: str, *keys: str) -> Iterator[Located]:
        """Every setting of one of the keys, in the order in which oslo.config adds up their values."""
        for file in self.files:
            for setting in file.ini.settings:
                if setting.key in keys and normal_section(setting.section) == normal_section(section):
                    yield Located(file, setting)

    def last(self, section: str, *keys: str) -> Located | None:
        """The setting that counts; of several names for one option the first one that the last file has."""
        for file in reversed(self.files):
            found = [item for item in self.all(section, *keys) if item.file is file]
            for key in keys:
                named = [item for item in found if item.setting.key == key]
                if named:
                    return named[-1]
        return None

    def text(self, section: str, *keys: str) -> str | None:
        """The value that counts, with the references that can be followed put in."""
        found = self.last(section, *keys)
        return None if found is None else self._resolved(found.value, found.setting.section, 0)

    def _resolved(self, value: str, section: str, depth: int) -> str:
        for written, (group, name) in references(value) if depth < 5 else ():
            target = self.last(group or section, name) or self.last(group or DEFAULT, name)
            if target is not None:
                inner = self._resolved(target.value, target.setting.section, depth + 1)
                value = value.replace(written, inner)
        return value[:10_000]  # references to references could grow without end

    def boolean(self, section: str, key: str, default: bool = False) -> bool | None:
        """The value; None when it is set to something that is not a truth value."""
        text = self.text(section, key)
        if text is None:
            return default
        return True if text.lower() in TRUE else False if text.lower() in FALSE else None

    def number(self, section: str, key: str) -> float | None:
        """The value; None when it is not set or is not a number."""
        try:
            return float(self.text(section, key) or "")
        except ValueError:
            return None

    def names(self, section: str, key: str) -> list[str] | None:
        """A list that is separated by commas; None when it is not set."""
        text = self.text(section, key)
        if text is None:
            return None
        return [name.strip() for name in text.strip().rstrip(",").split(",") if name.strip()]


@dataclass(frozen=True)
class FlavorText:
    """A flavor as far as the linter looks at it."""

    name: str
    extra_specs: dict[str, str]


@dataclass(frozen=True)
class Subject:
    """All that is given to be looked at."""

    files: tuple[ConfigFile, ...]
    views: tuple[View, ...]
    release: Release
    flavors: tuple[FlavorText, ...] = ()
    flavors_from: str = "flavors"
    """Where the flavors are from: a file or a cloud."""
    placement: tuple[View, ...] = field(default_factory=tuple)
    """Placement's own configuration, if it was given."""

    def of(self, service: str) -> list[View]:
        return [view for view in self.views if view.serves(service)]


def unique(findings: Iterable[Finding]) -> list[Finding]:
    """Without repetitions: what stands in a file that several services read is found once for each."""
    return list(dict.fromkeys(findings))
