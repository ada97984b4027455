"""Takes a YAML document apart value by value, and collects findings about what is wrong. Nothing in here raises."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from gpuyard.model.finding import Finding
from gpuyard.model.text import printable
from gpuyard.runners.cirun.rules import RULES
from gpuyard.site.document import Bounds, Document, DocumentError, Path, document

MOST_CHARACTERS = 64 * 1024
"""Characters of the largest file that is read. The largest that is known of has 12,000."""
BOUNDS = Bounds(values=6_000, depth=12)
"""The densest files that are known of would have half as many at MOST_CHARACTERS. Reading takes some 40 microseconds
each."""
MOST_TEXT = 300
"""Characters of a value, but for URLs."""
MOST_URL = 2000


@dataclass
class Reading:
    """One file that is being read, and the findings in it so far."""

    file: str
    findings: list[Finding] = field(default_factory=list)
    document: Document = field(default_factory=lambda: Document(None, {}))

    def open(self, text: str) -> bool:
        """Parse the text. Returns whether there is a document now."""
        if len(text) > MOST_CHARACTERS:
            reason = f"larger than {MOST_CHARACTERS // 1024} KiB, which no such file is"
            self.say("not-yaml", (), reason, "make it smaller")
            return False
        try:
            self.document = document(text, BOUNDS)
        except DocumentError as error:
            self.say_at(error.line, "not-yaml", error.problem)
            return False
        return True

    def say(self, rule: str, path: Path, reason: str, remedy: str = "") -> None:
        self.say_at(self.document.line(path), rule, reason, remedy)

    def say_at(self, line: int, rule: str, reason: str, remedy: str = "") -> None:
        """Add a finding at a line. Text of the file may be in it as it is."""
        self.findings.append(finding(rule, self.file, line, reason, remedy))

    @property
    def top(self) -> Mapping[str, Any] | None:
        """Return the document as a mapping; None with a finding when it is something else."""
        return self.mapping((), self.document.value, "the file")

    def mapping(self, path: Path, value: object, what: str) -> Mapping[str, Any] | None:
        if isinstance(value, dict):
            return {str(key): item for key, item in value.items()}
        self.say("wrong-form", path, f"{what} is {shown(value)}, not 'key: value' lines", "write such lines")
        return None

    def entries(
        self, within: Mapping[str, Any], key: str, most: int, path: Path = ()
    ) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Yield the mappings of a list, with their places; anything else in it becomes a finding."""
        value, place = within.get(key), (*path, key)
        if value is None:
            return
        if not isinstance(value, list):
            self.say("wrong-form", place, f"{key!r} is {shown(value)}, not a list", "start each entry with a dash")
            return
        if len(value) > most:
            self.say("too-many", (*place, most), f"{len(value)} entries of {key!r}; the first {most} count")
        for index, item in enumerate(value[:most]):
            if (entry := self.mapping((*place, index), item, f"an entry of {key!r}")) is not None:
                yield (*place, index), entry

    def text(self, path: Path, value: object, most: int = MOST_TEXT) -> str | None:
        """Return a text without surrounding space; None with a finding when it is no text, empty, too long or not
        printable."""
        what = f"{path[-1]!r}" if isinstance(path[-1], str) else f"an entry of {path[-2]!r}"
        if not isinstance(value, str):
            hint = f"quote it: '{value}'" if isinstance(value, (int, float, date)) else "write text"
            self.say("wrong-form", path, f"{what} is {shown(value)}, not text", hint)
            return None
        if not value.strip() or len(value) > most or not value.isprintable():
            problem = f"longer than {most} characters" if len(value) > most else "empty or has control characters"
            self.say("wrong-form", path, f"{what} is {problem}", "write text of one line")
            return None
        return value.strip()

    def texts(self, within: Mapping[str, Any], key: str, path: Path, most: int, length: int = MOST_TEXT) -> list[str]:
        """Return a list of texts, or one text alone as a list; anything else is left out with a finding."""
        value, place = within.get(key), (*path, key)
        if value is None:
            return []
        if not isinstance(value, list):
            single = self.text(place, value, length)
            return [] if single is None else [single]
        if len(value) > most:
            self.say("too-many", (*place, most), f"{len(value)} entries of {key!r}; the first {most} count")
        read = (self.text((*place, index), item, length) for index, item in enumerate(value[:most]))
        return [text for text in read if text is not None]

    def truth(self, path: Path, value: object) -> bool | None:
        """Return true or false; None with a finding for anything else."""
        if isinstance(value, bool):
            return value
        what = f"{path[-1]!r}" if isinstance(path[-1], str) else f"an entry of {path[-2]!r}"
        self.say("wrong-form", path, f"{what} is {shown(value)}, neither true nor false", "write true or false")
        return None

    def number(self, within: Mapping[str, Any], key: str, path: Path, least: int, most: int) -> int | None:
        """Return a whole number; None with a finding when it is missing, no whole number or out of range."""
        value = within.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        problem = f"{key!r} is missing" if value is None else f"{key!r} is {shown(value)}"
        self.say("wrong-form", (*path, key), problem, f"write a whole number from {least} to {most}")
        return None

    def unknown(
        self, within: Mapping[str, Any], known_keys: Collection[str], path: Path, older: Collection[str] = ()
    ) -> None:
        """Add a finding for each key that nobody reads."""
        for key in within:
            if key in older:
                self.say("ignored-key", (*path, key), f"gpuyard has no use for {key!r}, and ignores it")
            elif key not in known_keys:
                close = difflib.get_close_matches(key[:MOST_TEXT], known_keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(known_keys)}"
                self.say("unknown-key", (*path, key), f"{key[:MOST_TEXT]!r} means nothing here, and is ignored", hint)


def finding(rule: str, file: str, line: int, reason: str, remedy: str = "") -> Finding:
    """Return a finding about a line of a file."""
    place = f"{file}:{line}"
    payload = {"file": file, "line": line}
    return Finding(rule, RULES[rule].severity, place, printable(reason), printable(remedy), payload)


def shown(value: object) -> str:
    """Return a value as it stands in a sentence, whatever it is."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
