"""Every rule of the linter: a configuration that breaks it, and where and how it says so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.diagnosis.lint import lint, subject_of
from gpuyard.diagnosis.lint.model import FlavorText
from gpuyard.diagnosis.lint.rules import RULES
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.host import Inventory
from gpuyard.nova.release import RELEASES
from gpuyard.site.load import load_site
from gpuyard.site.options import file_name, render_ini
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.sysfs import T4, TITAN_XP, TITAN_XP_AUDIO, Sysfs, epyc

NIC = "8086:1572"
FILTERS = (
    "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
    "ServerGroupAffinityFilter,PciPassthroughFilter"
)
SPEC = 'device_spec = {"address": "0000:27:00.0", "vendor_id": "10de", "product_id": "1db4"}'
ALIAS = 'alias = {"name": "v100", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI"}'
PLACED = "[filter_scheduler]\npci_in_placement = true\n"


def consumer() -> Inventory:
    """A Titan XP with its audio function, a network port and a disk controller that the host needs."""
    return (
        Sysfs()
        .function("02:00.0", TITAN_XP, "0300", 39)
        .function("02:00.1", TITAN_XP_AUDIO, "0403", 39)
        .function("41:00.0", NIC, "0200", 50)
        .function("42:00.0", "144d:a80a", "0108", 51)
        .disk("nvme0n1", "259:0", "42:00.0")
        .inventory()
    )


def t4(vfs: int = 0) -> Inventory:
    """A T4 that is a physical function; with VFs, one of them is switched on."""
    machine = Sysfs().function("27:00.0", T4, group=19, sriov_totalvfs="16", sriov_numvfs=str(vfs))
    if vfs:
        machine.function("27:00.4", T4, group=20)
        machine.put("sys/devices/pci0000:00/0000:27:00.4/physfn", {"->": "../0000:27:00.0"})
    return machine.inventory()


@dataclass(frozen=True)
class LintCase:
    """Something that breaks a rule, and what is said of it."""

    rule: str
    files: dict[str, str] | str
    says: str
    line: int | None = None
    service: str | None = None
    release: str = "2026.2"
    host: Inventory | None = None
    flavors: dict[str, dict[str, str]] = field(default_factory=dict)
    severity: Severity | None = None


def findings(case: LintCase) -> list[Finding]:
    files = {"/etc/nova/nova.conf": case.files} if isinstance(case.files, str) else case.files
    flavors = [FlavorText(name, specs) for name, specs in case.flavors.items()]
    recorded = {"test": case.host} if case.host else {}
    subject, unused = subject_of(files, RELEASES[case.release], case.service, recorded, flavors)
    assert not unused or case.service not in (None, "nova-compute")
    return lint(subject)


def spec(text: str, more: str = "") -> str:
    return f"[pci]\n{more}device_spec = {text}\n"


def alias(text: str, more: str = "") -> str:
    return f"{more}[pci]\nalias = {text}\n"


def two(controller: str, compute: str) -> dict[str, str]:
    return {"/k/nova-api/nova.conf": controller, "/k/nova-compute/nova.conf": compute}


ON = "report_in_placement = true\n"
GOOD_ALIAS = '{"name": "a", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI"}'
RC_ALIAS = '{"name": "a", "device_type": "type-PCI", "resource_class": "GPU"}'
AGGREGATES = f"[filter_scheduler]\nenabled_filters = {FILTERS},AggregateInstanceExtraSpecsFilter\n"
T4_ALIAS = 'alias = {"name": "a", "vendor_id": "10de", "product_id": "1eb8", "device_type": "type-PF"}'
W, N = Severity.WARNING, Severity.NOTE
E_ = Severity.ERROR

CASES = [
    LintCase("not-an-ini-file", "[pci]\nfoo\n", "'foo' has neither = nor :", 2),
    LintCase("not-an-ini-file", "a = 1\n", "stands before any [section]", 1),
    LintCase("template", "[pci]\n{% raw %}\nalias = {{ gpu_alias }}\n{% endraw %}\n", "values that Kolla fills in"),
    LintCase("default-section-case", "[default]\nhost = x\n", "[default] is a section of its own", 1),
    LintCase("repeated-option", f"[pci]\n{ON}report_in_placement = false\n", "set in line 2 already", 3),
    LintCase("not-a-value", "[pci]\nreport_in_placement = ture\n", "'ture', not a truth value", 2),
    LintCase("not-a-value", "[DEFAULT]\nram_allocation_ratio = 1,5\n", "'1,5', not a number", 2),
    LintCase("not-a-value", "[DEFAULT]\nreserved_host_memory_mb = -1\n", "'-1', less than 0", 2),
    LintCase("not-a-value", "[compute]\ncpu_shared_set = 9-4\n", "the range 9-4 runs backwards", 2),
    LintCase(
        "comment-behind-value",
        "[DEFAULT]\nreserved_host_memory_mb = 4096 #we only need 4G\n",
        "'4096 #we only need 4G', not a whole number: oslo.config has no comments",
        2,
    ),
    LintCase(
        "comment-behind-value", "[DEFAULT]\nvcpu_pin_set = 0-22 # rest\n", "move the comment to a line of its own", 2
    ),
    LintCase("comment-behind-value", "[pci]\nreport_in_placement = true ; yes\n", "not a truth value", 2),
    LintCase("comment-behind-value", "[DEFAULT]\nram_allocation_ratio = 1.0 # no\n", "not a number", 2),
    LintCase("device-spec-refused", spec('{"address": "0000:27:00.0"} # the first'), "move the comment to a line", 2),
    LintCase(
        "unknown-filter", f"[filter_scheduler]\nenabled_filters = {FILTERS} # all\n", "move the comment to a line", 2
    ),
    LintCase("option-in-wrong-section", "[DEFAULT]\ndevice_spec = {}\n", "belongs into [pci]", 2),
    LintCase("option-in-wrong-section", "[DEFAULT]\nalias = {}\n", "belongs into [pci]", 2),
    LintCase("option-in-wrong-section", "[scheduler]\nenabled_filters = X\n", "belongs into [filter_scheduler]", 2),
    LintCase("unknown-option", "[pci]\ndevice_specs = {}\n", "did you mean device_spec?", 2),
    LintCase("unknown-option", "[pci]\npci_alias = {}\n", "did you mean alias?", 2),
    LintCase("renamed-option", "[pci]\npassthrough_whitelist = {}\n", "the old name of [pci]device_spec", 2),
    LintCase("renamed-option", "[devices]\nenabled_vgpu_types = nvidia-35\n", "rename it to enabled_mdev_types", 2),
    LintCase("dead-option", '[pci]\ndev_spec = {"address": "*"}\n', "[pci]dev_spec is ignored", 2),
    LintCase(
        "dead-option",
        "[DEFAULT]\nscheduler_default_filters = RamFilter, PciPassthroughFilter\n",
        f"set [filter_scheduler]enabled_filters = {FILTERS}",
        2,
    ),
    LintCase("old-and-new-names", f"[pci]\n{SPEC}\npassthrough_whitelist = {{}}\n", "takes the values of both", 3),
    LintCase(
        "two-layers",
        {"/etc/nova/nova.conf": f"[pci]\n{ALIAS}\n", "/etc/nova/nova-compute.conf": f"[pci]\n{ALIAS}\n"},
        "Kolla's merge keeps only those of the later file",
        2,
    ),
    # device_spec
    LintCase("device-spec-refused", spec("[{'address': '*'}]"), "it has single quotes", 2),
    LintCase("device-spec-refused", spec('[{"address": "a3:00.0"},\n  {"address": "c3:00.0",}]'), "last comma", 3),
    LintCase("device-spec-refused", spec('[{"address": "a3:00.0"}'), "close its quotes and brackets", 2),
    LintCase("device-spec-refused", spec('{"managed": True}'), "write true", 2),
    LintCase("device-spec-refused", spec("{address: 1}"), "not in double quotes", 2),
    LintCase("device-spec-refused", spec('{"a": 1} {"b": 2}'), "something stands after its end", 2),
    LintCase("device-spec-refused", spec(""), "it is empty", 2),
    LintCase("device-spec-refused", spec('{"vendor_id": 4318}'), "vendor_id is 4318, not text", 2),
    LintCase("device-spec-refused", spec('[\n {"address": "1:2:3:4.5"}]'), "too many colons", 3),
    LintCase("device-spec-refused", spec('["10de"]'), "'10de' where an object belongs", 2),
    LintCase("device-spec-matches-everything", spec('{"addres": "0000:27:00.0"}'), "every PCI device of the host", 2),
    LintCase("device-spec-matches-everything", spec('{"address": ""}'), "every PCI device of the host", 2),
    LintCase("device-spec-matches-everything", spec('{"address": {"slot": ".."}}'), "every PCI device of the host", 2),
    LintCase("device-spec-unknown-key", spec('{"addres": "0000:27:00.0"}'), "did you mean address?", 2, severity=E_),
    LintCase("device-spec-unknown-key", spec('{"vendor": "10de"}'), "did you mean vendor_id?", 2, severity=E_),
    LintCase(
        "device-spec-unknown-key",
        spec('{"address": "0000:27:00.0", "resource_clas": "x"}'),
        "did you mean resource_class?",
        severity=E_,
    ),
    LintCase(
        "device-spec-unknown-key",
        spec('{"address": "0000:27:00.0", "name": "x"}'),
        "belongs into [pci]alias",
        severity=W,
    ),
    LintCase("device-spec-vendor-only", spec('{"vendor_id": "10de"}'), "every device of vendor 10de", 2),
    LintCase("device-spec-vendor-only", spec('{"product_id": "1db4"}'), "product 1db4 of any vendor", 2),
    LintCase("device-spec-without-domain", spec('{"address": "a3:00.0"}'), 'write "0000:a3:00.0"', 2),
    LintCase(
        "device-spec-without-domain",
        spec('{"address": "a3:00.0"}'),
        "in every PCI domain",
        host=epyc().inventory(),
        severity=N,
    ),
    LintCase("device-spec-all-functions", spec('{"address": "0000:a3:00"}'), "all functions of the card", 2),
    LintCase("device-spec-repeated", f"[pci]\n{SPEC}\n{SPEC}\n", "nova.conf:2 already", 3),
    LintCase("devname-with-placement", spec('{"devname": "eth0"}', ON), "does not start: devname", 3),
    LintCase(
        "one-time-use-without-placement", spec('{"address": "0000:27:00.0", "one_time_use": "yes"}'), "needs [pci]"
    ),
    LintCase(
        "tag-too-new",
        spec('{"address": "0000:27:00.0", "one_time_use": "yes"}', ON),
        "came with Nova 32",
        release="2025.1",
    ),
    LintCase("tag-too-new", spec('{"address": "0000:27:00.0", "managed": "no"}', ON), "with Nova 31", release="2024.2"),
    LintCase("tag-without-placement", spec('{"address": "0000:27:00.0", "traits": "a"}'), "traits do nothing while"),
    LintCase("json-key-repeated", spec('{"address": "0000:1:0.0", "address": "0000:2:0.0"}'), "'address' comes twice"),
    # a known host
    LintCase(
        "device-spec-matches-nothing",
        spec('{"address": "0000:99:00.0"}'),
        "0000:a3:00.0 10de:1db4",
        host=epyc().inventory(),
    ),
    LintCase("device-spec-takes-from-host", spec('{"address": "0000:42:00.0"}'), "needed by the host", host=consumer()),
    LintCase(
        "pf-and-vfs",
        spec('{"address": "0000:27:00.0"}', ON),
        "matches its virtual functions too: nova-compute does",
        host=t4(1),
    ),
    LintCase(
        "pf-and-vfs",
        spec('[{"address": "0000:27:00.4"}, {"address": "0000:27:00.0", "product_id": "1eb8"}]'),
        "giving one away takes the others",
        host=t4(1),
    ),
    LintCase(
        "group-split",
        spec('{"vendor_id": "10de", "product_id": "1db4"}', ON),
        "share IOMMU group 19",
        host=epyc().inventory(),
    ),
    LintCase(
        "group-split",
        spec(
            '[{"address":"0000:27:00.0","resource_class":"P","traits":"A"},'
            '{"address":"0000:28:00.0","resource_class":"P","traits":"A"}]',
            ON,
        ),
        "as long as every flavor takes 2",
        host=epyc().inventory(),
        severity=N,
    ),
    LintCase(
        "companion-offered",
        spec('{"vendor_id": "10de", "address": "0000:02:00.1"}'),
        "goes with its GPU",
        host=consumer(),
    ),
    LintCase("not-a-gpu", spec('{"address": "*:41:00.*"}'), "0000:41:00.0 Ethernet controller", host=consumer()),
    # aliases
    LintCase("alias-refused", alias("[{}]"), "it is a list", 2),
    LintCase("alias-refused", alias('{"vendor_id": "10de"}'), "it has no name", 2),
    LintCase("alias-refused", alias('{"name": "a", "vendor_id": "0x10de"}'), 'without 0x, as in "10de"', 2),
    LintCase("alias-refused", alias('{"name": "a", "live_migratable": true}'), 'write "yes" or "no"', 2),
    LintCase("alias-refused", alias('{"name": "a", "device_typ": "x"}'), "unknown key 'device_typ'", 2),
    LintCase("alias-refused", alias('{"name": "a", "device_type": "type-GPU"}'), "type-PCI or type-PF or type-VF", 2),
    LintCase("alias-without-ids", alias('{"name": "a", "vendor_id": "10de"}'), "lacks vendor_id and product_id", 2),
    LintCase("alias-without-ids", alias(RC_ALIAS), "counts only with pci_in_placement", severity=W),
    LintCase("alias-without-ids", alias(RC_ALIAS), "counts only with", service="nova-compute", severity=E_),
    LintCase("alias-without-ids", alias('{"name": "a", "traits": "b"}', PLACED), "nor a resource_class"),
    LintCase("alias-class-unused", alias(GOOD_ALIAS.replace("}", ', "traits": "b"}')), "traits count only with"),
    LintCase("alias-repeated", alias(f"{GOOD_ALIAS}\nalias = {GOOD_ALIAS}", PLACED), "one line for each name", 5),
    LintCase("alias-repeated", alias(f"{GOOD_ALIAS}\nalias = {GOOD_ALIAS}"), "the same content", severity=W),
    LintCase(
        "alias-repeated",
        alias(f"{GOOD_ALIAS}\nalias = {GOOD_ALIAS.replace('1db4', '1db1')}"),
        "they are alternatives",
        severity=N,
    ),
    LintCase(
        "alias-repeated", alias(f"{GOOD_ALIAS}\nalias = {GOOD_ALIAS.replace('PCI', 'PF')}"), "another device_type"
    ),
    LintCase(
        "alias-repeated",
        alias(GOOD_ALIAS + "\nalias = " + GOOD_ALIAS.replace("}", ', "numa_policy": "required"}')),
        "another numa_policy",
    ),
    LintCase(
        "alias-type-missing", alias('{"name": "a", "vendor_id": "10de", "product_id": "1eb8"}'), "no device_type", 2
    ),
    LintCase(
        "alias-type-never-matches",
        spec('{"address": "0000:27:00.0"}') + "alias = " + GOOD_ALIAS.replace("1db4", "1eb8"),
        'write "device_type": "type-PF"',
        3,
        host=t4(),
    ),
    LintCase(
        "alias-type-never-matches",
        spec('{"address": "0000:27:00.0"}') + "alias = " + GOOD_ALIAS.replace("PCI", "PF"),
        'write "device_type": "type-PCI"',
        3,
        host=epyc().inventory(),
    ),
    LintCase(
        "alias-without-device", f"[pci]\n{SPEC}\nalias = {GOOD_ALIAS.replace('1db4', '1eb8')}\n", "asks for 10de:1eb8"
    ),
    LintCase(
        "alias-without-device",
        PLACED
        + spec('{"address": "0000:27:00.0", "resource_class": "GPU"}', ON)
        + "alias = "
        + GOOD_ALIAS.replace("}", ', "resource_class": "OTHER"}'),
        "of OTHER",
    ),
    LintCase("alias-on-one-service", two(alias(GOOD_ALIAS), f"[pci]\n{SPEC}\n"), "not on nova-compute", 2),
    LintCase("alias-on-one-service", two("[DEFAULT]\n", f"[pci]\n{ALIAS}\n"), "refused with HTTP 400", 2, severity=E_),
    LintCase(
        "alias-differs",
        two(alias(GOOD_ALIAS), alias(GOOD_ALIAS.replace("1db4", "1db1"))),
        "asks for 10de:1db4 device_type=type-pci here and 10de:1db1 device_type=type-pci on nova-compute",
        2,
    ),
    LintCase(
        "alias-differs",
        {"/a/ctl/nova.conf": alias(GOOD_ALIAS), "/a/gpu1/nova.conf": f"[pci]\n{SPEC}\n{T4_ALIAS}\n"},
        "10de:1eb8 device_type=type-pf in /a/gpu1/nova.conf (taken for nova-compute's, with a device_spec)",
        2,
    ),
    LintCase(
        "alias-on-one-service",
        {"/a/ctl/nova.conf": f"[pci]\n{ALIAS}\n", "/a/gpu1/nova.conf": f"[pci]\n{SPEC}\n{T4_ALIAS}\n"},
        "alias 'v100' is not in /a/gpu1/nova.conf (taken for nova-compute's, with a device_spec): resize",
        2,
    ),
    LintCase(
        "alias-on-one-service",
        {"/a/ctl/nova.conf": f"[pci]\n{ALIAS}\n", "/a/gpu1/nova.conf": f"[pci]\n{SPEC}\n{T4_ALIAS}\n"},
        "alias 'a' is not in /a/ctl/nova.conf (taken for nova-api's, without a device_spec): a server",
        3,
    ),
    LintCase(
        "alias-on-one-service",
        {"/a/ctl/nova.conf": AGGREGATES, "/a/gpu1/nova.conf": f"[pci]\n{SPEC}\n{T4_ALIAS}\n"},
        "alias 'a' is not in /a/ctl/nova.conf",
        3,
    ),
    LintCase(
        "alias-on-one-service",
        {"/a/ctl/nova.conf": f"[pci]\n{ALIAS}\n", "/a/gpu1/nova.conf": f"[pci]\n{SPEC}\n"},
        "it has no alias",
        2,
    ),
    # the scheduler
    LintCase("removed-filter", f"[filter_scheduler]\nenabled_filters = {FILTERS},RamFilter\n", "removed in Nova 20", 2),
    LintCase(
        "removed-filter", f"[filter_scheduler]\nenabled_filters = {FILTERS},AvailabilityZoneFilter\n", "in Nova 28"
    ),
    LintCase(
        "unknown-filter",
        f"[filter_scheduler]\nenabled_filters = {FILTERS},NumaTopologyFilter\n",
        "did you mean NUMATopologyFilter?",
    ),
    LintCase(
        "unknown-filter",
        f"[filter_scheduler]\nenabled_filters = {FILTERS},nova.x.SameHostFilter\n",
        "write SameHostFilter",
    ),
    LintCase(
        "unknown-filter",
        f"[filter_scheduler]\navailable_filters = my.filters\nenabled_filters = {FILTERS},Mine\n",
        "no filter 'Mine'",
        severity=N,
    ),
    LintCase(
        "filter-not-available",
        "[filter_scheduler]\navailable_filters = nova.scheduler.filters.pci_passthrough_filter.PciPassthroughFilter\n"
        f"enabled_filters = {FILTERS}\n",
        "ComputeFilter is enabled, but available_filters",
    ),
    LintCase(
        "default-filters-missing", "[filter_scheduler]\nenabled_filters = PciPassthroughFilter\n", f"write {FILTERS}"
    ),
    LintCase(
        "pci-filter-missing",
        f"[pci]\n{ALIAS}\n[filter_scheduler]\nenabled_filters = ComputeFilter\n",
        "add PciPassthroughFilter",
        4,
    ),
    LintCase("pci-filter-missing", f"[pci]\n{ALIAS}\n", "is not set", 2, severity=N),
    LintCase("pci-filter-missing", f"[pci]\n{ALIAS}\n", "is not set", 2, service="nova-scheduler"),
    # services
    LintCase("placement-half-on", two(PLACED, f"[pci]\n{SPEC}\n"), "does not report its own", 2, severity=E_),
    LintCase("placement-half-on", two("[DEFAULT]\n", f"[pci]\n{ON}{SPEC}\n"), "nobody asks there", 2),
    LintCase(
        "placement-differs",
        {"/k/nova-api/nova.conf": PLACED, "/k/nova-scheduler/nova.conf": "[DEFAULT]\n"},
        "off for nova-scheduler",
        2,
    ),
    LintCase("ram-overcommitted", f"[DEFAULT]\nram_allocation_ratio = 1.5\n[pci]\n{SPEC}\n", "VFIO pins all memory", 2),
    LintCase(
        "ram-overcommitted",
        "[DEFAULT]\nram_allocation_ratio = $initial_ram_allocation_ratio\ninitial_ram_allocation_ratio = 2\n"
        f"[pci]\n{SPEC}\n",
        "VFIO pins all memory",
        2,
    ),
    LintCase("vcpu-pin-set", "[DEFAULT]\nvcpu_pin_set = 0-22\n", "deprecated since Nova 20", 2),
    LintCase(
        "cpu-sets-clash", "[DEFAULT]\nvcpu_pin_set = 0-22\n[compute]\ncpu_dedicated_set = 0-3\n", "does not start", 2
    ),
    LintCase(
        "cpu-sets-clash", "[DEFAULT]\nreserved_host_cpus = 2\n[compute]\ncpu_dedicated_set = 0-3\n", "remove it", 2
    ),
    LintCase(
        "second-nova-compute",
        {"/etc/nova/nova.conf": "[DEFAULT]\n", "/etc/nova/nova-gpu.conf": f"[DEFAULT]\nhost = gpu18\n[pci]\n{SPEC}\n"},
        "a second nova-compute, 'gpu18'",
        2,
    ),
    LintCase("no-gpu-quota", alias(GOOD_ALIAS), "DbQuotaDriver", 2),
    LintCase(
        "no-gpu-quota",
        "[quota]\ndriver = nova.quota.UnifiedLimitsDriver\n" + alias(GOOD_ALIAS),
        "Nova 33 leaves them",
        2,
        release="2026.1",
    ),
    LintCase(
        "limits-do-not-fail-closed",
        PLACED + "[quota]\ndriver=nova.quota.UnifiedLimitsDriver\n" + alias(GOOD_ALIAS),
        "is unlimited",
        4,
    ),
    LintCase(
        "option-not-read-here",
        {"/etc/nova/nova-compute.conf": "[filter_scheduler]\nenabled_filters = ComputeFilter\n"},
        "it is nova-scheduler that would need it",
        2,
    ),
    LintCase(
        "option-not-read-here",
        {"/k/nova/nova-api.conf": spec('{"address": "0000:27:00.0"}'), "/k/nova/nova-compute.conf": "[DEFAULT]\n"},
        "it is nova-compute that would need it",
        2,
    ),
    LintCase(
        "alias-on-one-service",
        {"/etc/nova/nova-compute.conf": alias(GOOD_ALIAS)},
        "nova-api needs the same aliases",
        2,
        severity=N,
    ),
    LintCase(
        "vgpu-address-twice",
        "[devices]\nenabled_mdev_types = nvidia-35, nvidia-36\n[mdev_nvidia-35]\ndevice_addresses = 0000:84:00.0\n"
        "[vgpu_nvidia-36]\ndevice_addresses = 0000:85:00.0,0000:84:00.0\n",
        "0000:84:00.0 is of vGPU type nvidia-35 already",
        6,
    ),
    LintCase(
        "vgpu-type-unused",
        "[devices]\nenabled_mdev_types = nvidia-35, nvidia-36\n[mdev_nvidia-35]\nmax_instances = 1\n",
        "nvidia-36 is not offered",
        2,
    ),
    LintCase("alias-type-never-matches", alias(GOOD_ALIAS.replace("1db4", "1eb8")), "T4 has SR-IOV", 2, severity=W),
    LintCase("alias-type-never-matches", alias(GOOD_ALIAS.replace("1db4", "26B9")), "L40S has SR-IOV", 2, severity=W),
    LintCase(
        "alias-type-never-matches",
        alias(GOOD_ALIAS.replace("type-PCI", "type-PF")),
        "10de:1db4 has no SR-IOV: it is type-PCI",
        2,
        severity=W,
    ),
    LintCase(
        "alias-type-missing",
        alias('{"name": "a", "vendor_id": "10de", "product_id": "2684"}'),
        "never matches a GPU with SR-IOV",
        2,
        severity=N,
    ),
    LintCase(
        "alias-refused",
        alias('{"name": "a", "vendor_id": "10de", "device_id": "1db4"}'),
        "did you mean product_id?",
        2,
    ),
    LintCase(
        "unknown-filter",
        "[filter_scheduler]\nenabled_filters = <existing filters>,PciPassthroughFilter\n",
        "write names of filters in its place",
        2,
    ),
    LintCase(
        "not-an-ini-file", '[pci]\nalias = {"name": "a",\n# the V100\n  "vendor_id": "10de"}\n', "comment in line 3", 4
    ),
    # flavors
    LintCase(
        "flavor-alias-syntax", alias(GOOD_ALIAS), "not of the form", flavors={"f": {"pci_passthrough:alias": "a"}}
    ),
    LintCase(
        "flavor-alias-syntax", alias(GOOD_ALIAS), "not of the form", flavors={"f": {"pci_passthrough:alias": "a:x"}}
    ),
    LintCase(
        "flavor-alias-unknown", alias(GOOD_ALIAS), "the alias 'b'", flavors={"f": {"pci_passthrough:alias": "b:1"}}
    ),
    LintCase(
        "flavor-alias-unknown",
        "[DEFAULT]\n",
        "the alias 'b'",
        flavors={"f": {"pci_passthrough:alias": "b:1"}},
        severity=N,
    ),
    LintCase(
        "flavor-takes-pci-class",
        "[DEFAULT]\n",
        "no server gets it",
        flavors={"f": {"resources:CUSTOM_PCI_10DE_1DB4": "1"}},
    ),
    LintCase(
        "flavor-takes-pci-class",
        spec('{"address": "0000:27:00.0", "resource_class": "gpu"}', ON),
        "no server gets it",
        flavors={"f": {"resources1:CUSTOM_GPU": "1"}},
    ),
    LintCase(
        "flavor-hide-hypervisor",
        "[DEFAULT]\n",
        "write hw:hide_hypervisor_id",
        flavors={"f": {"hide_hypervisor_id": "true"}},
    ),
    LintCase(
        "flavor-key-without-namespace",
        AGGREGATES,
        "write aggregate_instance_extra_specs:gpu",
        flavors={"f": {"gpu": "true"}},
    ),
    LintCase(
        "flavor-key-without-namespace", "[DEFAULT]\n", "has no namespace", flavors={"f": {"gpu": "true"}}, severity=N
    ),
    LintCase("wide-flavor", PLACED, "max_allocation_candidates = 100", flavors={"f": {"pci_passthrough:alias": "a:8"}}),
    LintCase(
        "wide-flavor",
        {"/etc/nova/nova.conf": PLACED, "/etc/placement/placement.conf": "[placement]\n"},
        "does not bound it",
        flavors={"f": {"pci_passthrough:alias": "a:3,b:2"}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_is_found(case: LintCase) -> None:
    of_rule = [item for item in findings(case) if item.code == case.rule]
    matches = [item for item in of_rule if case.says in f"{item.reason} -> {item.remedy}"]
    assert matches, [item.reason for item in of_rule] or [item.code for item in findings(case)]
    assert matches[0].severity is (case.severity or RULES[case.rule].severity)
    assert matches[0].reason
    assert matches[0].remedy
    if case.line is not None:
        assert matches[0].payload["line"] == case.line


def test_a_template_is_judged_for_what_it_shows() -> None:
    text = """[pci]
{# GPUs #}
{% for gpu in gpus %}
device_spec = {{ gpu | to_json }}
{% endfor %}
device_spec = {"addres": "0000:27:00.0"}
[filter_scheduler]
enabled_filters = {{ filters }}
"""
    rules = {(item.code, item.payload["line"]) for item in findings(LintCase("", text, ""))}
    assert rules == {("template", None), ("device-spec-unknown-key", 6), ("device-spec-matches-everything", 6)}


def test_a_file_that_is_no_ini_file_is_asked_for_once() -> None:
    text = "\n".join(f"line {number}" for number in range(53))
    matches = [item for item in findings(LintCase("", text, "")) if item.code == "not-an-ini-file"]
    assert [(item.payload["line"], item.remedy) for item in matches] == [
        (1, "mend the line; oslo.config stops at it"),
        (2, "mend the line; oslo.config stops at it"),
        (3, "is this a nova.conf?"),
    ]
    assert matches[2].reason.endswith(", and 50 more lines like these")


def test_what_is_of_the_whole_cloud_is_said_once() -> None:
    both = f"[filter_scheduler]\nenabled_filters = ComputeFilter\n[pci]\n{ALIAS}\n"
    files = {
        "/a/ctl1/nova.conf": both,
        "/a/ctl2/nova.conf": both,
        "/a/gpu1/nova.conf": f"{both}{SPEC}\n",
        "/a/gpu2/nova.conf": f"{both}{SPEC}\n",
    }
    items = findings(LintCase("", files, ""))
    assert sorted((item.code, item.payload["file"]) for item in items) == [
        ("default-filters-missing", "/a/ctl1/nova.conf"),
        ("no-gpu-quota", "/a/ctl1/nova.conf"),
        ("pci-filter-missing", "/a/ctl1/nova.conf"),
    ]
    compute = {name: text for name, text in files.items() if "gpu" in name}
    rules = [item.code for item in findings(LintCase("", compute, ""))]
    assert rules.count("no-gpu-quota") == 1, "a hypervisor's file is better than none"


def test_the_sentence_on_a_key_without_a_namespace() -> None:
    key = {"f": {"gpu": "true"}}
    for text, middle in (("[DEFAULT]\n", "where {} is enabled, it"), (AGGREGATES, "{} is enabled, and")):
        (item,) = (
            finding
            for finding in findings(LintCase("", text, "", flavors=key))
            if finding.code == "flavor-key-without-namespace"
        )
        assert item.reason == (
            f"gpu=true has no namespace: {middle.format('AggregateInstanceExtraSpecsFilter')} passes only hosts of "
            "aggregates with this metadata"
        )


def codes(*given: Finding) -> list[str]:
    return [item.code for item in given]


def test_hosts_without_gpus_need_no_aliases() -> None:
    """What Ubuntu puts on every hypervisor, beside a controller with aliases: 68 hosts, of which one has a GPU."""
    files = {"/a/controller/nova.conf": alias(GOOD_ALIAS)}
    files |= {f"/a/cpu{n}/nova-compute.conf": "[DEFAULT]\ncompute_driver=libvirt.LibvirtDriver\n" for n in range(67)}
    items = findings(LintCase("", files, ""))
    assert "alias-on-one-service" not in codes(*items)
    files["/a/gpu1/nova-compute.conf"] = spec('{"address": "0000:27:00.0", "vendor_id": "10de"}')
    (finding,) = (item for item in findings(LintCase("", files, "")) if item.code == "alias-on-one-service")
    assert finding.payload["file"] == "/a/gpu1/nova-compute.conf"


def test_an_alias_that_many_hosts_lack_is_said_once() -> None:
    files = {"/k/nova/nova-api.conf": alias(GOOD_ALIAS)}
    files |= {f"/k/nova/gpu{n}/nova-compute.conf": spec('{"address": "0000:27:00.0"}') for n in range(9)}
    matches = [item for item in findings(LintCase("", files, "")) if item.code == "alias-on-one-service"]
    assert [item.payload["file"] for item in matches] == ["/k/nova/nova-api.conf"]
    assert "nor on 8 more hosts" in matches[0].reason


@pytest.mark.parametrize("model", ["1db4", "15f7", "1bb3", "1b38", "102d", "11b4"])
def test_models_without_sriov_need_no_type(model: str) -> None:
    for more in ("", ', "device_type": "type-PCI"'):
        text = alias(f'{{"name": "a", "vendor_id": "10de", "product_id": "{model}"{more}}}')
        assert not [code for code in codes(*findings(LintCase("", text, ""))) if code.startswith("alias-type")]


def test_ways_of_a_condition_are_no_repetition() -> None:
    text = (
        "[pci]\n{% if inventory_hostname in groups['gpu'] %}\nreport_in_placement = true\n"
        f"alias = {GOOD_ALIAS}\ndevice_spec = {{'address': '0000:27:00.0'}}\n".replace("'", '"')
        + '{% else %}\nreport_in_placement = false\nalias = {"name": "a", "vendor_id": "10de", "product_id": "1db5",'
        ' "device_type": "type-PCI"}\ndevice_spec = {"address": "0000:27:00.0"}\n{% endif %}\n'
    )
    reported = codes(*findings(LintCase("", text, "")))
    assert not {"repeated-option", "alias-repeated", "device-spec-repeated"} & set(reported)
    twice = codes(*findings(LintCase("", text.replace("{% else %}\n", ""), "")))
    assert {"repeated-option", "alias-repeated", "device-spec-repeated"} <= set(twice)


def test_network_cards_and_accelerators_are_not_judged_as_gpus() -> None:
    text = (
        "[DEFAULT]\nram_allocation_ratio = 1.5\n[pci]\n"
        'device_spec = {"address": "*:0a:00.*", "physical_network": "physnet1"}\n'
        'device_spec = {"vendor_id": "8086", "product_id": "37c8"}\n'
        'alias = {"name": "qat", "vendor_id": "8086", "product_id": "37c8"}\n'
    )
    flavors = {"f": {"pci_passthrough:alias": "qat:8"}}
    items = findings(LintCase("", text + PLACED, "", flavors=flavors))
    assert codes(*items) == ["placement-half-on", "pci-filter-missing"], [item.reason for item in items]
    assert not any("GPU" in item.reason for item in items)
    card = Sysfs().function("41:00.0", NIC, "0200", 50).inventory()
    named = spec('{"vendor_id": "8086", "product_id": "1572"}')
    assert "not-a-gpu" not in codes(*findings(LintCase("", named, "", host=card)))


def test_a_broken_alias_has_one_finding() -> None:
    broken = alias('{"name": "a", "vendor_id": "0x10de", "product_id": "0x1db4", "devcie_type": "type-PCI"}')
    flavors = {"f": {"pci_passthrough:alias": "a:1"}}
    compute = alias(GOOD_ALIAS) + 'device_spec = {"address": "0000:27:00.0"}\n'
    items = findings(LintCase("", two(broken, compute), "", flavors=flavors))
    assert [item.code for item in items if "alias" in item.code] == ["alias-refused"]
    assert "unknown key 'devcie_type'" in items[0].reason
    assert "did you mean device_type?" in items[0].remedy


def test_an_old_name_is_said_once_for_a_file() -> None:
    text = "[pci]\n" + "".join(f'passthrough_whitelist = {{"address": "0000:{n}:00.0"}}\n' for n in range(10, 20))
    assert codes(*findings(LintCase("", text, ""))).count("renamed-option") == 1


DEVSTACK = """\
[[local|localrc]]
ADMIN_PASSWORD=secret
enable_plugin x https://example.org/x

[[post-config|$NOVA_CONF]]
[filter_scheduler]
enabled_filters = RamFilter

[[post-config|${NOVA_CPU_CONF}]]
[pci]
device_spec = {"addres": "0000:27:00.0"}
[[post-config|$NEUTRON_CONF]]
no ini
"""


def test_devstack_has_the_files_of_all_services_in_one() -> None:
    items = findings(LintCase("", {"/opt/stack/devstack/local.conf": DEVSTACK}, ""))
    places = {(item.code, item.object) for item in items if item.severity is Severity.ERROR}
    assert ("removed-filter", "/opt/stack/devstack/local.conf:7") in places
    assert ("device-spec-matches-everything", "/opt/stack/devstack/local.conf:11") in places
    assert "not-an-ini-file" not in codes(*items)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


GOOD = f"""\
[pci]
{ON}device_spec = {{"address": "0000:44:00.0", "vendor_id": "10de", "product_id": "1db4", "resource_class": "GPU"}}
alias = {{"name": "v100", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI",
  "resource_class": "GPU"}}
[filter_scheduler]
pci_in_placement = true
enabled_filters = {FILTERS},NUMATopologyFilter
[quota]
driver = nova.quota.UnifiedLimitsDriver
unified_limits_resource_list = servers,class:CUSTOM_GPU
[DEFAULT]
ram_allocation_ratio = 1.0
"""


@pytest.mark.parametrize("service", [None, "nova-compute", "nova-api", "nova-scheduler"])
def test_a_good_configuration_has_no_findings(service: str | None) -> None:
    flavors = {
        "gpu": {"pci_passthrough:alias": "v100:4", "hw:hide_hypervisor_id": "true", "resources:CUSTOM_SLOT": "1"},
        "cpu": {"aggregate_instance_extra_specs:gpu": "false", "group_policy": "none"},
    }
    assert findings(LintCase("", GOOD, "", service=service, flavors=flavors, host=epyc().inventory())) == []


def test_what_gpuyard_renders_has_no_findings() -> None:
    loaded = load_site(EXAMPLE_SITE)
    compiled = loaded.compiled
    files = {f"/out/{file_name(o)}": render_ini(o.options) for o in compiled.options if o.options}
    assert len(files) == 8
    flavors = [FlavorText(item.name, item.extra_specs) for item in compiled.flavors]
    subject, unused = subject_of(files, RELEASES["2026.2"], recorded=loaded.inventories, flavors=flavors)
    assert not unused
    assert lint(subject) == []


WORDS = st.sampled_from(
    [
        "[pci]\n",
        "[DEFAULT]\n",
        "[filter_scheduler]\n",
        "device_spec = ",
        "alias = ",
        "pci_alias=",
        '{"address":',
        '"a3:00.0"',
        '"vendor_id": "10de"',
        '"name": "x"',
        "{",
        "}",
        "[",
        "]",
        ",",
        "null",
        "1e999",
        "9" * 5000,
        "\n",
        "\n  ",
        "$a",
        "${pci.alias}",
        "enabled_filters = ",
        "RamFilter",
        "pci_in_placement=true\n",
        "report_in_placement=$report_in_placement\n",
        "ram_allocation_ratio = nan\n",
        '"resource_class": 3',
        '"traits": ["x"]',
        "host = $host$host\n",
        "[" * 2000,
    ],
)


@given(st.lists(WORDS | st.text(max_size=6), max_size=30).map("".join), st.sampled_from([None, "nova-compute"]))
def test_it_never_fails_on_any_text(text: str, service: str | None) -> None:
    files = {
        "/etc/nova/nova.conf": text,
        "/etc/nova/nova-compute.conf": text,
        "/etc/nova/nova-x.conf": text,
        "/k/nova-api/nova.conf": text,
        "placement.conf": text,
    }
    flavors = [FlavorText("f", {"pci_passthrough:alias": text, text: "x", f"resources:{text}": "1"})]
    recorded = {"/r/t4.json": t4(1)}
    subject, _ = subject_of(files, RELEASES["2025.1"], service, recorded, flavors)
    for item in lint(subject):
        assert item.code in RULES
        assert item.reason
        assert item.remedy


NAMES = st.sampled_from(
    ["nova.conf", "nova-compute.conf", "nova-api.conf", "nova/nova-scheduler.conf", "nova/gpu1/nova.conf",
     "nova/gpu1/nova-compute.conf", "nova-compute/nova.conf", "controller/nova.conf", "gpu1/nova-compute.conf",
     "local.conf", "placement.conf", "nova-gpu.conf"]
)  # fmt: skip
SECTIONS_OF = st.sampled_from(
    ["[DEFAULT]", "[pci]", "[filter_scheduler]", "[devices]", "[mdev_a]", "[vgpu_b]", "[quota]"]
)
LINES = st.sampled_from(
    ["{% if a %}", "{% else %}", "{% endif %}", "{% for a in b %}", "{#", "#}", "{%", "{{ a }} = 1", "# x", "  # x",
     "[[local|localrc]]", "[[post-config|$NOVA_CONF]]", "[[post-config|$NOVA_CPU_CONF]]", "[[x|]]", "[[|",
     f"alias = {GOOD_ALIAS}", f"alias = {RC_ALIAS}", "alias = {}", "alias = [", 'alias = {"name": "b", "traits": ","}',
     'alias = {"name": "n", "vendor_id": "8086", "product_id": "37c8"}', SPEC, "device_spec = []",
     'device_spec = [{"devname": "eth0"}, 3]', 'device_spec = {"address": {"bus": "2."}, "resource_class": "x y"}',
     "passthrough_whitelist = {}", "pci_in_placement = true", "report_in_placement = $x", "enabled_filters = a,,b#",
     "enabled_mdev_types = a,b,a,", "enabled_vgpu_types = c", "device_addresses = 0000:84:00.0,x", "host = y",
     "driver = nova.quota.UnifiedLimitsDriver", "scheduler_default_filters = ,"]
)  # fmt: skip
TEXTS = st.lists(SECTIONS_OF | LINES, max_size=25).map("\n".join)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.tuples(st.sampled_from(["/etc", "/k"]), NAMES).map("/".join), TEXTS, max_size=6),
    st.sampled_from([None, "nova-compute", "nova-api", "nova-scheduler"]),
    st.booleans(),
)
def test_it_never_fails_on_any_tree(files: dict[str, str], service: str | None, recorded: bool) -> None:
    flavors = [FlavorText("f", {"pci_passthrough:alias": "a:5,b:1,n:8"})]
    hosts = {"gpu1": consumer()} if recorded else {}
    subject, _ = subject_of(files, RELEASES["2026.1"], service, hosts, flavors)
    for item in lint(subject):
        assert item.code in RULES
        assert item.reason
        assert item.remedy


def test_a_long_template_is_read_in_no_time() -> None:
    for text in ("{%" * 200_000, "{% x" * 100_000 + "%}", "{#" * 100_000 + "{%" * 100_000):
        subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
        lint(subject)


def test_a_long_file_takes_time_by_its_length() -> None:
    """A look through the whole file at each line would take the square of it."""

    def seconds(lines: int) -> float:
        addresses = (f"0000:{index // 32 % 256:02x}:{index % 32:02x}.{index // 8192}" for index in range(lines))
        specs = (SPEC.replace("0000:27:00.0", address) for address in addresses)
        subject, _ = subject_of({"nova.conf": "\n".join(["[pci]", *specs])}, RELEASES["2026.1"])
        start = time.process_time()
        lint(subject)
        return time.process_time() - start

    assert seconds(20_000) < 40 * min(seconds(2_000), seconds(2_000))
