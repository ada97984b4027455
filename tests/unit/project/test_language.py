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
    | {"has_turn", "take_turn", "end_turns"}
)
FILLERS = frozenset({"one", "found", "wanted", "seen", "told", "said", "asked", "kept"})
"""Names of variables that say nothing of what they hold. For a few lines they may stand."""
FEW_LINES = 3
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


def _fillers(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Variables and parameters with names of FILLERS that live for more than a few lines."""
    lines: dict[str, list[int]] = {}
    bound: set[str] = set()
    for node in ast.walk(function):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        if name in FILLERS and isinstance(node, (ast.Name, ast.arg)):
            lines.setdefault(name, []).append(node.lineno)
            if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store):
                bound.add(name)
    yield from (name for name in sorted(bound) if max(lines[name]) - min(lines[name]) > FEW_LINES)


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


def test_variables_are_named_after_what_they_hold() -> None:
    functions = (
        (path, node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )
    assert {f"{_name(path)}:{node.lineno}": names for path, node in functions if (names := [*_fillers(node)])} == {}
