"""Names of classes: one meaning each."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "src/gpuyard", ROOT / "lab/src/gpuyard_lab")


def test_no_two_public_classes_have_one_name() -> None:
    """Who reads a name in a trace, a log or a search shall know which class it is."""
    places_by_name = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places_by_name[node.name].append(str(path.relative_to(ROOT)))
    assert len(places_by_name) > 300
    assert {name: places for name, places in places_by_name.items() if len(places) > 1} == {}
