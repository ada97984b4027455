"""The page of docs/reference about releases of OpenStack: what differs, what was run and what only read."""

from __future__ import annotations

from gpuyard.nova.release import RELEASES, Release
from gpuyard_lab.releases.catalogue import LAB_RELEASES, OLDEST_PYTHON, OWN, spoken

FEATURES = {
    "one_time_use": "`one_time_use` of a pool",
    "managed": "`managed` and `live_migratable` of a pool; pools of NVIDIA's virtual functions (`kind: vf` with a "
    "`type`)",
    "pci_quotas": "limits on the classes of GPUs themselves, so that flavors that somebody else makes count too; "
    "before, only those of the site's own flavors, by their `resources:CUSTOM_GPU_..._COUNT`",
    "limits_named": "a limit that is missing refuses GPUs only; before, Nova refuses every class that has no limit, "
    "and a `reserve` needs `gpu_quotas: false`",
    "limits_lookup": "`[oslo_limit]` without the id of Nova's endpoint, so that `site render --kolla` can write it",
    "limits_shown": "Keystone shows the limits of all projects to an admin of one project",
    "several_vgpus": "flavors of several vGPUs (`kind: vgpu`)",
    "wide_trees": "`optimize_for_wide_provider_trees` on hosts with many GPUs",
}
"""Field of Release -> what it gives a site."""
RUN = {
    "2024.1": "exercise and booking, on 23 November 2026",
    "2024.2": "exercise and booking, on 23 November 2026",
    "2025.1": "exercise and booking, on 23 November 2026",
    "2025.2": "exercise and booking, on 23 November 2026",
    "2026.1": "exercise and booking, on 23 November 2026",
    "2026.2": "all tests",
}
"""Release -> what was seen of a lab of it, the last time that `make test-releases` ran."""
ABOUT = """\
A site has a `release`, and gpuyard writes the options that this release reads. In CI each release's own Nova and
Placement read what is written (their parsers, with every option known). `gpuyard lab up --release NAME` runs
Keystone, Placement, Glance, Neutron and Nova of a release ([how to](../how-to/run-the-lab.md#another-release)), and
`make test-releases` does there what the cloud is for: the site is applied, all GPUs of a host are used and no group is
split, a booking begins, lets its owner in and nobody else, and ends.
"""
CANNOT = """\
## What to know of older ones

- **Reading limits**: before 2026.1 Keystone lists the limits of other projects to a token of the system only, and
  `site apply` by an admin of a project then says that a limit "still differs", and what to do: add a second cloud to
  clouds.yaml that has `system_scope: all` under `auth`, and name it in the admin's entry: `gpuyard: {limits: NAME}`.
  The lab does so, and `site bootstrap` writes it for the user it makes.
- **403 and 500**: Nova of 2026.1 that looks up its endpoint, as `site render --kolla` tells it to, answers 500 and not
  403 to what is over a limit. With `endpoint_id` in `[oslo_limit]` it is 403.
- **-1**: Nova of 2024.1 and 2024.2 takes a limit of -1 for one that is reached, and refuses servers. `site check` names
  those under `limits` and `projects`: write large numbers instead. The project of the runners, and a lab, get the
  largest that Keystone takes. Limits of -1 that somebody else has set must be changed in Keystone: `openstack
  registered limit list` shows them.

## What is not tried

- **With kolla-ansible**: 20 to 22 (2025.1 to 2026.1). There was none for 2026.2 when this was written; 18 and 19
  (2024.1, 2024.2) were not compared with what gpuyard knows of Kolla's roles.
- **gpuyard's own user** (`site bootstrap`): its policies are tried on 2026.2 alone.
- **vGPUs and virtual functions** are run on 2026.2; for the others their options are compiled by the same rules.
- **Hypervisors**: a lab's are recorded, on every release. Which libvirt and QEMU a release needs is in its own
  documentation.
"""


def releases() -> str:
    """The page."""
    rows = [
        "| release | Nova | Placement | Kolla | lab: Nova, Keystone, Glance, Neutron, Placement | on | seen there |",
        "|---|---|---|---|---|---|---|",
        *(_row(release) for release in RELEASES.values()),
    ]
    features = [
        "## What a release has",
        "",
        "| " + " | ".join(["", *RELEASES]) + " |",
        "|---|" + "---|" * len(RELEASES),
        *(_feature(name, text) for name, text in FEATURES.items()),
        "",
        "`gpuyard site check` names what a site asks for and its release lacks.",
    ]
    needs = f"A lab needs Python {spoken(OLDEST_PYTHON)} at least, since its own code runs there too.\n"
    return "\n".join(["# Releases of OpenStack", "", ABOUT, *rows, "", needs, *features, "", CANNOT])


def _row(release: Release) -> str:
    lab_release = LAB_RELEASES.get(release.name)
    versions = ", ".join(lab_release.services.values()) if lab_release else "those of gpuyard's own environment"
    pythons = f"Python {lab_release.pythons}" if lab_release else "that of gpuyard"
    cells = (f"`{release.name}`", release.nova, release.placement, release.kolla, versions, pythons, RUN[release.name])
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _feature(name: str, text: str) -> str:
    return (
        f"| {text} | " + " | ".join("yes" if getattr(release, name) else "no" for release in RELEASES.values()) + " |"
    )


assert set(RUN) == set(RELEASES)
assert OWN not in LAB_RELEASES
