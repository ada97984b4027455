"""Checks an image's definition, its driver and CUDA above all, against the GPUs that it is for. Pure but for the list
of PCI ids.

It chooses the kernel module when the site file states none, and refuses a driver branch, a kernel module or a CUDA
toolkit that cannot serve all GPUs of the image's pools, and a base that no distribution has, before anything is
built.

The branch itself is the site file's; its packages and their version are chosen when the image is built, in
images/elements/gpuyard-nvidia/install.d/59-gpuyard-nvidia-packages.

Sources:
- GPUs, their kernel modules and branches: gpu_generations.
- CUDA and driver: NVIDIA's "Minor Version Compatibility" (docs.nvidia.com/deploy/cuda-compatibility), tables 1, 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpuyard.host.pci_ids import PciIds
from gpuyard.site.gpu_generations import OPEN, PROPRIETARY, Generation, generation_of, is_unknown
from gpuyard.site.image_rules import RELEASES, ImageBase, ImageBuild
from gpuyard.site.problems import Place, Problem
from gpuyard.site.schema import Site

OPEN_IS_USUAL = 560
"""The first branch with which NVIDIA's own installers take the open modules where they can."""


CUDA_DRIVERS = {(10, 0): 410, (10, 1): 418, (10, 2): 440, (11, 0): 450, (12, 0): 525, (13, 0): 580}
"""CUDA toolkit -> the first driver branch that runs its programs; one that is not here takes that of the one before."""
NEWEST_CUDA = 13
"""The newest major version whose driver is known."""


def kernel_module(build: ImageBuild, models: Iterable[str], names: PciIds) -> str:
    """Return the kernel module that is stated, or else the one that drives all these models."""
    assert build.driver is not None
    if build.driver.kernel_module is not None:
        return build.driver.kernel_module
    generations = [
        generation for generation in (generation_of(model, names) for model in models) if generation is not None
    ]
    can = {module for module in (OPEN, PROPRIETARY) if all(module in generation.modules for generation in generations)}
    usual = OPEN if int(build.driver.branch) >= OPEN_IS_USUAL else PROPRIETARY
    return usual if usual in can or not can else next(iter(can))


def image_models(site: Site, build: ImageBuild) -> list[str]:
    """Return the PCI ids of the GPUs that an image is for: of its pools, or of all."""
    pools = build.pools or list(site.pools)
    return [model for pool in pools if pool in site.pools for model in site.pools[pool].models]


def image_problems(site: Site, names: PciIds) -> Iterable[Problem]:
    """Yield every problem of how the site's images are built."""
    for name, image in site.images.items():
        if image.build is not None:
            yield from _problems(site, image.build, ("images", name, "build"), names)


def _problems(site: Site, build: ImageBuild, place: Place, names: PciIds) -> Iterable[Problem]:
    yield from _base_problems(build.base, (*place, "base", "release"))
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
    generations, models = {}, image_models(site, build)
    unknown = sorted({model for model in models if is_unknown(model, names)})
    if unknown and build.driver.kernel_module is None:
        yield Problem((*place, "driver"), _what_to_state(unknown))
    for model in models:
        generation = generation_of(model, names)
        if generation is not None:
            generations[generation.name] = generation
    yield from _branch_problems(int(build.driver.branch), generations.values(), (*place, "driver", "branch"))
    yield from _module_problems(build.driver.kernel_module, generations.values(), (*place, "driver"))
    if build.cuda is not None:
        yield from _cuda_problems(build.cuda, int(build.driver.branch), generations.values(), (*place, "cuda"))


def _what_to_state(unknown: Collection[str]) -> str:
    return (
        f"of which generation {', '.join(unknown)} is, neither the list of PCI ids nor gpuyard knows: write "
        "'kernel_module: open', which Grace Hopper and Blackwell need, or 'proprietary'. "
        "That 'branch' and 'cuda' are for it, is then yours to know"
    )


def _base_problems(base: ImageBase, place: Place) -> Iterable[Problem]:
    choices = RELEASES[base.distribution]
    if base.release in choices:
        return
    others = [name for name, releases in RELEASES.items() if base.release in releases]
    whose = f"; it is one of {others[0]}" if others else ""
    reason = f"gpuyard knows no release {base.release!r} of {base.distribution}{whose}; there are {', '.join(choices)}"
    yield Problem(place, reason)


def _branch_problems(branch: int, generations: Collection[Generation], place: Place) -> Iterable[Problem]:
    for generation in generations:
        does_not = f"branch {branch} does not drive {generation.name}"
        if generation.last is not None and branch > generation.last:
            yield Problem(place, f"{does_not}; {generation.last} is the last one that does, or name other 'pools'")
        if branch < generation.first:
            yield Problem(place, f"{does_not}; {generation.first} is the first one that does, or name other 'pools'")


def _module_problems(stated: str | None, generations: Collection[Generation], place: Place) -> Iterable[Problem]:
    candidates = [stated] if stated else [OPEN, PROPRIETARY]
    if any(all(module in generation.modules for generation in generations) for module in candidates):
        return
    modules = ", ".join(f"{generation.name} needs {' or '.join(generation.modules)}" for generation in generations)
    which = "no kernel module works" if stated is None else f"the {stated} kernel module does not work"
    yield Problem(place, f"{which} with all GPUs of its pools: {modules}; build one image for each, with 'pools'")


def _cuda_problems(cuda: str, branch: int, generations: Collection[Generation], place: Place) -> Iterable[Problem]:
    major, minor = (int(part) for part in cuda.split("-"))
    known_versions = [version for version in CUDA_DRIVERS if version <= (major, minor)]
    if known_versions and major <= NEWEST_CUDA and branch < (least := CUDA_DRIVERS[max(known_versions)]):
        reason = f"CUDA {major}.{minor} takes driver branch {least} or a newer one, and 'driver' has {branch}"
        yield Problem(place, f"{reason}; write another branch, or an older CUDA")
    for generation in generations:
        does_not = f"CUDA {major}.{minor} makes no code for {generation.name}"
        if generation.cuda_last is not None and major > generation.cuda_last:
            yield Problem(place, f"{does_not}; {generation.cuda_last} is the last that does, or name other 'pools'")
        if (major, minor) < generation.cuda_first:
            first = "{}.{}".format(*generation.cuda_first)
            yield Problem(place, f"{does_not}; {first} is the first that does, or name other 'pools'")
