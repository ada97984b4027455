"""``gpuyard gpu why``: why a server would not start now, and what would make it start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.console.options import DEFAULT_SITE, CloudOption, SiteOption
from gpuyard.console.output import print_yaml
from gpuyard.console.portal_options import UrlOption, words_of_portal
from gpuyard.model.finding import Finding

if TYPE_CHECKING:
    from gpuyard.diagnosis.why.facts import Action, Explanation

WOULD_NOT_START = 3


class WhyFormat(StrEnum):
    """An answer is no list: ``table``, the word of other commands for what people read, is the text here."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def why(
    flavor: Annotated[str, typer.Argument(metavar="FLAVOR", help="Name or id of the flavor.")],
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="PROJECT", help="Also look at this project's limits and access."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option("--availability-zone", metavar="ZONE", help="As if this availability zone were asked for."),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    cloud: CloudOption = None,
    url: UrlOption = "",
    format_: Annotated[
        WhyFormat, typer.Option("-f", "--format", help="Output format; table is text too.")
    ] = WhyFormat.TEXT,
) -> None:
    """Say whether a server of a flavor would start now and where, or why not, host by host, and what would help.

    Exit code 0 when it would start, 3 when not.
    """
    from gpuyard.diagnosis.why.read import why as ask
    from gpuyard.openstack.api import connect
    from gpuyard.site.load import load_site

    loaded = load_site(site)
    words = words_of_portal(cloud, url) if loaded.site.booking else {}
    explanation = ask(connect(cloud), loaded, flavor, project, zone, words)
    if format_ in (WhyFormat.TEXT, WhyFormat.TABLE):
        print("\n".join(lines(explanation)))
    elif format_ is WhyFormat.JSON:
        print(json.dumps(as_data(explanation), indent=2))
    else:
        print_yaml(as_data(explanation))
    if not explanation.would_start:
        raise typer.Exit(WOULD_NOT_START)


def lines(explanation: Explanation) -> Iterable[str]:
    """The answer for people."""
    yield explanation.answer
    if explanation.causes:
        yield ""
        yield "On every host:"
        yield from _causes(explanation.causes)
    fits = [answer.host for answer in explanation.hosts if answer.fits]
    if fits and not explanation.would_start:
        yield ""
        yield f"But for that it would start on {', '.join(fits)}."
    for answer in explanation.hosts:
        if not answer.fits:
            yield ""
            yield f"{answer.host}:"
            yield from _causes(answer.causes)
    if explanation.others:
        yield ""
        yield f"No GPU of the kind: {', '.join(explanation.others)}"
    if not explanation.would_start:
        yield from _remedies(explanation)
    if explanation.doubts:
        yield ""
        yield "May still stand in the way:"
        yield from (f"  - {text}" for text in explanation.doubts)
    yield ""
    yield f"Not looked at: {'; '.join(explanation.not_looked_at)}"


def _causes(causes: Iterable[Finding]) -> Iterable[str]:
    for cause in causes:
        yield from (f"  {line}" for line in cause.lines())


def _remedies(explanation: Explanation) -> Iterable[str]:
    yield ""
    yield "What would make it start:"
    for action in explanation.first:
        yield f"  - {action.text}"
    then = "and then, " if explanation.first else ""
    for index, remedy in enumerate(explanation.remedies):
        start = f"  - {then}" if index == 0 else "  - or "
        yield f"{start}on {remedy.host}: {'; and '.join(action.text for action in remedy.actions)}"
    if not explanation.first and not explanation.remedies:
        yield "  - nothing simple: another flavor, or another host"


def as_data(explanation: Explanation) -> dict[str, Any]:
    """The answer for programs; keys are only ever added."""
    return {
        "flavor": explanation.flavor,
        "project": explanation.project,
        "would_start": explanation.would_start,
        "where": list(explanation.where),
        "answer": explanation.answer,
        "causes": [cause.as_dict() for cause in explanation.causes],
        "hosts": [
            {"host": answer.host, "fits": answer.fits, "causes": [cause.as_dict() for cause in answer.causes]}
            for answer in explanation.hosts
        ],
        "hosts_without": list(explanation.others),
        "first": [_action(action) for action in explanation.first],
        "remedies": [
            {"host": remedy.host, "actions": [_action(action) for action in remedy.actions]}
            for remedy in explanation.remedies
        ],
        "doubts": list(explanation.doubts),
        "not_looked_at": list(explanation.not_looked_at),
        "calls": explanation.calls,
        "gpus_looked_at": explanation.gpus_looked_at,
    }


def _action(action: Action) -> dict[str, Any]:
    return {"action": action.kind, "text": action.text, **action.values}
