"""Which kernel module of NVIDIA's driver an image has, by the GPUs that it is for. Pure but for the list of PCI ids.

Sources: NVIDIA's driver documentation (open kernel modules: Turing and later; Blackwell with these only) and its notes
on branches: 390 is the last for Fermi, 470 for Kepler, 580 for Maxwell, Pascal and Volta.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.host.pci_ids import PciIds
from gpuyard.nova.gpu_models import NVIDIA
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.problems import Place, Problem
from gpuyard.site.schema import Site

OPEN, PROPRIETARY = "open", "proprietary"
OPEN_IS_USUAL = 560
"""From this branch on NVIDIA's own installers take the open modules where they can."""


@dataclass(frozen=True)
class Generation:
    """GPUs of one architecture of NVIDIA's."""

    name: str
    modules: tuple[str, ...]
    first: int = 0
    """The first branch that drives them; 0 for one that nobody has any more."""
    last: int | None = None
    """The last one; None while there is none."""


GENERATIONS = {
    "GF": Generation("Fermi", (PROPRIETARY,), last=390),
    "GK": Generation("Kepler", (PROPRIETARY,), last=470),
    "GM": Generation("Maxwell", (PROPRIETARY,), last=580),
    "GP": Generation("Pascal", (PROPRIETARY,), last=580),
    "GV": Generation("Volta", (PROPRIETARY,), last=580),
    "TU": Generation("Turing", (OPEN, PROPRIETARY), first=410),
    "GA": Generation("Ampere", (OPEN, PROPRIETARY), first=450),
    "AD": Generation("Ada", (OPEN, PROPRIETARY), first=525),
    "GH": Generation("Hopper", (OPEN, PROPRIETARY), first=525),
    "GB": Generation("Blackwell", (OPEN,), first=570),
}
"""How the name of a chip begins, as the PCI ID Project has it: ``GV100GL [Tesla V100 PCIe 16GB]``."""


def generation_of(model: str, names: PciIds) -> Generation | None:
    """Of PCI ids as a pool has them; None of a chip that nobody knows, or that is not NVIDIA's."""
    vendor, _, product = model.partition(":")
    name = names.product(vendor, product) if vendor == NVIDIA else None
    return GENERATIONS.get((name or "")[:2])


def kernel_module(build: ImageBuild, models: Iterable[str], names: PciIds) -> str:
    """The one that is stated, or else the one that drives all these models."""
    assert build.driver is not None
    if build.driver.kernel_module is not None:
        return build.driver.kernel_module
    found = [one for one in (generation_of(model, names) for model in models) if one is not None]
    can = {module for module in (OPEN, PROPRIETARY) if all(module in one.modules for one in found)}
    usual = OPEN if int(build.driver.branch) >= OPEN_IS_USUAL else PROPRIETARY
    return usual if usual in can or not can else next(iter(can))


def image_models(site: Site, build: ImageBuild) -> list[str]:
    """PCI ids of the GPUs that an image is for: of its pools, or of all."""
    pools = build.pools or list(site.pools)
    return [model for pool in pools if pool in site.pools for model in site.pools[pool].models]


def image_problems(site: Site, names: PciIds) -> Iterable[Problem]:
    """Everything that is wrong with how the site's images are built."""
    for name, image in site.images.items():
        if image.build is not None:
            yield from _problems(site, image.build, ("images", name, "build"), names)


def _problems(site: Site, build: ImageBuild, place: Place, names: PciIds) -> Iterable[Problem]:
    for index, pool in enumerate(build.pools):
        if pool not in site.pools:
            yield Problem((*place, "pools", index), f"unknown pool {pool!r}; the site has {', '.join(site.pools)}")
    if bool(build.members) != (build.visibility == "shared"):
        reason = "projects that see an image are named with 'visibility: shared', and only with that"
        yield Problem((*place, "members" if build.members else "visibility"), reason)
    if build.cuda is not None and (build.driver is None or build.driver.source != "nvidia"):
        yield Problem(
            (*place, "cuda"), "CUDA comes from where NVIDIA's driver is: write 'driver' with 'source: nvidia'"
        )
    if build.driver is None:
        if build.container_toolkit:
            yield Problem((*place, "container_toolkit"), "containers get GPUs by the driver; write 'driver', too")
        return
    if (
        build.base.architecture != "amd64"
        and build.driver.source == "distribution"
        and build.base.distribution == "debian"
    ):
        reason = "Debian's own driver is for amd64 only; write source: nvidia"
        yield Problem((*place, "driver", "source"), reason)
    branch, drives = int(build.driver.branch), {}
    for model in image_models(site, build):
        one = generation_of(model, names)
        if one is not None:
            drives[one.name] = one
    for one in drives.values():
        if one.last is not None and branch > one.last:
            reason = f"branch {branch} does not drive {one.name}; {one.last} is the last one that does"
            yield Problem((*place, "driver", "branch"), f"{reason}, or name other 'pools'")
        if branch < one.first:
            reason = f"branch {branch} does not drive {one.name}; {one.first} is the first one that does"
            yield Problem((*place, "driver", "branch"), f"{reason}, or name other 'pools'")
    stated = build.driver.kernel_module
    wanted = [stated] if stated else [OPEN, PROPRIETARY]
    if not any(all(module in one.modules for one in drives.values()) for module in wanted):
        said = ", ".join(f"{one.name} has {' or '.join(one.modules)}" for one in drives.values())
        reason = f"no kernel module drives all GPUs of its pools: {said}; build one image for each, with 'pools'"
        yield Problem((*place, "driver"), reason if stated is None else f"{stated} does not drive all GPUs: {said}")
