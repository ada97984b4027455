"""Names built images: the same definition, elements and day make the same name. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import date

from gpuyard.images.element_files import ElementFiles
from gpuyard.site.image_rules import ImageBuild

BUILT = re.compile(r"(?P<image>.{1,200})-(?P<day>[0-9]{8})-(?P<digest>[0-9a-f]{10})", re.DOTALL)
DIGITS = 10
AFTERWARDS = {"visibility", "members", "keep", "pools"}
"""Keys that say what becomes of a build, and do not change it; its GPUs count by the kernel module that they take."""


@dataclass(frozen=True)
class BuiltName:
    """The name of one build of an image."""

    image: str
    """The image, as the site file has it."""
    day: date
    """The day of the packages, in UTC."""
    digest: str
    """Digest of the definition and of the elements."""

    def __str__(self) -> str:
        return f"{self.image}-{self.day:%Y%m%d}-{self.digest}"


def definition_digest(build: ImageBuild, elements: ElementFiles, module: str = "") -> str:
    """Return the digest of everything that a build is made of, but for the distribution's packages on its day."""
    definition = json.dumps(build.model_dump(mode="json", exclude_defaults=True, exclude=AFTERWARDS), sort_keys=True)
    whole = hashlib.sha256(f"{definition}{module}".encode())
    for path, (mode, content) in sorted(elements.items()):
        whole.update(f"\0{path}\0{mode:o}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:DIGITS]


def parse_built_name(text: str) -> BuiltName | None:
    """Parse the name of a build; None for any other text."""
    match = BUILT.fullmatch(text)
    if match is None:
        return None
    try:
        day = date.fromisoformat(match["day"])
    except ValueError:
        return None
    return BuiltName(match["image"], day, match["digest"])
