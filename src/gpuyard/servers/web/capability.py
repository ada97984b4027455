"""The parts of the portal with which people start their servers and get into them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI

from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.openstack.personal import PersonalClouds
from gpuyard.servers.web import launch_pages, server_pages
from gpuyard.servers.web.personal_access import PersonalAccess
from gpuyard.site.objects import FlavorObject
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


class ServersCapability(Capability):
    """The pages, on sites whose sessions keep tokens (`start` of the site file's ``booking``)."""

    def __init__(
        self,
        context: InventoryContext,
        flavors: Sequence[FlavorObject],
        clouds: PersonalClouds,
        authenticator: Authenticator,
    ) -> None:
        self._context, self._flavors = context, flavors
        self._access = PersonalAccess(clouds, authenticator)

    def install(self, app: FastAPI) -> None:
        launch_pages.install(app, self._context, self._flavors, self._access)
        server_pages.install(app, self._context, self._access)
