"""Checks what flavors ask for, and whether the configuration knows it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuyard.diagnosis.lint.model import FlavorText, LintInput
from gpuyard.diagnosis.lint.rules import found
from gpuyard.model.errors import UsageError
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.alias import aliases
from gpuyard.nova.alias_spec import ALIAS_SPEC, asked_aliases
from gpuyard.nova.class_names import class_name
from gpuyard.nova.config import API, SCHEDULER
from gpuyard.nova.device_spec import device_specs
from gpuyard.nova.filters import AGGREGATE_FILTER
from gpuyard.nova.options import ENABLED_FILTERS, PLACED

WIDE = 4
"""With more GPUs of one class in a server, Placement looks at every combination unless it is bounded."""
MOST_CANDIDATES = 1000
# Without a namespace by design.
PLAIN_KEYS = ("group_policy",)
RESOURCES = re.compile(r"^resources(?:\w*):(.+)$")
PROPERTY = re.compile(r"(?<![^\s=,])([^\s=,]+)='([^']*)'")


def read_flavors(text: str, name: str) -> tuple[FlavorText, ...]:
    """Parse flavors as ``openstack flavor list --long -f json`` or ``openstack flavor show -f json`` prints them.

    Raises UsageError naming the file and what is wrong with it.
    """
    hint = "write it with 'openstack flavor list --all --long -f json'"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}; {hint}") from None
    rows = data if isinstance(data, list) else [data]
    flavors = []
    for row in rows:
        if not isinstance(row, dict):
            raise UsageError(f"{name}: {row!r} is not a flavor; {hint}")
        lowered = {key.lower(): value for key, value in row.items()}
        properties = lowered.get("properties", lowered.get("extra_specs"))
        if "name" not in lowered or properties is None:
            missing = "Name" if "name" not in lowered else "Properties (was --long left out?)"
            raise UsageError(f"{name}: a flavor without {missing}; {hint}")
        flavors.append(FlavorText(str(lowered["name"]), _properties(properties)))
    return tuple(flavors)


def _properties(value: Any) -> dict[str, str]:
    """An object, or the text that the client makes of one: ``a='1', b='2'``."""
    if isinstance(value, Mapping):
        return {str(key): str(content) for key, content in value.items()}
    return dict(PROPERTY.findall(str(value)))


def check(subject: LintInput) -> Iterator[Finding]:
    known_aliases = {name for view in subject.views for name in aliases(view).named()}
    broken = any(aliases(view).refusals for view in subject.views)
    complete = any(view.serves(API) for view in subject.views) and bool(known_aliases)
    classes = _classes(subject)
    for flavor in subject.flavors:
        place = f"{subject.flavors_from}, flavor {flavor.name}"
        yield from _alias(flavor, place, None if broken else known_aliases, complete, subject)
        for key, value in flavor.extra_specs.items():
            yield from _key(key, value, place, classes, subject)


def _classes(subject: LintInput) -> set[str]:
    """The resource classes that GPUs are known by."""
    entries = [entry.raw.get("resource_class") for view in subject.views for entry in device_specs(view).entries]
    alias_classes = [alias.raw.get("resource_class") for view in subject.views for alias in aliases(view).items]
    return {class_name(name) for name in (*entries, *alias_classes) if isinstance(name, str) and name}


def _alias(
    flavor: FlavorText, place: str, known_aliases: set[str] | None, complete: bool, subject: LintInput
) -> Iterator[Finding]:
    """`known_aliases` is None where a broken alias may be any."""
    value = flavor.extra_specs.get(ALIAS_SPEC)
    if value is None:
        return
    requested = asked_aliases(value)
    if requested is None or any(count == 0 for _, count in requested):
        reason = f"{ALIAS_SPEC}={value!r} is not of the form name:count with counts from 1"
        yield found("flavor-alias-syntax", place, reason, "write it as in 'v100:1' or 'v100:1,t4:2'")
        return
    for name, _ in requested:
        if known_aliases is not None and name not in known_aliases:
            close = difflib.get_close_matches(name, sorted(known_aliases), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "define it for nova-api and every nova-compute"
            severity = None if complete else Severity.NOTE
            reason = f"no file defines the alias {name!r}: a server of this flavor is refused with HTTP 400"
            yield found("flavor-alias-unknown", place, reason, hint, severity=severity)
    others = {a.name for view in subject.views for a in aliases(view).items if not a.for_gpus}
    total = sum(count for name, count in requested if name not in others)
    if total > WIDE:
        yield from _wide(total, place, subject)


def _wide(total: int, place: str, subject: LintInput) -> Iterator[Finding]:
    states = [view.boolean(*PLACED) for view in subject.views]
    if states and not any(states):
        return
    bounds = [view.number("placement", "max_allocation_candidates") for view in subject.placement]
    if any(bound is not None and 0 < bound <= MOST_CANDIDATES for bound in bounds):
        return
    remark = "does not bound it" if subject.placement else "was not given to look at"
    reason = (
        f"{total} GPUs are {total} requests of their own, and Placement tries all combinations of GPUs that a host "
        f"has: minutes from 6 of 8 on. Its configuration {remark}"
    )
    fix = (
        "in placement.conf: [placement]max_allocation_candidates = 100, allocation_candidates_generation_strategy = "
        "breadth-first"
    )
    if subject.release.wide_trees:
        fix += ", [workarounds]optimize_for_wide_provider_trees = true"
    yield found("wide-flavor", place, reason, fix)


def _key(key: str, value: str, place: str, classes: set[str], subject: LintInput) -> Iterator[Finding]:
    if key == "hide_hypervisor_id":
        reason = "hide_hypervisor_id is deprecated, and the aggregate filter takes it for aggregate metadata"
        yield found("flavor-hide-hypervisor", place, reason, "write hw:hide_hypervisor_id")
    resource = RESOURCES.match(key)
    if resource and (resource.group(1).startswith("CUSTOM_PCI_") or class_name(resource.group(1)) in classes):
        reason = (
            f"{key}={value}: Placement takes a GPU away and no server gets it: only the alias attaches one, and takes "
            "its own from Placement"
        )
        yield found("flavor-takes-pci-class", place, reason, f"remove it, and use {ALIAS_SPEC}")
    if ":" not in key and key not in PLAIN_KEYS:
        yield from _plain(key, value, place, subject)


def _plain(key: str, value: str, place: str, subject: LintInput) -> Iterator[Finding]:
    lists = [names for view in subject.of(SCHEDULER) if (names := view.names(*ENABLED_FILTERS))]
    enabled = any(AGGREGATE_FILTER in names for names in lists)
    if not enabled and (lists or key == "hide_hypervisor_id"):
        return  # nobody looks at it
    severity = None if enabled else Severity.NOTE
    if key == "hide_hypervisor_id":
        fix = "write hw:hide_hypervisor_id"
    else:
        fix = f"write aggregate_instance_extra_specs:{key}"
    which = f"{AGGREGATE_FILTER} is enabled, and" if enabled else f"where {AGGREGATE_FILTER} is enabled, it"
    reason = f"{key}={value} has no namespace: {which} passes only hosts of aggregates with this metadata"
    yield found("flavor-key-without-namespace", place, reason, fix, severity=severity)
