"""Ini files as oslo.config reads them, with the line of everything.

oslo.config keeps neither lines nor order. What is a setting, a continuation, a comment and an error here is the same as
there; a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DEFAULT = "DEFAULT"
# oslo.config's string templates, without the escapes.
REFERENCE = re.compile(r"(?<![\\$])\$(?:\{([A-Za-z_][\w.-]*)\}|([A-Za-z_]\w*))")
TEMPLATE_VALUE = "{{"
# What Kolla's templates have and neither JSON nor Nova's options ever do.
TEMPLATE = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """One assignment: ``key = value`` with its continuation lines joined by newlines."""

    section: str
    """As written: oslo.config takes sections in any case, but for DEFAULT."""
    key: str
    value: str
    line: int
    """Line of the key, from 1."""

    @property
    def place(self) -> tuple[str, str]:
        """The section as oslo.config looks it up, and the key."""
        return normal_section(self.section), self.key

    @property
    def open(self) -> bool:
        """Whether something that is not in the file decides the value: a reference, or a template of Kolla."""
        return "$" in self.value or TEMPLATE_VALUE in self.value

    def __str__(self) -> str:
        return f"[{self.section}]{self.key}"


@dataclass(frozen=True)
class IniProblem:
    """Why oslo.config refuses to read the file."""

    line: int
    message: str


@dataclass(frozen=True)
class IniFile:
    """Settings in the order of the file; what stands after a problem is read too."""

    settings: tuple[Setting, ...]
    problems: tuple[IniProblem, ...]
    sections: tuple[tuple[str, int], ...]
    """Section headers as written, with their lines."""


def normal_section(section: str) -> str:
    """``[PCI]`` is ``[pci]``, but ``[default]`` is not ``[DEFAULT]``."""
    return section if section == DEFAULT else section.lower()


class _Reader:
    def __init__(self) -> None:
        self.settings: list[Setting] = []
        self.problems: list[IniProblem] = []
        self.sections: list[tuple[str, int]] = []
        self._section: str | None = None
        self._key = ""
        self._value: list[str] = []
        self._line = 0

    def read(self, text: str) -> IniFile:
        for number, raw in enumerate(_lines(text), start=1):
            line = raw.rstrip()
            if line.startswith((" ", "\t")):
                self._continuation(number, line)
                continue
            self._flush()
            if line.startswith("["):
                self._header(number, line)
            elif line and not line.startswith(("#", ";")):
                self._assignment(number, line)
        self._flush()
        return IniFile(tuple(self.settings), tuple(self.problems), tuple(self.sections))

    def _continuation(self, number: int, line: str) -> None:
        if self._key:
            self._value.append(line.lstrip())
        else:
            self._problem(number, "an indented line continues the value above it, and there is none")

    def _header(self, number: int, line: str) -> None:
        if not line.endswith("]"):
            self._problem(number, f"the section header {line!r} does not end with ]")
        elif len(line) <= 2:
            self._problem(number, "the section has no name")
        else:
            self._section = line[1:-1]
            self.sections.append((self._section, number))

    def _assignment(self, number: int, line: str) -> None:
        match = re.search("[:=]", line)
        if match is None:
            mark = " (the file begins with a byte order mark: remove it)" if line.startswith("\ufeff") else ""
            self._problem(number, f"{_short(line)!r} has neither = nor :{mark}")
            return
        key, value = line[: match.start()].strip(), line[match.end() :].strip()
        if value and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if not key:
            self._problem(number, "a value without a key")
        self._key, self._value, self._line = key, [value], number

    def _flush(self) -> None:
        if self._key:
            if self._section is None:
                self._problem(self._line, f"{self._key} stands before any [section]")
            else:
                self.settings.append(Setting(self._section, self._key, "\n".join(self._value), self._line))
        self._key, self._value = "", []

    def _problem(self, number: int, message: str) -> None:
        self.problems.append(IniProblem(number, message))


def _lines(text: str) -> list[str]:
    """Lines as a file that is opened for text has them: no other character than these ends one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def read_ini(text: str) -> IniFile:
    """The settings of a file, and what oslo.config would stumble over. Never raises."""
    return _Reader().read(text)


def without_template(text: str) -> str:
    """The text without the commands and comments of a template; lines stay where they are."""
    return TEMPLATE.sub(lambda match: "\n" * match.group().count("\n"), text)


def references(value: str) -> Iterator[tuple[str, tuple[str | None, str]]]:
    """Each ``$name``, ``${name}`` or ``${group.name}`` of a value, as written, with its group and name."""
    for match in REFERENCE.finditer(value):
        group, dot, name = (match.group(1) or match.group(2)).rpartition(".")
        yield match.group(), (group if dot else None, name)
