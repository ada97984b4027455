"""Gives an emptied host back: undoes what carries gpuyard's tag, once nothing is left behind.

The order is its safety: a host that was evacuated is believed again only after its nova-compute has restarted and
removed what is left of those servers; then it must be up; then leftovers are looked for once more; only then does Nova
use it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic, sleep

from gpuyard.drain.leftovers import find_leftovers, keeps_closed
from gpuyard.drain.leftovers_apply import read_leftovers
from gpuyard.model.errors import BlockedError
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.compute_service import ComputeService

HEARD_WITHIN = 90.0
"""Seconds in which Nova hears of a host whose nova-compute runs: it calls itself every ten, and is down after sixty."""


def give_back(
    api: CloudApi,
    host: str,
    in_the_way: Sequence[str],
    report: Callable[[str], None],
    ours: Collection[str] = (),
    patience: float = HEARD_WITHIN,
    poll: float = 1.0,
) -> None:
    """Open a host. `in_the_way`: what else keeps it closed; `ours`: consumers that keep GPUs there on purpose. Raises
    BlockedError with all that keeps it closed, and CloudError."""
    compute_service = ComputeService(api, host)
    service_state, tag = compute_service.look(), compute_service.tag
    if service_state.enabled and not service_state.forced_down:
        report(f"{host}: it is open already")
        return
    if tag is None:
        because = service_state.disabled_reason or "no reason is given"
        raise BlockedError(
            f"nova-compute on {host} was not closed by gpuyard ({because}): whoever did it opens it, with openstack "
            f"compute service set --enable {host} nova-compute"
        )
    if in_the_way:
        raise BlockedError(f"{host} stays closed: {'; '.join(in_the_way)}")
    facts = read_leftovers(api, host, ours)
    if service_state.forced_down and not facts.has_restarted:
        raise BlockedError(
            f"{host} stays closed: servers were evacuated from it, and before Nova believes again what it hears of it "
            "its nova-compute has to remove what is left of them: start it"
        )
    if tag.forced and service_state.forced_down:
        report(f"{host}: Nova believes again what it hears of it")
        compute_service.raise_up()
    _wait_until_up(compute_service, patience, poll)
    left = keeps_closed(find_leftovers(read_leftovers(api, host, ours)))
    if left:
        listing = "\n  ".join(f"{finding.object} {finding.reason}" for finding in left)
        raise BlockedError(
            f"{host} stays closed, for something is left behind there:\n  {listing}\n"
            f"gpuyard host leftovers {host} says what to do"
        )
    reopened_state = compute_service.open(tag)
    if tag.before is not None:
        report(f"{host}: it is disabled as it was before: {reopened_state.disabled_reason}")
    elif reopened_state.enabled:
        report(f"{host}: open")
    else:
        raise BlockedError(
            f"nova-compute on {host} was enabled, and is disabled again: {reopened_state.disabled_reason}"
        )


def _wait_until_up(compute_service: ComputeService, patience: float, poll: float) -> None:
    end = monotonic() + patience
    while not (service_state := compute_service.look()).up:
        if service_state.forced_down:
            raise BlockedError(
                f"{compute_service.host} is forced down, and not by gpuyard: "
                f"openstack compute service set --up {compute_service.host} nova-compute, when it may be believed again"
            )
        if monotonic() > end:
            raise BlockedError(f"Nova does not hear of {compute_service.host}: start its nova-compute, and see its log")
        sleep(poll)
