"""Compares hosts of the site with Nova's services and the providers in Placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuyard.diagnosis.drift.facts import HostSeen, Root
from gpuyard.diagnosis.drift.finding import drift
from gpuyard.diagnosis.drift.fixes import ProviderStep
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.capacity import NOGPU_DISK, NOGPU_MEMORY, NOGPU_VCPU, parse_cpu_set, shared_cpus
from gpuyard.site.objects import site_trait

MEMORY_TOLERANCE = 0.01
"""The kernel and libvirt do not count every page alike."""
DISK_TOLERANCE = 0.05
"""A file system is smaller than its disk."""
RESTART = "restart its nova-compute"
# Option of nova-compute -> the class that it is of.
RATIOS = {"cpu_allocation_ratio": "VCPU", "ram_allocation_ratio": "MEMORY_MB", "disk_allocation_ratio": "DISK_GB"}
RESERVED = {"reserved_host_cpus": "VCPU", "reserved_host_memory_mb": "MEMORY_MB", "reserved_host_disk_mb": "DISK_GB"}


def host_findings(subject: DriftSubject) -> Iterable[Finding]:
    """Return findings about hosts, their own providers included."""
    for host in subject.world.hosts.values():
        missing = list(_missing(host))
        yield from missing
        yield from _service(host)
        if not missing:
            yield from _provider_config(subject, host)
            yield from _options(subject, host)
            yield from _totals(subject, host)
    yield from _unknown(subject)
    silent = {name for name, service in subject.world.services.items() if service.silent}
    yield from (_left_over(subject, root) for root in subject.world.leftovers if root.name not in silent)
    yield from _mirrored(subject)


def _missing(host: HostSeen) -> Iterable[Finding]:
    effect = "no server can start there"
    if host.service is None:
        observed = "no nova-compute" + (
            "" if host.provider is None else ", though Placement has a provider of its name"
        )
        yield drift(
            Severity.ERROR, "host-missing", host.name, observed, "a nova-compute service", effect,
            f"deploy nova-compute to {host.name} ('gpuyard site render'), or take the host out of the site file",
        )  # fmt: skip
    elif host.provider is None:
        yield drift(
            Severity.ERROR, "host-missing", host.name, "a nova-compute service, and no provider in Placement",
            "both", effect, f"see the log of nova-compute on {host.name}: it could not report its inventory",
        )  # fmt: skip


def _service(host: HostSeen) -> Iterable[Finding]:
    service = host.service
    if service is None or service.silent:
        return
    if not service.up:
        yield drift(
            Severity.ERROR, "host-down", host.name, "its nova-compute is down", "up",
            "no server starts there, none ends",
            f"start nova-compute on {host.name}; if it has been forced down: openstack compute service set --up "
            f"{host.name} nova-compute",
        )  # fmt: skip
    if not service.enabled:
        because = f": {service.disabled_reason}" if service.disabled_reason else ""
        yield drift(
            Severity.ERROR, "host-disabled", host.name, f"its nova-compute is disabled{because}", "enabled",
            "no new server starts there",
            f"when the reason is gone: openstack compute service set --enable {host.name} nova-compute",
        )  # fmt: skip


def _provider_config(subject: DriftSubject, host: HostSeen) -> Iterable[Finding]:
    """The host's provider.yaml, as far as it shows: its classes are those of the counters and of the arithmetic."""
    config = subject.compiled.provider_config_of(host.name)
    desired = {name: total for name, total in config.inventories.items() if total}
    ours = {name for name in host.stock if _is_ours(name)}
    odd = []
    for name in sorted(desired.keys() | ours):
        stock, total = host.stock.get(name), desired.get(name)
        if stock is None:
            odd.append((f"no {name}", f"{name} {total}"))
        elif (stock.total, stock.reserved, stock.ratio) != (total, 0, 1.0):
            more = f" reserved {stock.reserved}" if stock.reserved else ""
            more += f" ratio {stock.ratio:g}" if stock.ratio != 1 else ""
            odd.append((f"{name} {stock.total}{more}", f"no {name}" if total is None else f"{name} {total}"))
    if odd:
        yield _differs(host, [observed for observed, _ in odd], [right for _, right in odd])
    trait = site_trait(subject.compiled.site.site)
    if host.site_trait and trait not in config.traits:
        yield drift(
            Severity.ERROR, "trait-left", host.name, f"has the trait {trait}", "has it not: the site isolates no hosts",
            "none, as long as no aggregate asks for it",
            f"deploy the rendered provider.yaml, {RESTART}, and take the trait away: Nova leaves traits that its file "
            "no longer names ('openstack resource provider trait list', then '... trait set' without it)",
        )  # fmt: skip
    elif trait in config.traits and not host.site_trait:
        yield _differs(host, [f"no trait {trait}"], [f"trait {trait}"])


def _is_ours(name: str) -> bool:
    counter = name.startswith("CUSTOM_GPU_") and name.endswith("_COUNT")
    return counter or name in (NOGPU_VCPU, NOGPU_MEMORY, NOGPU_DISK)


def _differs(host: HostSeen, observed: Sequence[str], desired: Sequence[str]) -> Finding:
    return drift(
        Severity.ERROR, "provider-config", host.name, ", ".join(observed), ", ".join(desired),
        "flavors of the site do not find the host, or find more of it than there is",
        f"deploy the rendered provider.yaml to {host.name} and {RESTART}: it reads the file only then",
    )  # fmt: skip


def _options(subject: DriftSubject, host: HostSeen) -> Iterable[Finding]:
    """Nova's options on the host, as far as they show in its inventory."""
    options = subject.compiled.options_of("nova-compute", host.name)
    observed, desired = [], []
    for key, name in RATIOS.items():
        stock, values = host.stock.get(name), options.values("DEFAULT", key)
        if stock is not None and values and abs(stock.ratio - float(values[-1])) > 1e-6:
            observed.append(f"{key} {stock.ratio:g}")
            desired.append(f"{key} {float(values[-1]):g}")
    for key, name in RESERVED.items():
        stock, values = host.stock.get(name), options.values("DEFAULT", key)
        if stock is None or not values:
            continue
        amount = -(-int(values[-1]) // 1024) if key.endswith("disk_mb") else int(values[-1])
        if stock.reserved != amount:
            observed.append(f"{name} reserved {stock.reserved}")
            desired.append(f"{name} reserved {amount}")
    if observed:
        memory = any(text.startswith("ram_") for text in observed)
        effect = "VFIO pins all memory of a server with a GPU: with more promised than there is, servers are killed"
        yield drift(
            Severity.ERROR, "nova-options", host.name, ", ".join(observed), ", ".join(desired),
            effect if memory else "what the site keeps for GPUs is reckoned with other numbers",
            f"deploy the rendered Nova options to {host.name} and {RESTART}",
        )  # fmt: skip


def _totals(subject: DriftSubject, host: HostSeen) -> Iterable[Finding]:
    """CPUs, RAM and disk of the host against its recording."""
    facts, wish = subject.inventories[host.name].facts, subject.compiled.site.hosts[host.name]
    recorded = {"VCPU": (shared_cpus(wish, facts), 0.0), "MEMORY_MB": (facts.memory_mib, MEMORY_TOLERANCE)}
    if wish.cpu_dedicated_set is not None:
        recorded["PCPU"] = (len(parse_cpu_set(wish.cpu_dedicated_set)), 0.0)
    disk = host.stock.get("DISK_GB")
    # More than recorded is another disk, and harmless; without a reserve nothing is reckoned with it.
    if wish.reserve is not None and disk is not None and disk.total < facts.disk_gib * (1 - DISK_TOLERANCE):
        recorded["DISK_GB"] = (facts.disk_gib, DISK_TOLERANCE)
    odd = []
    for name, (total, tolerance) in recorded.items():
        reported = host.stock[name].total if name in host.stock else 0
        if abs(reported - total) > total * tolerance:
            odd.append((f"{name} {reported}", f"{name} {total}"))
    if odd:
        yield drift(
            Severity.ERROR, "recording-old", host.name, ", ".join(observed for observed, _ in odd),
            ", ".join(right for _, right in odd) + ", as recorded",
            "the machine is another one than the site reckons with: what is kept for GPUs may not be there",
            f"record it again ('gpuyard host record' on {host.name}), check, render and deploy; if cpu_shared_set or "
            "cpu_dedicated_set are meant: deploy the rendered Nova options",
        )  # fmt: skip


def _unknown(subject: DriftSubject) -> Iterable[Finding]:
    left = {root.name for root in subject.world.leftovers}
    for name, what in sorted(subject.world.unknown_hosts.items()):
        if name not in left:
            yield drift(
                Severity.ERROR, "host-not-in-site", name, f"reports {', '.join(sorted(what))} to Placement",
                "a host of the site, or without them",
                "servers of the site's flavors may start on a host that nobody counts",
                f"add {name} to the site file, or take the site's options, provider.yaml and trait off it",
            )  # fmt: skip


def _left_over(subject: DriftSubject, root: Root) -> Finding:
    """A provider whose nova-compute is gone: Nova could not delete it, or was not asked to."""
    world = subject.world
    removable = not root.used and root.name not in world.services and not world.silent_cells
    reason = "Nova has no such hypervisor, and nothing is allocated on it"
    below = f", with {len(root.children)} below it" if root.children else ""
    remedy = "--fix removes it"
    if root.used:
        remedy = "something is allocated on it: mend that first (see the other findings), then look again"
    elif not removable and world.silent_cells:
        remedy = "a cell of Nova does not answer, and it may be a host there: look again when it does"
    elif not removable:
        remedy = (
            f"Nova has a service {root.name} and no hypervisor: see the log of its nova-compute, whose file compute_id "
            "may have changed"
        )
    step = ProviderStep(reason, root)
    return drift(
        Severity.ERROR, "provider-left", root.name, f"Placement has a provider that no nova-compute reports{below}",
        "none", "Placement offers what nobody can give, and servers that it sends there fail", remedy,
        (step,) if removable else (),
    )  # fmt: skip


def _mirrored(subject: DriftSubject) -> Iterable[Finding]:
    """Nova writes its aggregates into Placement too, and isolation goes by what is there."""
    site = subject.compiled.site
    for item in subject.world.objects.aggregates:
        mirrored = subject.world.mirrored.get(item.aggregate.name)
        if mirrored is None:
            continue
        with_provider = {name for name, host in subject.world.hosts.items() if host.provider is not None}
        missing = sorted(item.aggregate.hosts & with_provider - mirrored)
        more = sorted((mirrored & site.hosts.keys()) - item.aggregate.hosts)
        if missing or more:
            yield drift(
                Severity.ERROR, "aggregate-not-in-placement", item.aggregate.name,
                "; ".join([f"Placement lacks {n}" for n in missing] + [f"Placement also has {n}" for n in more]),
                "the same hosts in Nova and in Placement",
                "servers of other flavors start on hosts that should be closed, or none on hosts that should be open",
                "nova-manage placement sync_aggregates; what is too much there: take the host out of the aggregate "
                "and put it in again",
            )  # fmt: skip
