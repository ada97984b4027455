"""What is wrong with aliases, on one service and between services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuyard.site.lint.alias import Alias, aliases, each_once
from gpuyard.site.lint.device_spec import ANY, Entry, device_specs, settings_of
from gpuyard.site.lint.host_checks import normal_name
from gpuyard.site.lint.model import API, COMPUTE, Finding, Severity, Subject, View
from gpuyard.site.lint.roles import looks_like
from gpuyard.site.lint.rules import found

PLACED = ("filter_scheduler", "pci_in_placement")


def check(subject: Subject) -> Iterator[Finding]:
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


def _content(alias: Alias, placed: bool | None, view: View, recorded: bool) -> Iterator[Finding]:
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
        known = view.service or view.last(*PLACED) or not device_specs(view).set
        reason = (
            f"alias {alias.name!r}: {' and '.join(extras)} count only with [filter_scheduler]pci_in_placement, "
            "which is off"
        )
        fix = "set pci_in_placement = true for every Nova service once all hosts report, or remove them"
        severity = None if known else Severity.NOTE  # the file of a hypervisor need not say it
        yield found("alias-class-unused", alias.source, reason, fix, severity=severity)
    if alias.device_type is None and not recorded:
        reason = (
            f"alias {alias.name!r} has no device_type: it never matches a GPU that libvirt reports as type-PF, which "
            "is every one with SR-IOV (T4, A100, L40S, H100 ...)"
        )
        fix = 'write "device_type": "type-PCI" or "type-PF", as "gpuyard host scan" shows for the GPU'
        yield found("alias-type-missing", alias.source, reason, fix)


def _repeated(name: str, same: Sequence[Alias], placed: bool | None) -> Iterator[Finding]:
    first = same[0]
    for other in same[1:]:
        if first.numa_policy != other.numa_policy:
            reason = "another numa_policy: nova-api and nova-compute do not start"
        elif not (first.device_type and other.device_type) or first.device_type != other.device_type:
            reason = "no or another device_type: nova-api and nova-compute do not start"
        elif placed:
            reason = "pci_in_placement on, which allows one line for each name: nova-api and nova-compute do not start"
        elif first.wish == other.wish:
            reason = "the same content"
            yield found("alias-repeated", other.source, f"alias {name!r} is in {first.source} with {reason}",
                        "remove one of them", severity=Severity.WARNING)  # fmt: skip
            continue
        else:
            reason = f"alias {name!r} is in {first.source} too: they are alternatives, until pci_in_placement is on"
            fix = "for Placement, give the models one resource_class in device_spec and keep one alias"
            yield found("alias-repeated", other.source, reason, fix, severity=Severity.NOTE)
            continue
        fix = "keep one line; to offer several models under one name, give them one resource_class in device_spec"
        yield found("alias-repeated", other.source, f"alias {name!r} is in {first.source} with {reason}", fix)


def _between(subject: Subject) -> Iterator[Finding]:
    """nova-api and every nova-compute must have the same aliases. Where no name says whose a file is, its content
    does."""
    apis = [view for view in subject.views if looks_like(view) == API]
    for api in [view for view in apis if view.service or aliases(view).set] or apis:
        for compute in (view for view in subject.views if looks_like(view) == COMPUTE):
            yield from _compare(api, compute)


def _compare(api: View, compute: View) -> Iterator[Finding]:
    here, there = aliases(api).named(), aliases(compute).named()
    sure = compute.service is not None and api.service is not None
    on_api, on_compute = _who(api), _who(compute)
    fix = "write the same alias lines for nova-api and every nova-compute"
    if here and not aliases(compute).set and not sure:
        reason = f"it has no alias, and {api.files[-1].path} has {', '.join(here)}: resize and migration fail"
        yield found("alias-on-one-service", settings_of(compute)[0], reason, "write the same alias lines here")
        return
    for name, items in here.items():
        if name not in there:
            reason = f"alias {name!r} is not {on_compute}: resize and migration of its servers fail"
            yield found("alias-on-one-service", items[0].source, reason, fix)
        elif _wishes(items) != _wishes(there[name]):
            what = f"{_asks(items)} here and {_asks(there[name])} {on_compute} ({there[name][0].source})"
            reason = f"alias {name!r} asks for {what}: the scheduler and the host do not mean the same devices"
            yield found("alias-differs", items[0].source, reason, fix)
    for name, items in there.items():
        if name not in here:
            reason = f"alias {name!r} is not {on_api}: a server of a flavor with it is refused with HTTP 400"
            severity = Severity.ERROR if sure else None
            yield found("alias-on-one-service", items[0].source, reason, fix, severity=severity)


def _who(view: View) -> str:
    """``on nova-compute on gpu1``; of a guess, how it was made."""
    if view.service is not None:
        return f"on {view.name}"
    why = f"{COMPUTE}'s, with a device_spec" if looks_like(view) == COMPUTE else f"{API}'s, without a device_spec"
    return f"in {view.files[-1].path} (taken for {why})"


def _wishes(items: Sequence[Alias]) -> list[list[tuple[str, str]]]:
    return sorted(sorted(alias.wish.items()) for alias in items)


def _asks(items: Sequence[Alias]) -> str:
    """What an alias asks for, without its name."""
    return " or ".join(
        " ".join([f"{w.get('vendor_id', '*')}:{w.get('product_id', '*')}", *_more(w)])
        for w in (alias.wish for alias in items)
    )


def _more(wish: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in wish.items() if key not in ("name", "vendor_id", "product_id")]


def _without_device(subject: Subject) -> Iterator[Finding]:
    """Aliases for which no entry of device_spec could offer anything, as far as the files say."""
    entries = [entry for view in subject.of(COMPUTE) for entry in device_specs(view).entries]
    if not entries or any(entry.address is None for entry in entries):
        return
    for alias, placed in each_once(subject.views):
        if not any(_could_offer(entry, alias, placed) for entry in entries):
            what = f"{alias.raw.get('vendor_id', '*')}:{alias.raw.get('product_id', '*')}"
            what += f" of {alias.raw['resource_class']}" if placed and "resource_class" in alias.raw else ""
            reason = f"alias {alias.name!r} asks for {what}, and no device_spec in these files offers that"
            fix = "add the device to device_spec, or give the files of the hosts that have it"
            yield found("alias-without-device", alias.source, reason, fix)


def _could_offer(entry: Entry, alias: Alias, placed: bool) -> bool:
    for key, value in (("vendor_id", entry.vendor), ("product_id", entry.product)):
        if key in alias.raw and value not in (ANY, alias.raw[key].lower()):
            return False
    if not placed:
        return True
    classes = (
        _class(entry.raw.get("resource_class"), entry.vendor, entry.product),
        _class(alias.raw.get("resource_class"), alias.raw.get("vendor_id", ANY), alias.raw.get("product_id", ANY)),
    )
    return None in classes or classes[0] == classes[1]


def _class(given: object, vendor: str, product: str) -> str | None:
    """The resource class that Nova reports or asks for; None when it depends on the device."""
    if isinstance(given, str) and given:
        return normal_name(given)
    return None if ANY in (vendor, product) else f"CUSTOM_PCI_{vendor}_{product}".upper()
