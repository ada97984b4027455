"""Checks aliases, on one service and between services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from gpuyard.diagnosis.lint.layout import looks_like
from gpuyard.diagnosis.lint.model import LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.alias import Aliases, AliasLine, aliases, each_once, settings_of
from gpuyard.nova.config import API, COMPUTE, View
from gpuyard.nova.device_spec import ANY, device_specs
from gpuyard.nova.device_spec import settings_of as spec_settings
from gpuyard.nova.gpu_models import SRIOV, has_sriov
from gpuyard.nova.offers import could_offer
from gpuyard.nova.options import PLACED

COMMON = "nova.conf"
SAME = "write the same alias lines for nova-api and every nova-compute"


def check(subject: LintInput) -> Iterator[Finding]:
    recorded = any(view.inventory for view in subject.views)
    for view in subject.views:
        yield from _one_service(view, recorded)
    yield from _between(subject)
    yield from _without_device(subject)


def _one_service(view: View, recorded: bool) -> Iterator[Finding]:
    read = aliases(view)
    for refusal in read.refusals:
        yield found("alias-refused", refusal, refusal.reason, refusal.fix)
    placed = view.boolean(*PLACED)
    for alias in read.items:
        for key in alias.repeated:
            yield found("json-key-repeated", alias.source, f"{key!r} comes twice; the last value counts", "keep one")
        yield from _content(alias, placed, view, recorded)
    for name, same in read.named().items():
        yield from _repeated(name, same, placed)


def _content(alias: AliasLine, placed: bool | None, view: View, recorded: bool) -> Iterator[Finding]:
    extras = [key for key in ("resource_class", "traits") if key in alias.raw]
    sure = None if view.last(*PLACED) or view.service else Severity.WARNING
    if not alias.has_ids and not ("resource_class" in alias.raw and placed):
        if placed:
            reason, fix = "has neither vendor_id and product_id nor a resource_class", "add them"
        elif "resource_class" in alias.raw:
            reason = "has no vendor_id and product_id, and its resource_class counts only with pci_in_placement"
            fix = (
                f"set [filter_scheduler]pci_in_placement = true for every Nova service, also {COMPUTE}, or add the ids"
            )
        else:
            reason, fix = "lacks vendor_id and product_id", "add both, as lspci -nn shows them"
            sure = None
        reason = f"alias {alias.name!r} {reason}: nova-api and nova-compute do not start"
        yield found("alias-without-ids", alias.source, reason, fix, severity=sure)
    elif extras and placed is False and view.service != COMPUTE:
        certain = view.service or view.last(*PLACED) or not device_specs(view).set
        reason = (
            f"alias {alias.name!r}: {' and '.join(extras)} count only with [filter_scheduler]pci_in_placement, "
            "which is off"
        )
        fix = "set pci_in_placement = true for every Nova service once all hosts report, or remove them"
        severity = None if certain else Severity.NOTE  # the file of a hypervisor need not say it
        yield found("alias-class-unused", alias.source, reason, fix, severity=severity)
    if not recorded:
        yield from _type(alias)


def _type(alias: AliasLine) -> Iterator[Finding]:
    """Return whether the device_type is that of the model, as far as its ids tell."""
    vendor, product = alias.raw.get("vendor_id", ANY), alias.raw.get("product_id", ANY)
    sriov, model = has_sriov(vendor, product), SRIOV.get(f"{vendor}:{product}".lower(), f"{vendor}:{product}")
    as_scanned = "as 'gpuyard host scan' shows for the GPU"
    if alias.device_type is None and sriov:
        reason = f"alias {alias.name!r} has no device_type, and libvirt reports a {model} as type-PF: it never matches"
        yield found("alias-type-missing", alias.source, reason, f'write "device_type": "type-PF", {as_scanned}')
    elif alias.device_type is None and sriov is None and alias.for_gpus:
        why = "it never matches a GPU with SR-IOV, which libvirt reports as type-PF"
        reason = f"alias {alias.name!r} has no device_type: {why}"
        fix = f'write "device_type": "type-PCI" or "type-PF", {as_scanned}'
        yield found("alias-type-missing", alias.source, reason, fix, severity=Severity.NOTE)
    elif (alias.device_type, sriov) in (("type-PCI", True), ("type-PF", False)):
        right = "type-PF" if sriov else "type-PCI"
        why = "has SR-IOV, unless the firmware switches it off" if sriov else "has no SR-IOV"
        reason = f"alias {alias.name!r}: device_type is {alias.device_type}, and {model} {why}: it is {right}"
        fix = f'write "device_type": "{right}", {as_scanned}'
        yield found("alias-type-never-matches", alias.source, reason, fix, severity=Severity.WARNING)


def _repeated(name: str, same: Sequence[AliasLine], placed: bool | None) -> Iterator[Finding]:
    for index, later in enumerate(same):
        first = next(
            (earlier for earlier in same[:index] if not earlier.source.setting.excludes(later.source.setting)), None
        )
        if first is None:
            continue
        if first.numa_policy != later.numa_policy:
            reason = "another numa_policy: nova-api and nova-compute do not start"
        elif not (first.device_type and later.device_type) or first.device_type != later.device_type:
            reason = "no or another device_type: nova-api and nova-compute do not start"
        elif placed:
            reason = "pci_in_placement on, which allows one line for each name: nova-api and nova-compute do not start"
        elif first.wish == later.wish:
            reason = "the same content"
            yield found("alias-repeated", later.source, f"alias {name!r} is in {first.source} with {reason}",
                        "remove one of them", severity=Severity.WARNING)  # fmt: skip
            continue
        else:
            reason = f"alias {name!r} is in {first.source} too: they are alternatives, until pci_in_placement is on"
            fix = "for Placement, give the models one resource_class in device_spec and keep one alias"
            yield found("alias-repeated", later.source, reason, fix, severity=Severity.NOTE)
            continue
        fix = "keep one line; to offer several models under one name, give them one resource_class in device_spec"
        yield found("alias-repeated", later.source, f"alias {name!r} is in {first.source} with {reason}", fix)


def _between(subject: LintInput) -> Iterator[Finding]:
    """nova-api and every nova-compute with GPUs must have the same aliases. Where no name says whose a file is, its
    content does."""
    computes = [
        view
        for view in subject.views
        if looks_like(view) == COMPUTE and (aliases(view).set or device_specs(view).set)  # others have no GPUs
    ]
    apis = [view for view in subject.views if looks_like(view) == API]
    for api in [view for view in apis if view.service or aliases(view).set] or apis:
        yield from _compare(api, computes)
    for compute in computes if not apis else ():
        own = [
            setting
            for setting in settings_of(compute)
            if setting.file.service and PurePosixPath(setting.file.path).name != COMMON
        ]
        if own:
            reason = "nova-api needs the same aliases, and none of its files was given"
            fix = "write them into nova.conf, which all services read, or give nova-api's file too"
            yield found("alias-on-one-service", own[0], reason, fix, severity=Severity.NOTE)


def _compare(api: View, computes: Sequence[View]) -> Iterator[Finding]:
    """One finding for each alias, however many hosts it is about. What a broken line would say is not known."""
    api_aliases = aliases(api)
    lacking: dict[str, list[View]] = {}
    extra: dict[str, list[tuple[AliasLine, View]]] = {}
    for compute in computes:
        compute_aliases = aliases(compute)
        sure = compute.service is not None and api.service is not None
        if api_aliases.items and not compute_aliases.set and not sure:
            names = ", ".join(api_aliases.named())
            reason = f"it has no alias, and {api.files[-1].path} has {names}: resize and migration fail"
            place = spec_settings(compute)[0]
            yield found("alias-on-one-service", place, reason, "write the same alias lines here")
            continue
        yield from _differing(api_aliases, compute_aliases, _who(compute))
        for name in api_aliases.named().keys() - compute_aliases.named().keys() if not compute_aliases.refusals else ():
            lacking.setdefault(name, []).append(compute)
        for name, items in compute_aliases.named().items() if not api_aliases.refusals else ():
            if name not in api_aliases.named():
                extra.setdefault(name, []).append((items[0], compute))
    for name in sorted(lacking):
        reason = f"alias {name!r} is not {_many(lacking[name])}: resize and migration of its servers fail"
        yield found("alias-on-one-service", api_aliases.named()[name][0].source, reason, SAME)
    for name, places in extra.items():
        sure = all(view.service is not None for _, view in places) and api.service is not None
        more = f" (and the files of {len(places) - 1} more hosts have it)" if len(places) > 1 else ""
        reason = f"alias {name!r} is not {_who(api)}: a server of a flavor with it is refused with HTTP 400{more}"
        severity = Severity.ERROR if sure else None
        yield found("alias-on-one-service", places[0][0].source, reason, SAME, severity=severity)


def _differing(api_aliases: Aliases, compute_aliases: Aliases, on_compute: str) -> Iterator[Finding]:
    for name, items in api_aliases.named().items():
        others = compute_aliases.named().get(name)
        if others and _wishes(items) != _wishes(others):
            what = f"{_asks(items)} here and {_asks(others)} {on_compute} ({others[0].source})"
            reason = f"alias {name!r} asks for {what}: the scheduler and the host do not mean the same devices"
            yield found("alias-differs", items[0].source, reason, SAME)


def _many(views: Sequence[View]) -> str:
    more = f" nor on {len(views) - 1} more hosts" if len(views) > 1 else ""
    return _who(views[0]) + more


def _who(view: View) -> str:
    """``on nova-compute on gpu1``; of a guess, how it was made."""
    if view.service is not None:
        return f"on {view.name}"
    why = f"{COMPUTE}'s, with a device_spec" if looks_like(view) == COMPUTE else f"{API}'s, without a device_spec"
    return f"in {view.files[-1].path} (taken for {why})"


def _wishes(items: Sequence[AliasLine]) -> list[list[tuple[str, str]]]:
    return sorted(sorted(alias.wish.items()) for alias in items)


def _asks(items: Sequence[AliasLine]) -> str:
    """What an alias asks for, without its name."""
    return " or ".join(
        " ".join([f"{w.get('vendor_id', '*')}:{w.get('product_id', '*')}", *_more(w)])
        for w in (alias.wish for alias in items)
    )


def _more(wish: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in wish.items() if key not in ("name", "vendor_id", "product_id")]


def _without_device(subject: LintInput) -> Iterator[Finding]:
    """Aliases for which no entry of device_spec could offer anything, as far as the files say."""
    entries = [entry for view in subject.of(COMPUTE) for entry in device_specs(view).entries]
    broken = any(device_specs(view).refusals for view in subject.of(COMPUTE))
    if not entries or broken or any(entry.address is None for entry in entries):
        return
    for alias, placed in each_once(subject.views):
        if not any(could_offer(entry, alias, placed) for entry in entries):
            what = f"{alias.raw.get('vendor_id', '*')}:{alias.raw.get('product_id', '*')}"
            what += f" of {alias.raw['resource_class']}" if placed and "resource_class" in alias.raw else ""
            reason = f"alias {alias.name!r} asks for {what}, and no device_spec in these files offers that"
            fix = "add the device to device_spec, or give the files of the hosts that have it"
            yield found("alias-without-device", alias.source, reason, fix)
