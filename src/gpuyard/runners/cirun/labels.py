"""Compares the labels that jobs ask for with the labels of runners. Letter case does not count, as at GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

GENERAL = frozenset({"self-hosted", "linux", "x64"})
"""Labels that every runner of ours would have if default labels were added: a job that asks for no other could mean
any runner of anybody."""
HOSTED = ("ubuntu-", "windows-", "macos-")
"""Prefixes of the labels of GitHub's own runners."""
HOSTED_NAME = re.compile(
    r"(ubuntu|windows|macos)-(latest|slim|[0-9]{1,4}(\.[0-9]{2})?)(-(arm|intel|large|xlarge|vs[0-9]{4}))*"
)
"""The labels themselves, as docs.github.com (Actions, "GitHub-hosted runners reference") lists them for standard
runners and for larger ones of macOS. Larger ones of Linux and Windows have names that their organisation chooses."""
PREFIX = "cirun-"
"""Prefix of labels that are meant for `.cirun.yml`, by its manual; gpuyard does not ask for it."""


def bare(label: str) -> str:
    """Return a label without the suffix that makes a job's label its own: ``cirun-gpu--4711`` -> ``cirun-gpu``."""
    return label.partition("--")[0].strip().lower()


def fits(labels: Iterable[str], runner: Iterable[str]) -> bool:
    """Return whether a job that asks for these labels may run on a runner with those: it has all of them, and at least
    one is not GENERAL."""
    requested = {bare(label) for label in labels}
    return bool(requested - GENERAL) and requested <= {bare(label) for label in runner} | GENERAL


def is_hosted(labels: Sequence[str]) -> bool:
    """Return whether a job asks for hosted runners' labels and nothing else, so that GitHub itself runs it. A GitHub
    Enterprise Server has no hosted runners, and people give their own ones such labels."""
    return bool(labels) and all(HOSTED_NAME.fullmatch(label.strip().lower()) for label in labels)


def is_general(labels: Iterable[str]) -> bool:
    """Return whether a job asks for nothing that sets our runners apart, so that none of them `fits`."""
    return {bare(label) for label in labels} <= GENERAL


def meant_for_cirun(labels: Sequence[str]) -> bool:
    """Return whether a job can only be for a runner of `.cirun.yml`, whatever is in there."""
    return any(bare(label).startswith(PREFIX) for label in labels)
