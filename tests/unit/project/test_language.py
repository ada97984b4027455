"""Words that newcomers had to look up, and that may not come back: names are the field's (docs/architecture.md,
Words)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "src/gpuyard", ROOT / "lab/src/gpuyard_lab")
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if "migrations" not in path.parts)
CLASSES = re.compile(r"(Desks?|Yard|Doorman|Keeper|Crew|Errand|Hands|Sights?|Doors?)$")
FILES = re.compile(r"(^|_)(desk|yard|doorman|keeper|crew|errand|hands|sights?|doors?|board|tries)$")
NAMES = frozenset(
    {"desk", "_desk", "desks", "_desks", "doorman", "_doorman", "crew", "_crew", "hands", "_hands", "_keeper"}
)
STILL = frozenset({"store/tries"})
"""Files that have such a name still: tries are the attempts to accept a GPU, and so is their table."""


def _name(path: Path) -> str:
    (name,) = [path.relative_to(package.parent) for package in PACKAGES if path.is_relative_to(package)]
    return name.as_posix().removesuffix(".py")


def _classes(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _one_letter_aliases(tree: ast.Module) -> Iterator[str]:
    """`S = BookingState`: six modules had an `S`, each another enum. Type variables are no aliases."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name) and len(target.id) == 1)


def test_files_have_names_of_the_field() -> None:
    bad = [_name(path) for path in MODULES if FILES.search(path.stem)]
    assert [name for name in bad if not any(name.endswith(still) for still in STILL)] == []


def _words_that_came_back(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    yield from (name for name in _classes(tree) if CLASSES.search(name))
    yield from _one_letter_aliases(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from sorted({token.string for token in tokens if token.type == tokenize.NAME} & NAMES)


def test_names_are_of_the_field() -> None:
    assert {_name(path): words for path in MODULES if (words := list(_words_that_came_back(path)))} == {}
