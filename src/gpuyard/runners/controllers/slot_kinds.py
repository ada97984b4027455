"""Tells whether servers of runners can be put into the kind of slot that their lease has.

That takes a trait of lone GPUs which nova-compute reports once it runs with the site's options. A site that was made
with an older release of gpuyard goes on without, until it is deployed again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.placed_gpus import PlacedGpus
from gpuyard.site.compile import CompiledSite
from gpuyard.site.encoding import LONE_TRAIT

LOG = logging.getLogger(__name__)
AGAIN_S = 60.0
"""Placement is asked no more often as long as it does not have the traits."""


@dataclass
class SlotKinds:
    """The kinds of slot of one site. Safe to use from several threads."""

    compiled: CompiledSite
    placed: PlacedGpus
    steady: Callable[[], float] = time.monotonic
    _known: dict[str, bool] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)

    def known(self, pool: str) -> bool:
        """Return whether all lone GPUs of a pool that Placement has are marked as such, as groups always are; False for
        one that has slots of one kind."""
        mine = [gpu for gpu in self.compiled.gpus if gpu.pool == pool and not gpu.blocked]
        lone = [gpu.provider_name for gpu in mine if gpu.marked_lone]
        if not lone:
            return len({gpu.set_letter for gpu in mine} - {None}) > 1
        if self._known.get(pool):
            return True
        now = self.steady()
        if now - self._asked.get(pool, now - AGAIN_S) < AGAIN_S:
            return False
        self._asked[pool] = now
        try:
            has_trait = self._known[pool] = self.placed.have_trait(LONE_TRAIT, lone)
        except CloudError as error:
            LOG.info("pool %s: it cannot be told which GPUs are alone in their groups: %s", pool, error)
            return False
        if not has_trait:
            LOG.warning(
                "pool %s: nova-compute does not report yet which GPUs are alone in their IOMMU groups, so runners with "
                "one GPU may take the leader of a group; deploy the site's Nova options",
                pool,
            )
        return has_trait


def open_slot_kinds(compiled: CompiledSite, api: CloudApi) -> SlotKinds:
    classes = {gpu.provider_name: gpu.resource_class for gpu in compiled.gpus if gpu.marked_lone}
    return SlotKinds(compiled, PlacedGpus(api, classes))
