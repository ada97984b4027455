"""Explains whether a server would start now and where, or else all that stands in the way, host by host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpuyard.diagnosis.why.causes import candidates_of, of_flavor, of_host
from gpuyard.diagnosis.why.facts import Explanation, HostAnswer, RequestFacts, obstacle
from gpuyard.diagnosis.why.quota import of_project, uncounted
from gpuyard.diagnosis.why.remedies import remedies
from gpuyard.model.finding import Finding
from gpuyard.nova.filters import AGGREGATE_FILTER
from gpuyard.nova.request import Request

NOT_LOOKED_AT = (
    "properties of the image, and volumes to boot from",
    "networks and ports, server groups and other scheduler hints",
    "filters that the site does not switch on",
    "weighers: of several hosts that fit, Nova's takes one of its own choice",
)
RACE = (
    "if it still ends in NoValidHost: a GPU that was given back at a bad moment is refused until nova-compute's next "
    "update (a minute, see update_resources_interval); try again then"
)
# In these words the one-line answer counts hosts.
SHORT = {
    "gpu": "no free GPU",
    "gpu-count": "too few GPUs",
    "room": "not enough room",
    "too-big": "too small",
    "max-unit": "one server may not have so much",
    "class": "without a resource class that is asked",
    "trait": "without a trait that is required",
    "group": "without a group of resources that is asked",
    "device-type": "GPUs of another device_type",
    "numa": "no NUMA topology",
    "aggregate": "not in such an aggregate",
    "aggregate-isolated": "isolated",
    "aggregate-tenants": "kept for other projects",
    "zone": "in another availability zone",
    "service-disabled": "disabled",
    "service-down": "down",
    "service-forced-down": "forced down",
    "no-service": "no nova-compute",
    "cell-silent": "in a cell of Nova that does not answer",
    "placement": "refused by Placement",
}


def explain(facts: RequestFacts, request: Request) -> Explanation:
    """Return the explanation of the facts."""
    meant, without = candidates_of(facts, request)
    global_causes = (*of_flavor(facts, request), *of_project(facts, request))
    hosts = () if request.problems else meant  # of an alias that nobody knows, no host can be said to have it
    answers = tuple(HostAnswer(host.name, tuple(of_host(facts, request, host))) for host in hosts)
    first, then = remedies(facts, request, global_causes, answers)
    return Explanation(
        flavor=facts.flavor.name,
        project=facts.asker.name if facts.asker else None,
        answer=_answer(facts, request, global_causes, answers),
        causes=(*global_causes, *_no_host(request, answers, global_causes)),
        hosts=answers,
        others=tuple(host.name for host in without) if not request.problems else (),
        first=first,
        remedies=then,
        doubts=tuple(_doubts(facts, request, answers)),
        not_looked_at=(*([_unplaced(request)] if request.unplaced else []), *NOT_LOOKED_AT),
        gpus_looked_at=not request.unplaced,
        calls=facts.calls,
    )


def _unplaced(request: Request) -> str:
    names = ", ".join(dict.fromkeys(need.alias for need in request.unplaced))
    return (
        f"GPUs (alias {names}): the site does not have Placement decide about them (pci_in_placement), so who has "
        "which cannot be seen from outside"
    )


def _no_host(request: Request, answers: Sequence[HostAnswer], causes: Sequence[Finding]) -> Iterable[Finding]:
    if answers or causes:
        return
    what = ", ".join(sorted({str(need) for need in request.devices})) or "any host"
    fix = "add hosts with such GPUs to the site, and deploy its Nova options"
    yield obstacle("no-host", f"no host of the cloud has {what}", fix)


def _answer(facts: RequestFacts, request: Request, causes: Sequence[Finding], answers: Sequence[HostAnswer]) -> str:
    name = facts.flavor.name + (f" in project {facts.asker.name}" if facts.asker else "")
    where = [answer.host for answer in answers if answer.fits]
    if not causes and where:
        shown = where[0] if len(where) == 1 else f"one of {', '.join(where)}"
        return f"{name} would start on {shown}" + (" if a GPU is free there" if request.unplaced else "")
    return f"{name} would not start now: {_reason(request, causes, answers)}"


def _reason(request: Request, causes: Sequence[Finding], answers: Sequence[HostAnswer]) -> str:
    """Why not, short enough for one line; all of it follows below."""
    if causes:
        return _first(causes, "")
    if not answers:
        what = ", ".join(sorted({str(need) for need in request.devices})) or "nova-compute"
        return f"no host has {what}"
    if len(answers) == 1:
        (only,) = answers
        return _first(only.causes, "" if only.causes[0].code == "gpu" else f"{only.host}: ")
    alike = {tuple((cause.code, cause.payload["short"]) for cause in answer.causes) for answer in answers}
    if len(alike) == 1 and answers[0].causes[0].code == "gpu":
        return _first(answers[0].causes, "")
    kinds = Counter(kind for answer in answers for kind in dict.fromkeys(cause.code for cause in answer.causes))
    shown = ", ".join(f"{SHORT.get(kind, kind)} ({number})" for kind, number in kinds.most_common())
    return f"none of {len(answers)} hosts takes it: {shown}"


def _first(causes: Sequence[Finding], where: str) -> str:
    more = len(causes) - 1
    below = f" ({more} more cause{'' if more == 1 else 's'} below)" if more else ""
    return f"{where}{causes[0].payload['short'] or causes[0].reason}{below}"


def _doubts(facts: RequestFacts, request: Request, answers: Sequence[HostAnswer]) -> Iterable[str]:
    flavor = facts.flavor
    for item in request.not_followed:
        yield f"{item} of the flavor is not looked at"
    if request.numa and any(answer.fits for answer in answers):
        yield f"{request.numa}: what each NUMA node of a host has left cannot be seen from outside"
    scoped = [key for key in flavor.extra_specs if key.startswith("aggregate_instance_extra_specs:")]
    if scoped and AGGREGATE_FILTER not in facts.filters:
        yield f"{', '.join(scoped)}: the site does not switch {AGGREGATE_FILTER} on"
    if facts.asker is not None and any(host.silent for host in facts.hosts):
        yield uncounted(facts.asker)
    if facts.asker is None:
        yield "no project was named (--project): its limits, and its access to a private flavor, are not looked at"
    if request.devices and any(answer.fits for answer in answers):
        yield RACE
