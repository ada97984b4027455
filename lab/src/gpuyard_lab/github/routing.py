"""Routes methods and paths to their handlers by templates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote

Target = TypeVar("Target")


class Routes(Generic[Target]):
    """A table of templates such as ``/repos/{owner}/{repo}/contents/{path...}``, where the last takes all that is
    left."""

    def __init__(self, rows: Iterable[tuple[str, str, Target]]) -> None:
        self._rows: dict[tuple[str, str], list[tuple[list[str], Target]]] = defaultdict(list)
        for method, template, target in rows:
            segments = template.strip("/").split("/")
            self._rows[method, segments[0]].append((segments, target))

    def find(self, method: str, path: str) -> tuple[Target, dict[str, str]] | None:
        """Return the target of a path, and the values of the names in braces; None when there is none."""
        path_parts = [unquote(part) for part in path.strip("/").split("/")]
        for segments, target in self._rows.get((method, path_parts[0]), ()):
            parts = match(segments, path_parts)
            if parts is not None:
                return target, parts
        return None


def match(segments: list[str], path_parts: list[str]) -> dict[str, str] | None:
    rest = segments[-1].endswith("...}")
    if len(path_parts) < len(segments) or (len(path_parts) > len(segments) and not rest):
        return None
    parts = {}
    for segment, part in zip(segments, path_parts, strict=False):
        if segment.startswith("{"):
            parts[segment.strip("{}").removesuffix("...")] = part
        elif segment != part:
            return None
    if rest:
        parts[segments[-1].strip("{}").removesuffix("...")] = "/".join(path_parts[len(segments) - 1 :])
    return parts
