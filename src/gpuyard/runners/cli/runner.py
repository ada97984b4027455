"""``gpuyard runner``: runners for GitHub jobs, who may use them and why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.console.findings import FindingFormat, FindingFormatOption, counts, print_findings
from gpuyard.console.options import DEFAULT_SITE, SiteOption
from gpuyard.console.output import ColumnOption, print_yaml
from gpuyard.diagnosis.cli.why import WhyFormat
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Severity, worst
from gpuyard.model.text import printable
from gpuyard.runners.cli import runner_list

if TYPE_CHECKING:
    from gpuyard.runners.facts import PersonFacts
    from gpuyard.runners.resolve import Configuration, Resolution
    from gpuyard.runners.why import Question
    from gpuyard.site.load import LoadedSite
    from gpuyard.site.runner_rules import Enrolment
    from gpuyard.site.schema import Site

NOT_GRANTED = 3
FOLDER_FILES = (".cirun.yml", ".cirun.global.yml", ".access.yml")

app = typer.Typer(no_args_is_help=True, help="Runners for GitHub jobs: GPU servers that run one job each.")
runner_list.register(app)


class StartedBy(StrEnum):
    """What people ask about; GitHub has more of them, and all others are as a push."""

    PUSH = "push"
    PULL_REQUEST = "pull_request"


class ForkAuthor(StrEnum):
    """Of the author of a pull request from a fork."""

    OWNER = "owner"
    MEMBER = "member"
    COLLABORATOR = "collaborator"
    CONTRIBUTOR = "contributor"
    NONE = "none"


NO_RUNNERS = "there are no 'runners' in the site file; docs/how-to/configure-runners.md has how"


@app.command()
def lint(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help=".cirun.yml, .cirun.global.yml, .access.yml, or folders with them."),
    ],
    site: Annotated[
        Path | None,
        typer.Option("--site", envvar="GPUYARD_SITE", metavar="FILE", help="Compare with what this site file allows."),
    ] = None,
    format_: FindingFormatOption = FindingFormat.TEXT,
    columns: ColumnOption = None,
) -> None:
    """Explain files of runners: which labels get what, what is wrong, and what they ask for in vain.

    Exit code 3 when there is an error or a warning.
    """
    from gpuyard.runners.lint import lint_files, permission_findings, read_files

    read = read_files(_texts(files))
    compared = _site(site).site if site is not None else None
    if compared is not None and compared.runners is None:
        raise UsageError(f"{site}: {NO_RUNNERS}; without --site and GPUYARD_SITE the files are looked at by themselves")
    findings = lint_files(read, compared)
    if compared is not None and compared.runners is not None:
        findings += permission_findings(str(site), compared.runners, _granted)
    print_findings(findings, "runner-lint", format_, columns, payload=("file", "line"))
    if worst(findings).rank <= Severity.WARNING.rank:
        raise BlockedError(counts(findings, Severity.ERROR, Severity.WARNING))


@app.command()
def why(
    repository: Annotated[str, typer.Argument(metavar="REPO", help="The repository, as owner/name.")],
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="LABEL", help="As in 'runs-on'; repeatable. Without it: every runner there is."
        ),
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="LOGIN", help="Who starts the job.")] = "",
    event: Annotated[StartedBy, typer.Option("--event", help="What starts it.")] = StartedBy.PUSH,
    fork: Annotated[
        ForkAuthor | None,
        typer.Option("--fork", help="The pull request is from a fork, whose author is this to the repository."),
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="The user's role in the repository, as in 'write'.")
    ] = None,
    teams: Annotated[
        list[str] | None, typer.Option("--team", metavar="TEAM", help="A team that the user is in; repeatable.")
    ] = None,
    lists: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="A copy of the list of users that policies name by its URL."),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Files to go by, or folders with them, such as a checkout of the .cirun repository; repeatable. "
            "Without it GitHub is asked, with the site's credentials, for all of this.",
        ),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    format_: Annotated[
        WhyFormat, typer.Option("-f", "--format", help="Output format; table is text too.")
    ] = WhyFormat.TEXT,
) -> None:
    """Say what a job of a repository would get, or why it would not, step by step.

    Exit code 0 when every label that is asked for gets a runner, 3 when not.
    """
    from gpuyard.runners.lint import read_files
    from gpuyard.runners.why import Question, StatedFacts, every_label, explain

    loaded = _site(site)
    if loaded.site.runners is None:
        raise UsageError(f"{site}: {NO_RUNNERS}")
    if fork is not None and event is not StartedBy.PULL_REQUEST:
        raise UsageError("--fork is of pull requests; say --event pull_request too")
    question = Question(repository, user, event.value, fork.value.upper() if fork else "")
    if config:
        users = _text(lists) if lists is not None else None
        facts: PersonFacts = StatedFacts(role, None if teams is None else frozenset(teams), users)
        configuration = read_files(_texts(config)).configuration
    elif role is None and teams is None and lists is None:
        configuration, facts = _asked(question, loaded.site)
    else:
        raise UsageError("--role, --team and --users say what GitHub would; give --config with files too")
    answers = explain(question, labels or every_label(loaded.site, configuration), loaded.site, configuration, facts)
    _show(question, answers, format_)
    if not answers or not all(answer.spec for _, answer in answers):
        raise typer.Exit(NOT_GRANTED)


def _asked(question: Question, site: Site) -> tuple[Configuration, PersonFacts]:
    """What GitHub has, asked with the site's credentials."""
    from gpuyard.runners.controllers.repositories import Repositories
    from gpuyard.runners.github.client import GitHubClient
    from gpuyard.runners.why import enrolment_of

    enrolment = enrolment_of(question.repository, site)
    repositories = Repositories(site, {enrolment.name: GitHubClient(enrolment)}, lambda: datetime.now(UTC))
    return repositories.configuration(enrolment.name, question.repository), repositories.people(enrolment.name)


def _show(question: Question, answers: Sequence[tuple[str, Resolution]], format_: WhyFormat) -> None:
    if format_ in (WhyFormat.TEXT, WhyFormat.TABLE):
        print("\n".join(printable(line) for line in _lines(question, answers)))
        return
    data = [_as_data(label, answer) for label, answer in answers]
    if format_ is WhyFormat.JSON:
        print(json.dumps(data, indent=2))
    else:
        print_yaml(data)


def _lines(question: Question, answers: Sequence[tuple[str, Resolution]]) -> Iterable[str]:
    if not answers:
        yield f"No runner is configured for {question.repository}."
    for index, (label, answer) in enumerate(answers):
        if index:
            yield ""
        yield f"runs-on: {label}"
        yield f"  {_verdict(answer)}"
        yield from (f"    {'yes' if step.ok else 'no '}  {step.text}" for step in answer.steps)
        yield from (f"    note {notice}" for notice in answer.notices)


def _verdict(answer: Resolution) -> str:
    if answer.spec is None:
        words = {"refused": "refused", "not-ours": "not gpuyard's job", "unknown": "cannot be told"}
        return f"{words[answer.ruling.value]}: {answer.reason}"
    spec = answer.spec
    ways = ", or else ".join(f"{choice.flavor} with {choice.image}" for choice in spec.choices)
    ends = "a booking may end it" if spec.preemptible else "no booking ends it"
    hours = f"{spec.longest.total_seconds() / 3600:g} h"
    return f"granted: {ways}; for {hours} at most; priority {spec.priority}; {ends}"


def _as_data(label: str, answer: Resolution) -> dict[str, Any]:
    """For programs; keys are only ever added."""
    spec = answer.spec
    return {
        "label": label,
        "ruling": answer.ruling.value,
        "reasons": list(answer.reasons),
        "notices": list(answer.notices),
        "steps": [{"ok": step.ok, "text": step.text} for step in answer.steps],
        "wanted": None
        if spec is None
        else {
            "kind": spec.kind,
            "choices": [vars(choice) for choice in spec.choices],
            "longest_s": int(spec.longest.total_seconds()),
            "priority": spec.priority,
            "preemptible": spec.preemptible,
        },
    }


def _granted(enrolment: Enrolment) -> Mapping[str, str] | None:
    from gpuyard.runners.github.client import GitHubClient

    client = GitHubClient(enrolment)
    try:
        return client.granted()
    finally:
        client.close()


def _site(path: Path) -> LoadedSite:
    from gpuyard.site.load import load_site

    return load_site(path)


def _texts(paths: Sequence[Path]) -> dict[str, str]:
    """The text of each file; of a folder the files that have a name of their own."""
    texts: dict[str, str] = {}
    for path in paths:
        files = [path / name for name in FOLDER_FILES if (path / name).is_file()] if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path}: has none of {', '.join(FOLDER_FILES)}; name a file")
        texts |= {str(file): _text(file) for file in files}
    return texts


def _text(file: Path) -> str:
    from gpuyard.runners.cirun.reading import MOST_CHARACTERS

    try:
        with file.open("rb") as opened:
            data = opened.read(16 * MOST_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    if len(data) > 16 * MOST_CHARACTERS:
        raise UsageError(f"{file}: larger than 1 MiB; is it the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}:{line}: not UTF-8 text; is it the right file?") from None
