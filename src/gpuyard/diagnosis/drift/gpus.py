"""Compares GPUs of the site with the PCI devices in Placement. What is left there of hosts that are gone is found by
hosts.py."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.diagnosis.drift.facts import DeviceSeen
from gpuyard.diagnosis.drift.finding import drift
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import Gpu, GpuState
from gpuyard.model.world import WhyNot, why_not
from gpuyard.nova.device_spec import ONE_TIME_USE
from gpuyard.site.encoding import slot_traits

DEPLOY = "deploy the rendered Nova options to {host} and restart its nova-compute"


def gpu_findings(subject: DriftSubject) -> Iterable[Finding]:
    """Return findings about the site's GPUs, and about devices that Placement has beside them."""
    yield from _lost(subject)
    yield from _not_reserved(subject)
    for device in subject.devices_on_site():
        gpu = subject.offered.get(device.name)
        if gpu is not None:
            yield from _offered(subject, gpu, device)
    if subject.compiled.site.pci_in_placement == "off":
        yield from _ahead(subject)
    else:
        yield from (_not_offered(subject, d) for d in subject.devices_on_site() if d.name not in subject.offered)
    yield from split_groups(subject)
    yield from _shares(subject)


def _lost(subject: DriftSubject) -> Iterable[Finding]:
    by_host: dict[str, list[Gpu]] = {}
    for name, gpu in subject.offered.items():
        if name not in subject.world.devices and subject.world.hosts[gpu.host].provider is not None:
            by_host.setdefault(gpu.host, []).append(gpu)
    for host, gpus in by_host.items():
        service = subject.world.hosts[host].service
        down = " (its nova-compute is down)" if service is not None and not service.up and not service.silent else ""
        pools = ", ".join(sorted({gpu.pool for gpu in gpus}))
        yield drift(
            Severity.ERROR, "gpu-lost", host,
            f"Placement does not have {', '.join(gpu.address for gpu in gpus)}{down}",
            f"nova-compute reports {'it' if len(gpus) == 1 else 'them'} (pool {pools})",
            f"nobody can have {'this GPU' if len(gpus) == 1 else f'these {len(gpus)} GPUs'}",
            f"{DEPLOY.format(host=host)}; if that is done, see 'gpuyard host check' on {host}: is the card still there "
            "and bound to vfio-pci?",
        )  # fmt: skip


def _not_reserved(subject: DriftSubject) -> Iterable[Finding]:
    """Pools with one_time_use whose GPUs Nova gives from one server to the next as they are."""
    pools = subject.compiled.site.pools
    places: dict[tuple[str, str], list[str]] = {}
    for name, gpu in subject.offered.items():
        device = subject.world.devices.get(name)
        if device is not None and pools[gpu.pool].one_time_use and not device.one_time_use:
            places.setdefault((gpu.host, gpu.pool), []).append(gpu.address)
    for (host, pool), addresses in places.items():
        yield drift(
            Severity.ERROR, "gpu-not-reserved", host,
            f"{', '.join(addresses)} in Placement without {ONE_TIME_USE}",
            f"with it: pool {pool} has one_time_use",
            "Nova does not reserve them after a use: each server gets them as the one before has left them, without a "
            "scrub",
            f"{DEPLOY.format(host=host)}; an older Nova than 2025.2 ignores one_time_use in device_spec without a word",
        )  # fmt: skip


def _offered(subject: DriftSubject, gpu: Gpu, device: DeviceSeen) -> Iterable[Finding]:
    where = f"{gpu.host} {gpu.address}"
    traits = slot_traits(gpu)
    if device.classes != {gpu.resource_class} or device.traits != traits:
        yield drift(
            Severity.ERROR, "gpu-other-class", where,
            _label(device.classes, device.traits), _label({gpu.resource_class}, traits),
            "flavors of the pool do not find it, or servers get one that is not meant for them",
            f"{DEPLOY.format(host=gpu.host)}. Nova does not change the class of a GPU that a server holds: "
            "let that server end first",
        )  # fmt: skip
        return
    stock = (device.stock or {}).get(gpu.resource_class)
    if stock is None:
        return
    if stock.total * stock.ratio > 1:
        yield drift(
            Severity.ALARM, "gpu-counted-twice", where,
            f"total {stock.total}, allocation_ratio {stock.ratio:g}", "total 1, allocation_ratio 1",
            "Placement gives one GPU to several servers, and the second one does not start",
            f"openstack resource provider inventory set --amend --resource {gpu.resource_class}:allocation_ratio=1 "
            f"--resource {gpu.resource_class}:total=1 {device.id}",
        )  # fmt: skip
    if why_not(gpu.resource_class, device.stock or {}, device.holders) is WhyNot.RESERVED:
        yield _held(subject, gpu, device)


def _held(subject: DriftSubject, gpu: Gpu, device: DeviceSeen) -> Finding:
    keeping = (subject.words or {}).get(device.name)
    command = (
        f"openstack resource provider inventory set --amend --resource {gpu.resource_class}:reserved=0 {device.id}"
    )
    site = subject.compiled.site
    why, remedy = "somebody keeps it back", f"to give it back: {command}"
    if subject.words is None and site.booking is not None:
        remedy = f"if gpuyard itself does not keep it (the portal knows; name it with --url), {command}"
    if keeping is not None and keeping.state is GpuState.BOOKED:
        why, remedy = (
            keeping.reason,
            f"see the booking: gpuyard booking show {keeping.booking}" if keeping.booking else "",
        )
    elif keeping is not None and keeping.booking:
        why, remedy = keeping.reason, f"to give it back: gpuyard gpu release {keeping.booking}"
    elif keeping is not None:
        why, remedy = keeping.reason, f"who is to look after it: gpuyard gpu health {gpu.host}/{gpu.address}"
    elif site.pools[gpu.pool].one_time_use:
        why = "after a server, it waits for somebody to scrub and release it"
        if site.health is not None:
            why = "after a server, it waits for its host to scrub it"
            remedy = f"how far that is: gpuyard gpu health {gpu.host}/{gpu.address}"
    return drift(
        Severity.NOTE, "gpu-held", f"{gpu.host} {gpu.address}", f"reserved in Placement: {why}",
        "reserved 0 when it is to be used", "nobody can use it: it is held", remedy,
    )  # fmt: skip


def _label(classes: Iterable[str], traits: Iterable[str]) -> str:
    return " ".join([", ".join(sorted(classes)) or "no class", *(["with", *sorted(traits)] if traits else [])])


def _ahead(subject: DriftSubject) -> Iterable[Finding]:
    """The site says that Placement knows no PCI devices, and hosts report them."""
    hosts: dict[str, int] = {}
    for device in subject.devices_on_site():
        hosts[device.host] = hosts.get(device.host, 0) + 1
    for host, count in hosts.items():
        yield drift(
            Severity.ERROR, "stage-ahead", host, f"{count} PCI devices in Placement", "none: 'pci_in_placement: off'",
            "a nova-compute that has reported its devices once does not start any more without doing so",
            "write 'pci_in_placement: report' into the site file; see 'gpuyard site rollout'",
        )  # fmt: skip


def _not_offered(subject: DriftSubject, device: DeviceSeen) -> Finding:
    """A device of a host of the site that Nova gives away and the site does not."""
    function = subject.function(device)
    group = function.iommu_group if function else None
    mates = [g.address for g in subject.offered.values() if g.host == device.host and group is not None
             and g.group == group]  # fmt: skip
    holders = " and ".join(subject.world.called(holder) for holder in device.holders)
    gpu = subject.gpus.get(device.name)
    is_gpu = gpu is not None or (function is not None and function.is_gpu)
    kind = "gpu-not-offered" if is_gpu else "device-not-offered"
    kind += "-in-use" if holders else ""
    if mates:
        effect = f"it is in one IOMMU group with {', '.join(mates)}: with two servers in it, the second does not start"
    elif function is None:
        effect = "the recording does not have it, so nobody checked whether it can be given away"
    elif is_gpu:
        effect = f"servers get a GPU that the site does not count ({gpu.blocked if gpu else 'in no pool'})"
    else:
        effect = "none for GPUs: somebody gives this device away on purpose"
    danger = bool(mates) or (is_gpu and bool(holders))
    level = Severity.ALARM if danger else Severity.NOTE if function is not None and not is_gpu else Severity.ERROR
    stock = ", ".join(sorted(device.stock or {})) or "nothing"
    remedy = f"take it out of [pci]device_spec of {device.host} and restart its nova-compute"
    if function is None:
        remedy = f"record {device.host} again ('gpuyard host record'), or {remedy}"
    if holders:
        remedy = f"first let {holders} end or move: Nova keeps a device that is in use; then {remedy}"
    return drift(
        level, kind, f"{device.host} {device.address}",
        f"Nova offers it as {stock}" + (f", and {holders} has it" if holders else ""), "not offered", effect, remedy,
    )  # fmt: skip


def _shares(subject: DriftSubject) -> Iterable[Finding]:
    """Devices that servers share: whether Placement has as many units of each as the site offers."""
    devices: dict[str, list[Gpu]] = {}
    for gpu in subject.compiled.gpus:
        if gpu.is_unit and not gpu.blocked and subject.world.hosts[gpu.host].provider is not None:
            devices.setdefault(gpu.provider, []).append(gpu)
    for name, units in devices.items():
        gpu, stock = units[0], subject.world.shares.get(name)
        where, fix = f"{gpu.host} {gpu.device}", DEPLOY.format(host=gpu.host)
        if stock is None:
            yield drift(
                Severity.ERROR, "gpu-lost", where, f"Placement does not have {gpu.device}",
                f"nova-compute reports it, with {len(units)} shares (pool {gpu.pool})", "nobody can have them",
                f"{fix}; if that is done, see 'gpuyard host check' on {gpu.host}: is the card cut up as recorded?",
            )  # fmt: skip
        elif gpu.resource_class not in stock:
            yield drift(
                Severity.ERROR, "gpu-other-class", where, _label(stock, ()), _label({gpu.resource_class}, ()),
                "flavors of the pool do not find it", fix,
            )  # fmt: skip
        elif (total := stock[gpu.resource_class].total) != len(units):
            effect = "those that are missing are lost" if total < len(units) else "the map leaves some out"
            yield drift(
                Severity.ERROR, "share-count", where, f"Placement has {total} shares of it", f"{len(units)}", effect,
                f"cut the card up as it was, or record {gpu.host} again ('gpuyard host record') and deploy its options",
            )  # fmt: skip


def split_groups(subject: DriftSubject) -> Iterable[Finding]:
    """Return IOMMU groups whose devices are with more than one server."""
    groups: dict[tuple[str, int], dict[str, list[str]]] = {}
    for device in subject.devices_on_site():
        function = subject.function(device)
        if function is None or function.iommu_group is None:
            continue
        for consumer in device.holders:
            servers = groups.setdefault((device.host, function.iommu_group), {})
            servers.setdefault(subject.world.server_behind(consumer), []).append(device.address)
    for (host, group), servers in groups.items():
        if len(servers) > 1:
            who = "; ".join(f"{subject.world.called(s)} has {', '.join(sorted(a))}" for s, a in sorted(servers.items()))
            yield drift(
                Severity.ALARM, "group-split", f"{host} IOMMU group {group}", who, "one server for the whole group",
                "only one of them can run: the others do not start, or do not start again",
                "delete or resize all but one of them, then look why Nova gave the group to two: "
                f"are the site's Nova options in force on {host}?",
            )  # fmt: skip
