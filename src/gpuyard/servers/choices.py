"""The choices in the form that starts a server: the order of the images, and the reasons why one does not fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.openstack.personal import PersonalFlavor, PersonalImage, PersonalNetwork
from gpuyard.site.gpu_generations import Generation

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
"""Names of servers that are host names, too."""
DRIVER_FITS, NO_DRIVER, DRIVER_WRONG, TOO_LARGE = range(4)
"""Groups of images, in the order in which they are offered."""


@dataclass(frozen=True)
class ImageChoice:
    """An image, as the form offers it."""

    id: str
    name: str
    note: str
    """Its driver, or the reason why it does not fit."""
    rank: int
    """DRIVER_FITS, and so on."""

    @property
    def too_large(self) -> bool:
        """Whether the flavor has not the disk or the RAM for it, so that it cannot be chosen."""
        return self.rank == TOO_LARGE


@dataclass(frozen=True)
class LaunchChoices:
    """All that a person can choose for a server of one flavor."""

    flavor: PersonalFlavor
    images: Sequence[ImageChoice]
    networks: Sequence[PersonalNetwork]
    keys: Sequence[str]

    @property
    def hint(self) -> str:
        """A reason for which Nova may refuse the server, which the form cannot know; empty when there is none."""
        if self.flavor.disk:
            return ""
        return (
            f"Flavor {self.flavor.name} has no disk of its own: Nova starts such servers from a volume only, as "
            "'openstack server create --boot-from-volume' does, unless the cloud's operator has changed that."
        )

    @property
    def problem(self) -> str:
        """Why no server can be started; empty when one can."""
        if not self.images:
            return "The project sees no image; upload one with 'openstack image create'."
        if self.flavor.disk == 0:
            return ""
        if all(image.too_large for image in self.images):
            return f"No image fits flavor {self.flavor.name}: all need a larger disk or more RAM."
        return ""


def order_images(
    images: Iterable[PersonalImage], flavor: PersonalFlavor, gpu: str, generation: Generation | None
) -> list[ImageChoice]:
    """Return the images for a flavor, those with a driver for its GPU first, and by name within each group.

    `gpu`: name of the model; empty for a flavor without GPUs. `generation`: None where it is unknown.
    """
    return sorted(
        (_choice(image, flavor, gpu, generation) for image in images),
        key=lambda choice: (choice.rank, choice.name, choice.id),
    )


def _choice(image: PersonalImage, flavor: PersonalFlavor, gpu: str, generation: Generation | None) -> ImageChoice:
    if image.disk > flavor.disk > 0 or image.ram > flavor.ram:
        needs = f"needs {image.disk} GiB of disk" if image.disk > flavor.disk > 0 else f"needs {image.ram} MiB of RAM"
        return ImageChoice(image.id, image.name, needs, TOO_LARGE)
    if not gpu:
        return ImageChoice(image.id, image.name, "", DRIVER_FITS)
    if not image.driver:
        return ImageChoice(image.id, image.name, "no known GPU driver", NO_DRIVER)
    if generation is not None and not generation.driven_by(int(image.driver)):
        return ImageChoice(image.id, image.name, f"driver {image.driver} does not drive {gpu}", DRIVER_WRONG)
    return ImageChoice(image.id, image.name, f"driver {image.driver}", DRIVER_FITS)


def suggested_name(user: str, pool: str) -> str:
    """Return a name for a server of a user: a host name that says whose it is and with which GPU.

    >>> suggested_name("Ada Lovelace@physics", "v100")
    'ada-lovelace-v100'
    """
    person = re.sub(r"[^a-z0-9]+", "-", user.partition("@")[0].lower()).strip("-")
    return "-".join(part for part in (person[:40].strip("-") or "server", pool) if part)
