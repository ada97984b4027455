"""Writes what the example sites come out as: ``python -m tools.examples``. Tests compare it and apply the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuyard.console.plan_output import plan_lines
from gpuyard.deployment.kolla.plain import plain_files
from gpuyard.site.load import load_site
from gpuyard.site.objects import ImageObject, SeenImage, SeenObjects
from gpuyard.site.plan import plan_site

EXAMPLES = Path(__file__).parents[1] / "examples"


def sites() -> list[Path]:
    """The site files."""
    return sorted(EXAMPLES.glob("*/site.yaml"))


def expected(site: Path) -> dict[str, str]:
    """File below the example's ``expected`` -> text: the rendered configuration, and the plan for a new cloud."""
    compiled = load_site(site).compiled
    cloud = SeenObjects(
        flavors=(),
        limits=(),
        projects=dict.fromkeys(compiled.site.projects, "an id"),
        images=tuple(SeenImage("an id", ImageObject(name)) for name in compiled.site.images),
        hosts=frozenset(compiled.site.hosts),
        up=frozenset(compiled.site.hosts),
    )
    plan = plan_site(compiled, cloud)
    assert not plan.refusals, plan.refused
    lines = [line for host in compiled.capacities for line in host.lines()]
    return {
        **plain_files(compiled),
        "plan.txt": "\n".join([*plan_lines(plan), ""]),
        "capacity.txt": "\n".join([*lines, ""]),
    }


def write() -> Iterator[Path]:
    """Write all; files that no longer come out are removed."""
    for site in sites():
        folder = site.parent / "expected"
        files = expected(site)
        for old in folder.rglob("*"):
            if old.is_file() and str(old.relative_to(folder)) not in files:
                old.unlink()
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            yield path


if __name__ == "__main__":
    for written in write():
        print(written)
