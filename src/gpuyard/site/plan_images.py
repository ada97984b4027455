"""Plans properties of images that exist. Only what the site file states is compared, and images are never made."""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.objects import ImageObject, SeenImage
from gpuyard.site.step_values import PROPERTY, with_prefix

KIND = "image"


def plan_images(wanted: Sequence[ImageObject], seen: Sequence[SeenImage]) -> Plan:
    """Steps for the images of the site file; one that Glance has not, or has twice, refuses the plan."""
    steps: list[Step] = []
    refusals: list[str] = []
    for image in wanted:
        found = [item for item in seen if item.image.name == image.name]
        if not found:
            refusals.append(f"image {image.name} does not exist in Glance; create it, or take it out of the site file")
        elif len(found) > 1:
            ids = ", ".join(item.id for item in found)
            refusals.append(f"image {image.name} exists {len(found)} times ({ids}); rename all but one")
        else:
            now = found[0].image.properties
            before = {key: now[key] for key in image.properties if key in now}
            if before != image.properties:
                old, new = with_prefix(PROPERTY, before), with_prefix(PROPERTY, image.properties)
                steps.append(Step(Verb.UPDATE, KIND, image.name, "differs from the site file", old, new))
    return Plan(tuple(steps), tuple(refusals))
