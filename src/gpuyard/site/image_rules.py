"""Schema of ``images: NAME: build`` in ``site.yaml``: how gpuyard builds an image. Keys that are left out have
diskimage-builder's own defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gpuyard.site.strict import Strict

Release = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$", max_length=30)]
Mirror = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s/'\"\\$`]+(/[A-Za-z0-9._~+:@%-]+)*/?$", max_length=300)
]
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=100)]
Element = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

RELEASES = {
    "debian": ("bullseye", "bookworm", "trixie", "forky"),
    "ubuntu": ("focal", "jammy", "noble", "resolute", "stonking"),
}
"""Distribution -> its releases from 2020 on that are still maintained in November 2026, by it or by its long-term
support, the oldest first: distro-info-data 0.58+deb12u7."""


class ImageBase(Strict):
    """The distribution that an image is made of."""

    distribution: Literal["debian", "ubuntu"]
    release: Release = Field(description="Its code name: 'bookworm', 'noble'.")
    architecture: Literal["amd64", "arm64"] = "amd64"
    mirror: Mirror | None = Field(
        None,
        description="Where its packages are; its own mirror when left out.",
    )
    security_mirror: Mirror | None = Field(None, description="Where Debian's security updates are; deb.debian.org.")


class DriverRules(Strict):
    """NVIDIA's driver in an image."""

    branch: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{2}$")] = Field(description="As in '580'.")
    source: Literal["distribution", "nvidia"] = Field(
        "distribution", description="Whose packages: the distribution's, or those of developer.download.nvidia.com."
    )
    kernel_module: Literal["open", "proprietary"] | None = Field(
        None, description="The one that drives the GPUs of the image's pools, when left out."
    )


class RunnerArchive(Strict):
    """actions/runner in an image."""

    version: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}(\.[0-9]{1,6}){2}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="Of the archive; GitHub's release names it."
    )
    archive: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="A file, relative to this one, or an address; that of GitHub's release when left out."
    )


class ImageBuild(Strict):
    """How an image is made."""

    base: ImageBase
    pools: list[str] = Field(default_factory=list, description="The GPUs that it is for; all of the site when empty.")
    driver: DriverRules | None = Field(None, description="NVIDIA's driver, built for the image's kernel, and held.")
    cuda: Annotated[str, StringConstraints(pattern=r"^[0-9]{2}-[0-9]$")] | None = Field(
        None, description="CUDA's toolkit, as in '12-8'; it is NVIDIA's own package, and takes the driver from there."
    )
    container_toolkit: bool = Field(False, description="With Docker, and NVIDIA's toolkit for containers with GPUs.")
    runner: RunnerArchive | None = Field(None, description="For servers of GitHub jobs.")
    size: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = Field(
        None,
        description="GiB of its root file system as it is made; the server's grows to its flavor's disk. Left out: "
        "what is in it, and two thirds more.",
    )
    agent: bool = Field(
        False, description="With gpuyard-agent, which tells how the server's GPUs are when it is asked."
    )
    packages: list[Package] = Field(default_factory=list, description="Further packages of the distribution.")
    elements: list[Element] = Field(
        default_factory=list,
        description="Further elements: diskimage-builder's, or of the folder 'elements' beside this file.",
    )
    visibility: Literal["private", "shared", "community", "public"] = Field(
        "private",
        description="Who sees it in Glance: the project that uploads it, the 'members' too, everybody who asks for it, "
        "or everybody.",
    )
    members: list[str] = Field(default_factory=list, description="Projects that see it, with 'visibility: shared'.")
    keep: Annotated[int, Field(ge=0, le=100, strict=True)] = Field(
        2, description="Builds that 'gpuyard image prune' leaves besides the promoted one and those in use."
    )
