"""Parses the output of ansible-playbook, line by line: the present task, and why tasks failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

TASK = re.compile(r"^(?:TASK|RUNNING HANDLER|PLAY) \[(.*)\] \*+$")
FAILED = re.compile(r"^(fatal|failed): \[([^\]]+)\](?:: (FAILED|UNREACHABLE)!)?(?: \(item=(.*?)\))? => (.*)$")
ERROR = re.compile(r"^(?:ERROR! |\[ERROR\]: )(.*)$")
KOLLA_ERROR = re.compile(r"^(?:Kolla |The |kolla-ansible: )\S.*(?:invalid|exited|error|not found).*$", re.IGNORECASE)
TRACEBACK = "Traceback (most recent call last)"
EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception|Exit|Interrupt): .*$", re.MULTILINE)
LONGEST = 400
SHORTEST_SECRET = 6


@dataclass(frozen=True)
class Failure:
    """A failure; `host` and `task` are empty when it was before any task."""

    host: str
    task: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.host, self.task, self.reason) if part)


@dataclass
class OutputReader:
    """Reader that is fed lines, and remembers the last task and the failures that Ansible did not ignore."""

    task: str = ""
    failures: list[Failure] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    last: str = ""
    _open: list[str] = field(default_factory=list)
    """Lines of a failure whose JSON is not complete yet."""

    def feed(self, line: str) -> bool:
        """Take one line without its end. Return True when a new task begins."""
        if self._open:  # JSON on many lines, as with -v
            self._open.append(line)
            if line == "}":
                self._failed("\n".join(["{", *self._open[1:]]))
            return False
        if line.strip():
            self.last = line.strip()
        match = TASK.match(line)
        if match:
            self.task = match[1]
            return True
        if line == "...ignoring" and self.failures:
            self.failures.pop()
        elif match := FAILED.match(line):
            self._open = [line]
            if match[5] != "{":
                self._failed(match[5])
        elif match := ERROR.match(line) or KOLLA_ERROR.match(line):
            self.errors.append((match[1] if match.re is ERROR else match[0])[:LONGEST])
        return False

    def _failed(self, body: str) -> None:
        """Take a failure: JSON, or the text that stands there instead of it."""
        match = FAILED.match(self._open[0])
        assert match is not None
        try:
            reason = _reason(json.loads(body))
        except ValueError:
            reason = body
        item = f" (item {match[4]})" if match[4] else ""
        self.failures.append(Failure(match[2], f"{self.task}{item}", reason[:LONGEST]))
        self._open = []

    def why(self) -> tuple[Failure, ...]:
        """Return all failures; when there are none, the errors or the last line."""
        if self.failures:
            return tuple(self.failures)
        return tuple(Failure("", "", text) for text in self.errors or ([self.last] if self.last else []))


def _reason(result: Any) -> str:
    """Ansible's result as one line: what a person would look for in it."""
    if not isinstance(result, dict):
        return str(result)
    message = str(result.get("msg", "")).strip()
    more = next((str(result[key]).strip() for key in ("module_stderr", "stderr", "stdout") if result.get(key)), "")
    if more and (message in ("", "non-zero return code") or "module_stderr" in result):
        message = ": ".join(part for part in (message, _essence(more)) if part)
    return " ".join(_essence(message).split()) or json.dumps(result)


def _essence(text: str) -> str:
    """Of a traceback its exceptions; all of another text."""
    if TRACEBACK in text:
        return "; ".join(EXCEPTION.findall(text.replace("\\n", "\n").replace("\\'", "'"))) or text
    return text


def secrets_in(text: str) -> tuple[str, ...]:
    """Return the values of passwords.yml that must not be shown; none when it is encrypted. Long ones first."""
    try:
        document = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return ()
    secrets: set[str] = set()
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, str):
            secrets.update(_parts(value))
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def _parts(value: str) -> Iterable[str]:
    """The value, and the lines of a long one: keys are shown line by line."""
    lines = value.strip().splitlines()
    texts = [value.strip(), "\\n".join(lines)] if len(lines) > 1 else [value.strip()]
    texts += [line for line in lines if len(line) > 30 and len(lines) > 1]
    return (text for text in texts if len(text) >= SHORTEST_SECRET and "{{" not in text)


@dataclass(frozen=True)
class Redactor:
    """Replaces secrets in text."""

    secrets: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, "*****")
        return text
