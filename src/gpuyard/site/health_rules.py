"""Schema of ``health`` in ``site.yaml``: which signals are watched, and what follows from each."""

from __future__ import annotations

import difflib
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from gpuyard.model.signals import SIGNALS
from gpuyard.site.booking_rules import SomeTime, parse_duration, stated
from gpuyard.site.strict import Strict

Percent = Annotated[int, Field(ge=0, le=100, strict=True)]


class ScrubRules(Strict):
    """What happens to a GPU between two servers, in pools with one_time_use."""

    timeout: SomeTime = Field(timedelta(minutes=5), description="A host that has not answered by then is asked again.")
    tries: Annotated[int, Field(ge=1, le=20, strict=True)] = Field(
        3, description="After so many scrubs of which nobody knows what came, the GPU is quarantined."
    )


class AcceptanceRules(Strict):
    """When a GPU must be accepted before it is given out, and where servers are started that do so."""

    required: tuple[Literal["new", "repair", "kernel", "firmware", "qemu"], ...] = Field(
        ("repair",),
        description="GPUs that are new, repaired, or whose host has another of these than they were accepted with, are "
        "kept back until they are accepted (again).",
    )
    project: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="Project in which 'gpuyard gpu accept' starts a server on a GPU; gpuyard's alone, and it needs the "
        "role admin there. Without one a person accepts GPUs by 'gpuyard gpu repair release'.",
    )
    image: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Image of that server: with cloud-init and the driver of the site's GPUs."
    )
    network: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        "none",
        description="Network of that server: id, name of one that the project owns, 'auto' for its only one, or "
        "'none'. It needs none.",
    )
    within: SomeTime = Field(
        timedelta(minutes=15),
        description="From the request to Nova until there must be a result; else it has failed. A server "
        "that still has the GPU is waited for as long before.",
    )

    @model_validator(mode="after")
    def _project_and_image(self) -> AcceptanceRules:
        if (self.project is None) != (self.image is None):
            missing = "image" if self.image is None else "project"
            raise ValueError(f"a server that accepts GPUs needs a project and an image: write '{missing}', too")
        return self


class AgentRules(Strict):
    """Whose servers may say how their GPUs are, by an agent in the guest."""

    projects: list[str] = Field(default_factory=list, description="Projects whose servers are asked for it.")
    period: Annotated[int, Field(ge=1, le=3600, strict=True)] = Field(10, description="Seconds between samples.")


class IdleRules(Strict):
    """What follows when a server does nothing with its GPU. Never on missing data."""

    after: SomeTime = Field(
        timedelta(hours=2), description="So long without use, without a gap in what the agent says."
    )
    below: Percent = Field(5, description="Use below this many percent counts as none.")
    action: Literal["warn", "reclaim"] = Field(
        "warn",
        description="What follows: its owner is asked to use it or to give it back; or that, and after `grace` what "
        "`reclaim` says.",
    )


class RepairRules(Strict):
    """How GPUs that are out of use are looked at."""

    project: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="Whose members start servers on GPUs that are lent to it for their repair."
    )


Verdict = Literal["off", "note", "suspect", "bad"]
LEAST_COUNT, MOST_COUNT = 1, 1_000_000


def known_signal(code: str) -> str:
    """Check the code of a signal. Raises ValueError that names the nearest one."""
    if code in SIGNALS:
        return code
    close = difflib.get_close_matches(code, SIGNALS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown signal; {hint}Known are {', '.join(SIGNALS)}")


def parse_threshold(value: object) -> int | timedelta:
    """Parse a whole number or a duration. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not LEAST_COUNT <= value <= MOST_COUNT:
            raise ValueError(f"{value} is out of range; write a number from {LEAST_COUNT} to {MOST_COUNT}")
        return value
    duration = parse_duration(value)
    if not duration:
        raise ValueError("must be more than nothing; write '1 min' or more")
    return duration


Threshold = Annotated[
    int | timedelta,
    PlainValidator(parse_threshold),
    PlainSerializer(lambda value: value if isinstance(value, int) else stated(value), when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}], "examples": [500, "30 min"]}),
]
SignalCode = Annotated[str, AfterValidator(known_signal), WithJsonSchema({"type": "string", "enum": list(SIGNALS)})]


class SignalRule(Strict):
    """What follows from a signal. What is left out is as it would be without this."""

    verdict: Verdict | None = Field(
        None,
        description="off: it is not even written down. note: written down. suspect: kept back for a while. bad: "
        "quarantine.",
    )
    threshold: Threshold | None = Field(None, description="From when on it counts: a number or a duration.")
    trial: bool | None = Field(
        None, description="It only says what it would have done: nothing is kept back for it. False ends a trial here."
    )


def _short(value: object) -> object:
    """``off`` for ``{verdict: off}``; YAML 1.1 reads an `off` as false."""
    if value is False:
        value = "off"
    return {"verdict": value} if isinstance(value, str) else value


Signals = dict[
    SignalCode,
    Annotated[
        SignalRule,
        BeforeValidator(_short, json_schema_input_type=Verdict | SignalRule),
    ],
]


class SignalRules(Strict):
    """What follows from signals in a part of the site."""

    trial: bool | None = Field(None, description="All of its signals are on trial, but for those that say otherwise.")
    signals: Signals = Field(default_factory=dict, description="By code, as in 'link-width: note'.")


class SiteHealth(Strict):
    """How each GPU is: known, and acted upon."""

    trial: bool | None = Field(
        None, description="All signals are on trial: they only say what they would have done. False is the default."
    )
    signals: Signals = Field(
        default_factory=dict,
        description="What follows from a signal where that is not as docs/reference/health-signals.md says: its code, "
        "and off, note, suspect or bad, or {verdict, threshold, trial}.",
    )
    pools: dict[str, SignalRules] = Field(default_factory=dict, description="The same for a pool; before the site's.")
    gpus: dict[str, SignalRules] = Field(
        default_factory=dict, description="The same for a GPU, as 'gpu-1/0000:3b:00.0'; before its pool's."
    )

    quarantine: Percent = Field(
        25,
        description="At most so many percent of a pool's GPUs, and one in any case, are kept back without a person for "
        "what hosts and Nova suspect, and as many for what guests, jobs and people say. What hosts, Nova and scrubs "
        "call bad is always kept back.",
    )
    suspect: SomeTime = Field(
        timedelta(minutes=10),
        description="How long a GPU is kept back the first time; twice as long each further time.",
    )
    relapses: Annotated[int, Field(ge=1, le=100, strict=True)] = Field(
        5, description="A GPU that was suspect so often within a week is quarantined."
    )
    silence: SomeTime = Field(
        timedelta(minutes=2), description="After so long without a word of a host its GPUs are 'not heard from'."
    )
    scrub: ScrubRules = Field(default_factory=lambda: ScrubRules.model_validate({}))
    acceptance: AcceptanceRules | None = None
    repair: RepairRules | None = None
    agent: AgentRules | None = None
    idle: IdleRules | None = None

    @model_validator(mode="after")
    def _idle_needs_an_agent(self) -> SiteHealth:
        if self.idle is not None and self.agent is None:
            raise ValueError("idle needs agent: only a guest knows what its GPUs do")
        return self
