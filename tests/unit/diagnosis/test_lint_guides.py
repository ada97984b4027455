"""Configuration as guides of 2015 to 2023 show it, word for word: what the linter says of it today."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gpuyard.diagnosis.lint import lint, subject_of
from gpuyard.diagnosis.lint.model import FlavorText
from gpuyard.host.recording import replay_file
from gpuyard.nova.release import RELEASES
from gpuyard_lab.plan import EXAMPLE_SITE


@dataclass(frozen=True)
class Guide:
    """Files (name below /x -> text), flavors, and the machine that the guide is about."""

    files: dict[str, str]
    flavors: dict[str, dict[str, str]] = field(default_factory=dict)
    recording: str | None = None


ALIAS_T4 = 'alias={"name":"T4","product_id":"1eb8","vendor_id":"10de","device_type":"type-PF"}'
TITAN_XP = (
    'alias={"name":"GP102_VGA","product_id":"1b02","vendor_id":"10de","device_type":"type-PCI"}\n'
    'alias={"name":"GP102_SND","product_id":"10ef","vendor_id":"10de","device_type":"type-PCI"}\n'
)
GUIDES = {
    "000: one address for each IOMMU group, without domains": Guide(
        {
            "nova/nova.conf": "# nova.conf\n[pci]\n"
            'device_spec = [{"address": "a3:00.0"}, {"address": "c3:00.0"}, '
            '{"address": "27:00.0"}, {"address": "44:00.0"}]\n'
        },
        {"gpu_4xlarge": {"pci_passthrough:alias": "tesla-v100:1"}},
        "epyc-v100",
    ),
    "001: a second nova-compute": Guide(
        {
            "hyper/nova.conf": "[DEFAULT]\nvcpu_pin_set=0-22\nreserved_host_memory_mb=4096\n",
            "hyper/nova-gpu.conf": '[DEFAULT]\npci_passthrough_whitelist=[{"vendor_id": "10de", "product_id":"1024"}]\n'
            "host=gpu18\n",
            "controller/nova.conf": "[DEFAULT]\n"
            'pci_alias={"vendor_id": "10de", "product_id":"1024", "device_type":"type-PCI", "name":"gpu"}\n',
        },
        {"g1.gpu": {"gpu": "true", "pci_passthrough:alias": "gpu:1"}},
    ),
    "003: a T4": Guide(
        {
            "gpu-02/nova.conf": "[DEFAULT]\nram_allocation_ratio = 1.0\n[pci]\n"
            'passthrough_whitelist = {"vendor_id":"10de", '
            f'"product_id":"1eb8"}}\n{ALIAS_T4}\n',
            "controller/nova.conf": f"[pci]\n{ALIAS_T4}\n\n"
            "[filter_scheduler]\nenabled_filters = ...,PciPassthroughFilter\n",
        },
        {"15cores90GB20+600GB1T4": {"pci_passthrough:alias": "T4:1"}},
        "t4-node",
    ),
    "003: a host with different GPUs": Guide(
        {
            "nova/nova.conf": '[pci]\npassthrough_whitelist = {"vendor_id":"10de"}\n\n'
            + TITAN_XP
            + TITAN_XP.replace("GP102", "GK110").replace("1b02", "1005").replace("10ef", "0e1a")
        },
        {"1TitanXP": {"pci_passthrough:alias": "GP102_VGA:1,GP102_SND:1", "hide_hypervisor_id": "true"}},
        "mixed-consumer",
    ),
    "004: Newton": Guide(
        {
            "controller/nova.conf": '[DEFAULT]\npci_alias={"name":"K4200","vendor_id":"10de","product_id":"11b4"}\n'
            "scheduler_available_filters=nova.scheduler.filters.all_filters\n"
            "scheduler_available_filters=nova.scheduler.filters.pci_passthrough_filter.PciPassthroughFilter\n"
            "scheduler_default_filters=DifferentHostFilter,RetryFilter,AvailabilityZoneFilter,RamFilter,CoreFilter,"
            "DiskFilter,ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
            "ServerGroupAffinityFilter,AggregateInstanceExtraSpecsFilter,PciPassthroughFilter\n",
            "compute/nova.conf": "[DEFAULT]\n"
            'pci_passthrough_whitelist={"name":"K4200","vendor_id":"10de","product_id":"11b4"}\n'
            'pci_alias={"name":"K4200","vendor_id":"10de","product_id":"11b4"}\n',
        },
        {"k4200": {"pci_passthrough:alias": "K4200:1"}},
    ),
}


def found(guide: Guide) -> list[str]:
    """Place, severity and rule of each finding."""
    recorded = {}
    if guide.recording:
        path = EXAMPLE_SITE.parent / f"recordings/{guide.recording}.json"
        recorded = {guide.recording: replay_file(path)}
    files = {f"/x/{name}": text for name, text in guide.files.items()}
    flavors = [FlavorText(name, specs) for name, specs in guide.flavors.items()]
    subject, _ = subject_of(files, RELEASES["2026.2"], None, recorded, flavors)
    return [f"        {item.object.removeprefix('/x/')}: {item.severity}: {item.code}" for item in lint(subject)]


EXPECTED = {
    "000: one address for each IOMMU group, without domains": """
        nova/nova.conf:3: note: device-spec-without-domain
        nova/nova.conf:3: note: device-spec-without-domain
        nova/nova.conf:3: note: device-spec-without-domain
        nova/nova.conf:3: note: device-spec-without-domain
        nova/nova.conf:3: note: pci-filter-missing
        flavors, flavor gpu_4xlarge: note: flavor-alias-unknown
    """,
    "001: a second nova-compute": """
        hyper/nova.conf:2: warning: vcpu-pin-set
        hyper/nova-gpu.conf:2: warning: renamed-option
        hyper/nova-gpu.conf:2: warning: alias-on-one-service
        hyper/nova-gpu.conf:2: note: pci-filter-missing
        hyper/nova-gpu.conf:3: error: second-nova-compute
        controller/nova.conf:2: warning: renamed-option
        controller/nova.conf:2: note: no-gpu-quota
        flavors, flavor g1.gpu: note: flavor-key-without-namespace
    """,
    "003: a T4": """
        gpu-02/nova.conf:4: warning: renamed-option
        controller/nova.conf:2: note: no-gpu-quota
        controller/nova.conf:5: error: unknown-filter
        controller/nova.conf:5: warning: default-filters-missing
    """,
    "003: a host with different GPUs": """
        nova/nova.conf:2: warning: renamed-option
        nova/nova.conf:2: warning: device-spec-vendor-only
        nova/nova.conf:2: warning: companion-offered
        nova/nova.conf:2: warning: companion-offered
        nova/nova.conf:2: note: pci-filter-missing
        nova/nova.conf:4: note: no-gpu-quota
        flavors, flavor 1TitanXP: warning: flavor-hide-hypervisor
    """,
    "004: Newton": """
        controller/nova.conf:2: warning: renamed-option
        controller/nova.conf:2: note: pci-filter-missing
        controller/nova.conf:2: note: no-gpu-quota
        controller/nova.conf:3: error: dead-option
        controller/nova.conf:5: error: dead-option
        compute/nova.conf:2: warning: renamed-option
        compute/nova.conf:2: warning: device-spec-unknown-key
        compute/nova.conf:3: warning: renamed-option
    """,
}


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_gets_these_findings(name: str) -> None:
    assert found(GUIDES[name]) == EXPECTED[name].split("\n")[1:-1]
