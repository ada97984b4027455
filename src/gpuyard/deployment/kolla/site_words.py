"""Tells an operator which key of the site file replaces an option of their own."""

from __future__ import annotations

HOST_KEYS = ("cpu_allocation_ratio", "cpu_shared_set", "cpu_dedicated_set")
"""A host's keys that have the name of the option."""
OVERHEAD = {"reserved_host_cpus": "vcpus", "reserved_host_memory_mb": "ram", "reserved_host_disk_mb": "disk"}
SITE_KEYS = {
    ("filter_scheduler", "pci_in_placement"): "pci_in_placement",
    ("pci", "report_in_placement"): "pci_in_placement",
    ("scheduler", "enable_isolated_aggregate_filtering"): "exclusive",
    ("placement", "max_allocation_candidates"): "hypervisors",
}
"""Options that follow from one key of the site."""


def in_the_site(section: str, key: str, host: str = "HOST") -> str:
    """Return what to do about an option that both the operator and gpuyard set; `host`: its name, for an option of
    one host."""
    if (section, key) == ("pci", "alias"):
        return "delete the line, and write your alias under `extra_aliases` in the site file"
    if (section, key) == ("pci", "device_spec"):
        return f"delete the line, and write your entry under `hosts.{host}.extra_device_specs` in the site file"
    if (section, key) == ("filter_scheduler", "enabled_filters"):
        return "delete the line, and write your filters under `extra_filters` in the site file"
    if key in OVERHEAD:
        return f"delete the line, and write it as `{OVERHEAD[key]}` under `hosts.{host}.overhead` in the site file"
    if key in HOST_KEYS:
        return f"delete the line, and write it as `hosts.{host}.{key}` in the site file"
    if section == "quota":
        return "delete the line; `gpu_quotas` in the site file decides it"
    if (section, key) in SITE_KEYS:
        return f"delete the line; `{SITE_KEYS[section, key]}` in the site file decides it"
    return "delete the line: the site decides it"
