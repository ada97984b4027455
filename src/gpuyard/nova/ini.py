"""Parser of ini files as oslo.config reads them, with the line of everything.

oslo.config keeps neither lines nor order. Settings, continuations, comments and errors are the same here as there; a
test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.model.text import blocks, without_blocks

DEFAULT = "DEFAULT"
# oslo.config's string templates, without the escapes.
REFERENCE = re.compile(r"(?<![\\$])\$(?:\{([A-Za-z_][\w.-]*)\}|([A-Za-z_]\w*))")
TEMPLATE_VALUE = "{{"
# Commands and comments of Kolla's templates: neither JSON nor Nova's options ever have these.
TEMPLATE = {"{%": "%}", "{#": "#}"}

Branches = tuple[tuple[int, int], ...]
"""The conditions of a template that a line stands under: number of the condition, and which of its branches."""


@dataclass(frozen=True)
class IniSetting:
    """One assignment: ``key = value`` with its continuation lines joined by newlines."""

    section: str
    """The section as written: oslo.config accepts sections in any case, but for DEFAULT."""
    key: str
    value: str
    line: int
    """Line of the key, from 1."""
    branches: Branches = ()

    def excludes(self, other: IniSetting) -> bool:
        """Return whether a template has at most one of the two: they stand in different branches of one condition."""
        mine = dict(self.branches)
        return any(mine.get(number, way) != way for number, way in other.branches)

    @property
    def place(self) -> tuple[str, str]:
        """The section as oslo.config looks it up, and the key."""
        return normal_section(self.section), self.key

    @property
    def open(self) -> bool:
        """Whether the value depends on something outside the file: a reference, or a template of Kolla."""
        return "$" in self.value or TEMPLATE_VALUE in self.value

    def __str__(self) -> str:
        return f"[{self.section}]{self.key}"


@dataclass(frozen=True)
class IniProblem:
    """A reason why oslo.config refuses to read the file."""

    line: int
    message: str


@dataclass(frozen=True)
class IniFile:
    """A file's settings, in order; those after a problem are read too."""

    settings: tuple[IniSetting, ...]
    problems: tuple[IniProblem, ...]
    sections: tuple[tuple[str, int], ...]
    """Section headers as written, with their lines."""


def normal_section(section: str) -> str:
    """Return the section's normal form: ``[PCI]`` is ``[pci]``, but ``[default]`` is not ``[DEFAULT]``."""
    return section if section == DEFAULT else section.lower()


class _Reader:
    def __init__(self, branches: Sequence[Branches]) -> None:
        self._branches = branches
        self._comment = 0
        self.settings: list[IniSetting] = []
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
            elif line.startswith(("#", ";")):
                self._comment = number
            elif line:
                self._assignment(number, line)
        self._flush()
        return IniFile(tuple(self.settings), tuple(self.problems), tuple(self.sections))

    def _continuation(self, number: int, line: str) -> None:
        if self._key:
            self._value.append(line.lstrip())
        elif self._comment and self._comment == number - 1:
            self._problem(number, f"the comment in line {number - 1} ends the value above it, and this line goes on")
            self._comment = number
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
                under = self._branches[self._line - 1] if self._line <= len(self._branches) else ()
                self.settings.append(IniSetting(self._section, self._key, "\n".join(self._value), self._line, under))
        self._key, self._value = "", []

    def _problem(self, number: int, message: str) -> None:
        self.problems.append(IniProblem(number, message))


def _lines(text: str) -> list[str]:
    """Lines as a file that is opened for text has them: no other character than these ends one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def read_ini(text: str) -> IniFile:
    """Return the settings of a file, and the problems that oslo.config would have with it. Never raises."""
    return _Reader(()).read(text)


def read_template(text: str) -> tuple[IniFile, bool]:
    """Read a file that may be a template of Kolla: its settings, under whatever condition, and whether it is one."""
    tags = list(blocks(text, TEMPLATE))
    if not tags:
        return read_ini(text), TEMPLATE_VALUE in text
    return _Reader(_branches(text, tags)).read(without_blocks(text, TEMPLATE)), True


def _branches(text: str, tags: Sequence[tuple[int, int]]) -> list[Branches]:
    """For each line, the conditions that its beginning stands under."""
    branches: list[Branches] = [()]
    stack: list[tuple[int, int]] = []
    at = 0
    for number, (start, end) in enumerate([*tags, (len(text), len(text))]):
        branches += [tuple(stack)] * len(re.findall("\r\n|\r|\n", text[at:start]))
        word = text[start + 2 : start + 40].strip("-+ \t\n").partition(" ")[0].rstrip("-%}")
        if word in ("if", "for"):
            stack.append((number, 0))
        elif word in ("elif", "else") and stack:
            stack[-1] = (stack[-1][0], stack[-1][1] + 1)
        elif word in ("endif", "endfor") and stack:
            stack.pop()
        branches += [tuple(stack)] * text.count("\n", start, end)
        at = end
    return branches


def references(value: str) -> Iterator[tuple[str, tuple[str | None, str]]]:
    """Yield each ``$name``, ``${name}`` or ``${group.name}`` of a value, as written, with its group and name."""
    for match in REFERENCE.finditer(value):
        group, dot, name = (match.group(1) or match.group(2)).rpartition(".")
        yield match.group(), (group if dot else None, name)
