"""Neutron's mechanism driver of the lab: binds every port on every host, at once, without an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api


class AnyHostMechanismDriver(api.MechanismDriver):  # type: ignore[misc]
    """Binds every port. Neutron loads it through the entry point ``gpuyard_lab``."""

    def initialize(self) -> None:
        pass

    @property
    def connectivity(self) -> str:
        return str(portbindings.CONNECTIVITY_L2)

    def bind_port(self, context: Any) -> None:
        details = {portbindings.CAP_PORT_FILTER: True, portbindings.OVS_HYBRID_PLUG: False}
        for segment in context.segments_to_bind:
            # ACTIVE now: otherwise Nova would wait for an agent's word that never comes.
            active = constants.PORT_STATUS_ACTIVE
            context.set_binding(segment[api.ID], portbindings.VIF_TYPE_OVS, details, status=active)
            return

    def filter_hosts_with_segment_access(
        self, context: Any, segments: Any, candidate_hosts: Iterable[str], agent_getter: Callable[..., Any]
    ) -> set[str]:
        return set(candidate_hosts)
