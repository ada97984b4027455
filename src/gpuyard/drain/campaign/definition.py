"""The file of a campaign: its hosts, their order, and what is done on each."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator
from ruamel.yaml import YAML

from gpuyard.model.errors import UsageError
from gpuyard.site.booking_rules import parse_duration
from gpuyard.site.document import Bounds, DocumentError, values
from gpuyard.site.problems import SiteError, located, of_validation
from gpuyard.site.strict import Strict

HOST = "{host}"
MAX_BYTES = 1 << 20
BOUNDS = Bounds(values=20_000)
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
HostContact = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)]
"""A name of a host as a command line may have it: never an option, and nothing for a shell."""
ServerId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Time = Annotated[timedelta, BeforeValidator(parse_duration)]


class Campaign(Strict):
    """One change on many hosts."""

    campaign: Name = Field(description="Its name: a journal is kept of it, so that it goes on after any end.")
    comment: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^\n]*$")]
    hosts: list[HostContact] = Field(min_length=1)
    canary: HostContact = Field("", validate_default=False, description="The first of 'hosts' when left out.")
    at_once: Annotated[int, Field(ge=1, strict=True)] = Field(1, description="So many hosts out of use at most.")
    run: str = Field("", description="What is done on a host that is empty: a command of this machine, with {host}.")
    by_hand: bool = Field(False, strict=True, description="People do it, and say 'gpuyard host maintenance done'.")
    takes: Time = Field(
        timedelta(hours=2), description="How long a host is expected to be away, with its servers gone."
    )
    drain: Literal["move", "shelve"] | None = Field(
        None, description="Servers are moved off each host; 'shelve': those that cannot be moved are shelved."
    )
    may_go_down: list[ServerId] = Field(
        [], description="Ids of servers that need not leave their host: they go down with it."
    )
    drained_within: Time | None = Field(None, description="A host that is not empty by then has failed.")
    back_within: Time = Field(timedelta(hours=1), description="A host that does not pass its check by then has failed.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        twice = sorted({host for host in self.hosts if self.hosts.count(host) > 1})
        if twice:
            raise ValueError(f"host {twice[0]} is there twice")
        if self.canary and self.canary not in self.hosts:
            raise ValueError(f"the canary {self.canary} is none of 'hosts'")
        if bool(self.run) == self.by_hand:
            raise ValueError("say 'run' with a command, or 'by_hand: true'; one of the two")
        if self.run:
            self._words_of_run()
        return self

    def _words_of_run(self) -> list[str]:
        try:
            words = shlex.split(self.run)
        except ValueError as error:
            raise ValueError(f"'run' is no command: {error}") from None
        if not any(HOST in word for word in words):
            raise ValueError("'run' has no {host}: it would do the same for each host, as on all of them at once")
        return words

    @property
    def first(self) -> str:
        """The canary: the host that goes before all others."""
        return self.canary or self.hosts[0]

    @property
    def title(self) -> str:
        """The comment of its maintenances, by which they are recognized."""
        return f"{self.comment} {self._mark}"

    @property
    def _mark(self) -> str:
        return f"(campaign {self.campaign})"

    def is_ours(self, comment: str) -> bool:
        """Return whether a maintenance with this comment is of this campaign, also when the file said other words
        before."""
        return comment.endswith(f" {self._mark}")

    def refuse_strangers(self, site_hosts: Collection[str]) -> None:
        """Raise UsageError for a host that the site does not have."""
        for host in self.hosts:
            if host not in site_hosts:
                raise UsageError(
                    f"campaign {self.campaign}: the site has no host {host!r}; it has {', '.join(site_hosts)}"
                )

    def words(self, host: str) -> list[str]:
        """Return the command for a host, word by word: no shell reads it."""
        return [word.replace(HOST, host) for word in self._words_of_run()]


def read_campaign(path: Path) -> Campaign:
    """Read a campaign from its file. Raises UsageError, and SiteError with all problems by their lines."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; docs/how-to/campaigns.md shows one") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"{path}: cannot be read: {why}") from None
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path}: larger than 1 MiB, which no campaign is; is it the right file?")
    try:
        return Campaign.model_validate(values(text, BOUNDS))
    except DocumentError as error:
        raise SiteError([f"{path}:{error.line}: {error.problem}"]) from None
    except ValidationError as error:
        document = YAML(typ="rt").load(text)
        raise located(str(path), document, of_validation(error, document, Campaign)) from None
