"""Options of OpenStack services, each with its service, section and reason; and their rendering as ini files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One line of an ini file. The same key may come more than once where the service reads a list of values."""

    section: str
    key: str
    value: str
    reason: str = ""


@dataclass(frozen=True)
class ServiceOptions:
    """The options of one service, or of one service on one host."""

    service: str
    """``nova`` (every Nova service), ``nova-scheduler``, ``nova-compute`` or ``placement``."""
    host: str | None
    """The host, for options that differ from host to host."""
    options: tuple[Option, ...]

    def values(self, section: str, key: str) -> list[str]:
        """Return all values of a key, in order."""
        return [option.value for option in self.options if (option.section, option.key) == (section, key)]


def compact_json(value: dict[str, str]) -> str:
    """Return JSON on one line, keys in the given order, as ``device_spec`` and ``alias`` take it."""
    return json.dumps(value, separators=(", ", ": "))


def render_ini(options: Iterable[Option]) -> str:
    """Return an ini file with each reason as a comment above the first option that has it."""
    by_section: dict[str, list[Option]] = {}
    for option in options:
        by_section.setdefault(option.section, []).append(option)
    lines: list[str] = []
    for section, members in by_section.items():
        lines.append(f"[{section}]")
        reason = ""
        for option in members:
            if option.reason and option.reason != reason:
                lines.append(f"# {option.reason}")
            reason = option.reason
            lines.append(f"{option.key} = {option.value}")
        lines.append("")
    return "\n".join(lines)


def file_name(options: ServiceOptions) -> str:
    """Return the path of a service's options below a folder: ``nova/nova.conf``, ``nova/HOST/nova-compute.conf``."""
    if options.service == "placement":
        return "placement.conf"
    name = f"{options.service}.conf"
    return f"nova/{options.host}/{name}" if options.host else f"nova/{name}"
