"""Problems of a site file, each with its place and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from gpuyard.model.errors import UsageError
from gpuyard.site.schema import Site

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """Something invalid in the site; `place` is the path of keys to it."""

    place: Place
    message: str


class SiteError(UsageError):
    """Raised for a site file with problems; all of them are in the message, one a line, with file and line."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def line_of(document: Any, place: Place) -> int:
    """Return the line (from 1) of the deepest part of the place that the document has."""
    line = 1
    for key in place:
        if isinstance(document, CommentedMap) and key in document:
            line = document.lc.key(key)[0] + 1
        elif isinstance(document, CommentedSeq) and isinstance(key, int) and key < len(document):
            line = document.lc.item(key)[0] + 1
        else:
            break
        document = document[key]
    return line


def located(file: str, document: Any, problems: Iterable[Problem]) -> SiteError:
    """Return the error for a list of problems, in the order in which they stand in the file."""
    placed = sorted(((line_of(document, p.place), p) for p in _unique(problems)), key=lambda pair: pair[0])
    return SiteError([f"{file}:{line}: {_path(p.place)}: {p.message}" for line, p in placed])


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _path(place: Place) -> str:
    return ".".join(str(part) for part in place) or "site"


def of_validation(error: ValidationError, document: Any, root: type[BaseModel] = Site) -> list[Problem]:
    """Return pydantic's errors in our words, each saying what to write. `root`: the model of the document."""
    problems = []
    for item in error.errors(include_url=False):
        place = tuple(part for part in item["loc"] if part not in ("[key]", *TAGS))
        problems.append(Problem(place, _message(item, place, root)))
    return problems


def _message(item: Any, place: Place, root: type[BaseModel]) -> str:
    kind, context, value = item["type"], item.get("ctx", {}), item.get("input")
    if kind == "extra_forbidden":
        known_keys = _known_keys(place[:-1], root)
        close = difflib.get_close_matches(str(place[-1]), known_keys, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(known_keys)}"
        return f"unknown key; {hint}"
    if kind == "missing":
        return "is missing; add it"
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"{value!r} does not look right; write {_PATTERN_HINTS.get(context['pattern'], context['pattern'])}"
    if kind == "literal_error":
        if not isinstance(value, str) and f"'{value}'" in context["expected"]:
            return f"{value} without quotes is a number; quote it: '{value}'"
        return f"{value!r} is not supported; write {context['expected']}"
    if kind in ("bool_parsing", "bool_type"):
        return f"{value!r} is neither true nor false; write one of them"
    if kind in ("float_parsing", "float_type", "finite_number"):
        return f"{value!r} is not a number; write one as in 2.0"
    if kind in ("int_type", "int_parsing", "int_parsing_size"):
        return f"{value!r} is not a whole number; write one without quotes or unit"
    if kind in _RANGE:
        bound = next(context[key] for key in ("ge", "le", "gt") if key in context)
        return f"{value!r} is out of range; write a number that is {_RANGE[kind]} {bound}"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"{value!r} is not a mapping; write 'key: value' lines below it"
    if kind == "list_type":
        item_text = repr(value) if set(str(value)) & set(",[]{}#") else value  # YAML would read more than one of it
        return f"{value!r} is not a list; write [{item_text}]"
    if kind == "too_short":
        return "is empty; add at least one"
    if kind == "string_too_short":
        return "is empty; write it, or leave the key out"
    if kind == "string_type":
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return f"{value} without quotes is a number; quote it: '{value}'"
        return f"{value!r} is not a text; write a single value, in quotes"
    if kind == "enum":
        return f"{value!r} is not supported; write {context['expected']}"
    return str(item["msg"])


_RANGE = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than"}
TAGS = ("amounts", "word")
"""Parts that pydantic puts into the place of a value that may be one of two things."""
_PATTERN_HINTS = {
    r"^[0-9a-f]{4}:[0-9a-f]{4}$": "vendor:product in lower-case hex, as in '10de:1db4' (quote it)",
    r"^[a-z0-9]+(-[a-z0-9]+)*$": "lower-case letters, digits and single dashes, as in 'v100'",
    r"^[A-Za-z0-9][A-Za-z0-9._+-]*$": "letters, digits and . _ + -",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits and . _ -",
    r"^CUSTOM_[A-Z0-9_]+$": "a name of Placement, as in 'CUSTOM_LICENSE'",
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "letters, digits, _ and -",
    r"^[A-Za-z0-9][A-Za-z0-9._+:=/-]*$": "a label of jobs, as in 'gpuyard-v100'",
    r"^[A-Za-z0-9](-?[A-Za-z0-9])*$": "the name of an organisation, as in 'conda-forge'",
    r"^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$": "a repository, as in 'owner/name'",
    r"^[A-Za-z0-9*?-]+/[A-Za-z0-9._*?-]+$": "repositories, as in 'conda-forge/*-gpu'",
    r"^https?://[^\s/'\"\\$`]+(/[A-Za-z0-9._~+:@%-]+)*/?$": "a mirror, as in 'http://deb.debian.org/debian'",
    r"^[1-9][0-9]{2}$": "the first number of a driver's version, as in '580' (quote it)",
    r"^[0-9]{2}-[0-9]$": "the version of CUDA as in NVIDIA's packages, '12-8'",
    r"^[0-9]{1,4}(\.[0-9]{1,6}){2}$": "a version, as in '2.330.0'",
    r"^[0-9a-f]{64}$": "64 digits of hexadecimal",
    r"^[a-z][a-z0-9]*$": "a release's code name, as in 'bookworm'",
    r"^[a-z0-9][a-z0-9.+-]*$": "the name of a package, as in 'git'",
    r"^https?://[^\s/]+$": "where GitHub is, as in 'https://github.example.org'",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$": "the name of a network interface, as in 'eno1'",
    r"^[A-Za-z0-9][A-Za-z0-9.:-]*$": "a name or an address, as in '10.0.0.11'",
    r"^[a-z][a-z0-9_]*$": "the name of a variable of Kolla, as in 'enable_cinder'",
    r"^[^\n]*$": "one line",
    r"^[a-z_][a-z0-9_-]*$": "the name of a user, as in 'root'",
}


def _known_keys(place: Place, root: type[BaseModel]) -> list[str]:
    """The keys that may stand at a place, found by walking the model along it."""
    model: Any = root
    for part in place:
        fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        annotation = fields[part].annotation if part in fields else model
        arguments = getattr(annotation, "__args__", ())
        models = [a for a in (annotation, *arguments) if isinstance(a, type) and issubclass(a, BaseModel)]
        if part in fields:
            model = models[0] if models else annotation
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
