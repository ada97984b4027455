"""Writes the site file as YAML, in a readable order, with comments above the keys that they are about."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from gpuyard.site.problems import Place

WIDTH = 118
NO_FOLD = 1_000_000
"""ruamel folds long texts at a width; a folded line is hard to search for."""
BLOCK_DEPTH = {"hosts": 1, "pools": 2, "flavors": 2, "projects": 1, "extra_aliases": 1}
"""The depth below a section down to which each key has a line of its own; deeper ones stand on one line."""
LONG = "properties"
"""Has a line for each key wherever it stands."""
ENTRIES = "extra_device_specs"
"""Has a line for each entry, and its host one for each key."""
QUOTED = ("release", "pci_in_placement", "models", "extra_aliases", ENTRIES, LONG)
"""Texts that older readers of YAML take for numbers and truth values: 2026.2, off, 1002:7408, true."""


def render(document: Mapping[str, Any], comments: Mapping[Place, str], header: Sequence[str]) -> str:
    """Return the text of a site file."""
    root = CommentedMap()
    for key, value in document.items():
        root[key] = _node(value, _depth(key, value), key in QUOTED)
    _comment(root, (), comments, 0)
    yaml = YAML(typ="rt")
    yaml.width = NO_FOLD
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(root, text)
    return "".join(f"# {line}".rstrip() + "\n" for line in header) + text.getvalue()


def _depth(key: str, value: Any) -> int:
    return 3 if key == "hosts" and any(ENTRIES in host for host in value.values()) else BLOCK_DEPTH.get(key, 0)


def _node(value: Any, depth: int, quoted: bool) -> Any:
    node: CommentedMap | CommentedSeq
    if isinstance(value, Mapping):
        node = CommentedMap(
            (_text(key, False), _node(child, 1 if key == LONG else depth - 1, quoted or key in QUOTED))
            for key, child in value.items()
        )
    elif isinstance(value, list):
        node = CommentedSeq(_node(child, depth - 1, quoted) for child in value)
    else:
        return _text(value, quoted) if isinstance(value, str) else value
    if depth <= 0:
        node.fa.set_flow_style()
    return node


def _text(text: str, quoted: bool) -> str:
    """What is not printable is written as an escape: ruamel's other styles lose some of it."""
    return DoubleQuotedScalarString(text) if quoted or not text.isprintable() else text


def _comment(node: CommentedMap, place: Place, comments: Mapping[Place, str], indent: int) -> None:
    for key, child in node.items():
        child_place = (*place, key)
        if child_place in comments:
            lines = textwrap.wrap(plain(comments[child_place]), WIDTH - indent - 2, break_on_hyphens=False)
            node.yaml_set_comment_before_after_key(key, before="\n".join(lines), indent=indent)
        if isinstance(child, CommentedMap) and child.fa.flow_style() is not True:
            _comment(child, child_place, comments, indent + 2)


def plain(text: str) -> str:
    """Return the text as one line, without anything that could end a comment: names of flavors and projects may hold
    any character."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
