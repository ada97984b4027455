"""The documentation is true: generated pages are current, and every command, setting, metric and package is in it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from tools.reference import REFERENCE, commands, documents, inventory_schema

import gpuyard
from gpuyard.cli.main import every_command
from gpuyard.host.checks import CHECKS
from gpuyard.host.recording import replay_file
from gpuyard.host.report import to_json
from gpuyard.site.runner_rules import Allowed, Enrolment, GitHubApp, Idle, RunnerLimits, ScaleSet, SiteRunners
from gpuyard.site.schema import Flavor, Host, Limits, Pool, Project, Site
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.shown_commands import ELSEWHERE, ON_THE_LAB, typed_on

ROOT = REFERENCE.parents[1]
PACKAGES = sorted(path.parent.name for path in Path(gpuyard.__file__).parent.glob("*/__init__.py"))


def pages() -> dict[str, str]:
    """Everything that people read."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


@pytest.mark.parametrize("name", documents())
def test_what_is_generated_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == documents()[name], "run: make docs"


def test_every_command_that_the_pages_show_exists() -> None:
    known_commands = set(re.findall(r"^#+ (gpuyard.*)$", commands(), re.MULTILINE))
    groups = {command.split()[1] for command in known_commands if command.count(" ") == 2}
    for page, text in pages().items():
        fenced = re.findall(r"^```.*?^```$", text, re.M | re.S)
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        code = " ".join([*fenced, *re.findall(r"``.+?``|`[^`]+`|^ {4}.*$", prose, re.M)])
        for first, second in re.findall(r"gpuyard ([a-z]+)(?: ([a-z]+))?", code):
            shown = f"gpuyard {first} {second}" if first in groups and second else f"gpuyard {first}"
            assert shown in known_commands, f"{page} shows {shown!r}"


def shown(page: str) -> list[list[str]]:
    """The commands of ours in the indented lines of a page, as a shell would hand them over."""
    lines = re.findall(r"^ {4}(?:\w+=\S+ )?gpuyard (.*)$", pages()[page].replace("\\\n", " "), re.MULTILINE)
    command_lines = []
    for line in lines:
        words = shlex.split(re.sub(r"\$\([^)]*\)", "WORD", line), comments=True)
        ends = [n for n, word in enumerate(words) if word in ("|", ">", ">>", "<", "&&", "||", ";", "&", "2>")]
        command_lines.append(words[: ends[0]] if ends else words)
    return command_lines


def test_every_command_of_a_how_to_is_run_somewhere() -> None:
    for page in pages():
        if page.startswith(("docs/how-to/", "docs/explanation/")):
            for line in typed_on(page):
                elsewhere = [test for words, test in ELSEWHERE.items() if words in line]
                assert page in ON_THE_LAB or elsewhere, f"{page} shows {line!r}, which no test runs"
                assert all((ROOT / test).exists() for test in elsewhere), elsewhere
    for page, how in ON_THE_LAB.items():
        shown = typed_on(page)
        assert shown, page
        for line in (*how.before, *how.refused):
            assert line in shown, f"{page} does not show {line!r} any more"


@pytest.mark.parametrize("page", [page for page in pages() if not page.startswith("docs/reference")])
def test_every_command_that_a_page_shows_is_taken(page: str) -> None:
    """Its options and arguments: whether its files are there, and what it then does, others try."""
    for words in shown(page):
        command: Any = every_command()
        context, rest = None, words
        try:
            while hasattr(command, "commands"):
                context = command.make_context("gpuyard", list(rest), parent=context)
                _, subcommand, rest = command.resolve_command(context, [*context._protected_args, *context.args])
                assert subcommand is not None
                command = subcommand
            command.make_context("gpuyard", list(rest), parent=context)
        except (typer.BadParameter, typer.Exit) as error:
            if type(error).__name__ == "MissingParameter":
                pytest.fail(f"gpuyard {' '.join(words)}: {error}")


def test_every_environment_variable_is_explained_by_hand() -> None:
    text = "\n".join(text for name, text in pages().items() if not name.startswith("docs/reference"))
    variables = set(re.findall(r"env var: ([A-Z_]+)", commands()))
    assert variables >= {"GPUYARD_SITE", "GPUYARD_PORT", "GPUYARD_LAB_STATE"}
    assert not [name for name in variables if name not in text]


def test_every_key_of_the_site_file_is_explained() -> None:
    text = (ROOT / "docs/how-to/describe-a-site.md").read_text()
    for model in (Site, Host, Pool, Flavor, Project, Limits):
        for key in model.model_fields:
            assert f"`{key}`" in text, f"{model.__name__}.{key}"


def test_every_key_of_runners_is_explained() -> None:
    text = (ROOT / "docs/how-to/configure-runners.md").read_text()
    for model in (SiteRunners, RunnerLimits, Enrolment, ScaleSet, Allowed, Idle, GitHubApp):
        for key in model.model_fields:
            assert f"`{key}`" in text, f"{model.__name__}.{key}"


def test_every_check_of_a_host_is_explained() -> None:
    text = (ROOT / "docs/how-to/check-a-host.md").read_text()
    assert [name for name in CHECKS if f"| `{name}` |" not in text] == []


def test_every_package_has_its_sentence() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert [name for name in PACKAGES if f"| `{name}/` |" not in text] == []


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith(("docs/how-to/", "docs/explanation/"))])
def test_a_page_has_the_words_of_its_address(page: str) -> None:
    """Who knows what it is about finds it by searching."""
    text, words = pages()[page].lower(), Path(page).stem.split("-")
    assert [word for word in words if word not in text] == []


def test_every_behaviour_of_a_stand_in_names_its_source() -> None:
    """A row without a source outside of gpuyard is an opinion."""
    for page in (page for page in pages() if page.startswith("docs/reference/stand-ins/") and "index" not in page):
        rows = [line.strip("|").split("|") for line in pages()[page].splitlines() if line.startswith("|")]
        header, _rule, *behaviours = [[cell.strip() for cell in row] for row in rows]
        assert header == ["behaviour", "source", "checked how"], page
        assert [row for row in behaviours if len(row) != 3 or not all(row)] == [], page
        assert "\n## What is not known\n" in pages()[page], page


def test_every_page_is_in_the_index() -> None:
    text = pages()["docs/index.md"]
    named = [page.removeprefix("docs/").removesuffix(".md") for page in pages() if page.startswith("docs/")]
    assert [name for name in named if not name.startswith(("adr/0", "index")) and f"\n{name}\n" not in text] == []


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", pages()[page]):
        if not target.startswith(("http://", "https://")):
            assert ((ROOT / page).parent / target).exists(), target


def test_a_scan_is_what_the_inventory_schema_says() -> None:

    recording = EXAMPLE_SITE.parent / "recordings/epyc-v100.json"
    document = json.loads(to_json(replay_file(recording)))
    jsonschema.validate(document, inventory_schema())
    del document["slots"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, inventory_schema())


def test_every_command_says_what_it_does() -> None:
    for path, command in walk(every_command(), "gpuyard"):
        assert command.help, f"{path} has no help"


def walk(command: Any, path: str) -> list[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    return [
        (path, command),
        *(entry for name, subcommand in below.items() for entry in walk(subcommand, f"{path} {name}")),
    ]
