"""Configuration files of Nova's services, and the view of them that one service on one host has, merged as
oslo.config does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar, cast

from gpuyard.model.host import Inventory
from gpuyard.nova.ini import DEFAULT, IniFile, IniSetting, normal_section, references

T = TypeVar("T")

TRUE = ("true", "1", "on", "yes")
FALSE = ("false", "0", "off", "no")

COMPUTE, API, SCHEDULER, CONDUCTOR = "nova-compute", "nova-api", "nova-scheduler", "nova-conductor"
SERVICES = (COMPUTE, API, SCHEDULER, CONDUCTOR)
PLACEMENT = "placement"


@dataclass(frozen=True)
class ConfigFile:
    """One configuration file, and the service that reads it."""

    path: str
    ini: IniFile
    folder: str = ""
    """Files of one folder belong together: the services read them in layers."""
    service: str | None = None
    """The service; None: every Nova service, or an unknown one."""
    host: str | None = None
    """The hypervisor, for a file that only one reads."""
    template: bool = False
    """Whether Kolla fills it in before Nova reads it."""
    alone: bool = False
    """Whether it is a whole configuration in itself, to which no other file is added: ``nova-gpu.conf``."""


@dataclass(frozen=True)
class Located:
    """A setting with its file."""

    file: ConfigFile
    setting: IniSetting

    @property
    def value(self) -> str:
        return self.setting.value

    def __str__(self) -> str:
        return f"{self.file.path}:{self.setting.line}"


@dataclass(frozen=True)
class Rejection:
    """Something that Nova does not accept, so that the services that read it do not start."""

    source: Located
    line: int
    reason: str
    fix: str
    json: bool = False
    """Whether it is not even JSON."""


def _by_name(view: View) -> dict[tuple[str, str], list[tuple[int, Located]]]:
    """(Normal section, key) -> its settings, each with its place among all: a linter asks for some at every line."""
    named: dict[tuple[str, str], list[tuple[int, Located]]] = {}
    settings = (Located(file, setting) for file in view.files for setting in file.ini.settings)
    for place, item in enumerate(settings):
        named.setdefault((normal_section(item.setting.section), item.setting.key), []).append((place, item))
    return named


@dataclass(frozen=True)
class View:
    """The files that one service on one host reads, in order; the later ones win."""

    service: str | None
    """The service; None when it is unknown: any service may be meant."""
    host: str | None
    files: tuple[ConfigFile, ...]
    inventory: Inventory | None = None
    """The inventory of the host, when a recording of it was given."""
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, what: str, make: Callable[[View], T]) -> T:
        """Return what `make` makes of this view; it is made once."""
        if what not in self.memory:
            self.memory[what] = make(self)
        return cast(T, self.memory[what])

    def serves(self, service: str) -> bool:
        """Return whether the service may read this."""
        return self.service in (None, service)

    @property
    def name(self) -> str:
        """The name for messages: ``nova-compute on gpu1``."""
        who = self.service or "Nova"
        return f"{who} on {self.host}" if self.host else who

    def under(self, names: Sequence[tuple[str, str]]) -> list[Located]:
        """Return the settings under all names of an option, newest name first: file by file and the older names first,
        as oslo.config adds them up."""
        items: list[Located] = []
        for file in self.files:
            for section, key in reversed(names):
                items += [item for item in self.all(section, key) if item.file is file]
        return items

    def all(self, section: str, *keys: str) -> Iterator[Located]:
        """Yield every setting of one of the keys, in the order in which oslo.config adds up their values."""
        named, group = self.once("settings", _by_name), normal_section(section)
        entries = [entry for key in set(keys) for entry in named.get((group, key), ())]
        yield from (item for _, item in (sorted(entries, key=itemgetter(0)) if len(keys) > 1 else entries))

    def last(self, section: str, *keys: str) -> Located | None:
        """Return the setting that counts; of several names for one option the first one that the last file has."""
        for file in reversed(self.files):
            items = [item for item in self.all(section, *keys) if item.file is file]
            for key in keys:
                named = [item for item in items if item.setting.key == key]
                if named:
                    return named[-1]
        return None

    def text(self, section: str, *keys: str) -> str | None:
        """Return the value that counts, with the references that can be followed put in."""
        item = self.last(section, *keys)
        return None if item is None else self._resolved(item.value, item.setting.section, 0)

    def _resolved(self, value: str, section: str, depth: int) -> str:
        for written, (group, name) in references(value) if depth < 5 else ():
            target = self.last(group or section, name) or self.last(group or DEFAULT, name)
            if target is not None:
                inner = self._resolved(target.value, target.setting.section, depth + 1)
                value = value.replace(written, inner)
        return value[:10_000]  # references to references could grow without end

    def boolean(self, section: str, key: str, default: bool = False) -> bool | None:
        """Return the value; None when it is set to something that is not a truth value."""
        text = self.text(section, key)
        if text is None:
            return default
        return True if text.lower() in TRUE else False if text.lower() in FALSE else None

    def number(self, section: str, key: str) -> float | None:
        """Return the value; None when it is not set or is not a number."""
        try:
            return float(self.text(section, key) or "")
        except ValueError:
            return None

    def names(self, section: str, *keys: str) -> list[str] | None:
        """Return a list that is separated by commas; None when it is not set."""
        text = self.text(section, *keys)
        if text is None:
            return None
        return [name.strip() for name in text.strip().rstrip(",").split(",") if name.strip()]
