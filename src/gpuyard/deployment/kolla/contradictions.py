"""Finds values of Kolla's variables with which a site's options would not work, each with its reason and what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuyard.deployment.kolla.deploy import RELEASE_OF
from gpuyard.deployment.kolla.variables import Variables
from gpuyard.nova.release import NEWEST_KOLLA, RELEASES
from gpuyard.site.compile import CompiledSite
from gpuyard.site.gateway_problems import KollaSwitch, undeployed

PROVIDER_CONFIG = "nova_cell_compute_provider_config"


def contradictions(compiled: CompiledSite, variables: Variables) -> tuple[str, ...]:
    """Return the reasons why nothing must be written."""
    return (
        *_sriov(compiled, variables),
        *_filters(compiled, variables),
        *_services(compiled, variables),
        *_gateway(compiled, variables),
        *_release(compiled, variables),
    )


def doubts(variables: Variables) -> tuple[str, ...]:
    """Return notes about variables that matter here and that only Ansible can evaluate."""
    names = ("enable_neutron_sriov", "enable_blazar", "enable_nova", "enable_placement", "openstack_release")
    relevant = (variable for name in names for variable in variables.all(name))
    return tuple(
        f"{variable.place}: {variable.name} is {variable.value!r}, which only Ansible can evaluate: check it yourself"
        for variable in relevant
        if variable.truth is None
    )


def _reports(compiled: CompiledSite) -> bool:
    values = (value for options in compiled.options for value in options.values("pci", "report_in_placement"))
    return any(value.lower() == "true" for value in values)


def _sriov(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    """nova-compute with [pci]report_in_placement does not start with a device that is named by devname."""
    if not _reports(compiled):
        return
    because = (
        "then Kolla names network devices by devname in [pci]passthrough_whitelist, and a nova-compute with "
        "[pci]report_in_placement, which GPUs need, refuses to start"
    )
    variables = _of_site(compiled, variables)
    whitelists = variables.all("nova_pci_passthrough_whitelist")
    for variable in whitelists:
        if _names_devices(variable.value):
            yield (
                f"{variable.place}: nova_pci_passthrough_whitelist has a devname; {because}; "
                "name the devices by 'address' there"
            )
    mappings = variables.extra.get("neutron_sriov_physnet_mappings")
    if whitelists or (mappings is not None and not mappings.value):
        return  # Kolla makes its list of these mappings, and without any there is none
    for variable in variables.all("enable_neutron_sriov"):
        if variable.truth:
            yield (
                f"{variable.place}: enable_neutron_sriov is {variable.value!r}; {because}; "
                "set nova_pci_passthrough_whitelist to a list that names them by 'address'"
            )


def _of_site(compiled: CompiledSite, variables: Variables) -> Variables:
    """Without other hosts of the inventory: their nova-compute reports nothing to Placement."""
    ours = {name.split(".")[0] for name in compiled.site.hosts}
    return replace(
        variables, of_hosts={n: values for n, values in variables.of_hosts.items() if n.split(".")[0] in ours}
    )


def _names_devices(value: Any) -> bool:
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return "devname" in value
    if isinstance(value, str):
        return "devname" in value
    return any("devname" in entry for entry in value or () if isinstance(entry, Mapping))


def _filters(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    """Kolla sets enabled_filters itself in two cases, and a site's list would replace it."""
    ours = [value for options in compiled.options for value in options.values("filter_scheduler", "enabled_filters")]
    if not ours:
        return
    for variable in variables.all("enable_blazar"):
        if variable.truth and not any("BlazarFilter" in value for value in ours):
            yield (
                f"{variable.place}: enable_blazar is {variable.value!r}; then Kolla adds BlazarFilter to Nova's "
                "filters, and the site's enabled_filters would replace that list: reserved hosts would be given "
                "away; gpuyard and Blazar cannot share a scheduler"
            )
    yield from _must_be(variables, "enable_nova_fake", False, "then nova-compute starts no virtual machines")


def _services(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    for name in ("enable_nova", "enable_placement"):
        yield from _must_be(variables, name, True, "a site of gpuyard needs the service")


def _must_be(variables: Variables, name: str, expected: bool, because: str) -> Iterable[str]:
    for variable in variables.all(name):
        if variable.truth is not None and variable.truth is not expected:
            yield f"{variable.place}: {name} is {variable.value!r}; {because}"


def unreleased(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    """Yield a note for a release that Kolla does not have, unless the operator names it."""
    named = {str(variable.value) for variable in variables.all("openstack_release")}
    later = {release for major, release in RELEASE_OF.items() if major > NEWEST_KOLLA}
    if compiled.site.release in later - named:
        reason = "" if "release" in compiled.site.model_fields_set else " by default, because the site file names none"
        newest = RELEASE_OF[NEWEST_KOLLA]
        yield (
            f"these are options for OpenStack {compiled.site.release}{reason}, and the newest Kolla that gpuyard knows "
            f"deploys {newest}; for that write 'release: \"{newest}\"' in the site file"
        )


def _gateway(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    """Endpoints of the gateway for services that Kolla does not deploy."""

    def values(switch: KollaSwitch) -> Iterable[tuple[str, object]]:
        settings = variables.all(switch.variable)
        if settings and any(switch.deploys(variable.value) for variable in settings):
            return  # of hosts, some say so
        yield from ((f"in {variable.place}", variable.value) for variable in settings)
        if not settings:
            yield "by default, and neither globals.yml, globals.d nor the inventory sets it", switch.default

    if compiled.site.gateway is not None:
        yield from (message for _, message in undeployed(compiled.site.gateway, values))


def _release(compiled: CompiledSite, variables: Variables) -> Iterable[str]:
    for variable in variables.all("openstack_release"):
        configured, expected = str(variable.value), compiled.site.release
        if configured in RELEASES and configured != expected:
            yield (
                f"{variable.place}: openstack_release is {configured}, and the site file says 'release: {expected}'; "
                f"write 'release: \"{configured}\"' in the site file, or upgrade first"
            )


def owner_of_provider_config(variables: Variables) -> tuple[str, ...]:
    """Return a refusal when the operator sets the variable that carries the provider configuration."""
    settings = variables.all(PROVIDER_CONFIG)
    if not settings:
        return ()
    more = f" (and of {len(settings) - 1} more)" if len(settings) > 1 else ""
    return (
        (
            f"{settings[0].place}{more}: {PROVIDER_CONFIG} is set, and so it is by gpuyard, for the site's hosts: only "
            "one of the two would reach nova-compute; take it out there, and write what is in it under the hosts' "
            "`inventories` and `traits` in the site file"
        ),
    )
