"""The pages of the visitor's servers: all of them, and one with its state, the way in, and what can be done with it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.inventory.web.presenter import gpu_href
from gpuyard.model.text import printable_lines
from gpuyard.openstack.personal import PersonalCloud, PersonalServer, ServerAction
from gpuyard.servers.presenter import ServerPage, colour_of, server_page
from gpuyard.servers.web.personal_access import PersonalAccess, refuse_reader
from gpuyard.web.assets import render
from gpuyard.web.forms import Form
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor, require_visitor
from gpuyard.web.problems import Refusal

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ADD_FLOATING_IP, ADMIT_SSH = "floating-ip", "admit-ssh"
"""Values of the field ``action`` besides those of ServerAction."""
ServerId = Annotated[str, Query(max_length=64)]


def install(app: FastAPI, context: InventoryContext, access: PersonalAccess) -> None:
    @app.get("/server", include_in_schema=False)
    def show_server(request: Request, id: ServerId) -> HTMLResponse:
        visitor = require_page_visitor(request)
        with access.opened(request, visitor) as cloud:
            server = _require_server(cloud, id)
            page, log = _read(cloud, server), cloud.console_log(server.id)
        html = render(
            "server_page.html",
            site=context.site_name,
            nav=navigation_of(visitor, request),
            page=page,
            gpus=_gpus(context, server.id),
            console=printable_lines(log),
        )
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/servers", include_in_schema=False)
    def my_servers(request: Request) -> HTMLResponse:
        visitor = require_page_visitor(request)
        with access.opened(request, visitor) as cloud:
            servers = cloud.servers(visitor.person.user_id)
        html = render(
            "servers.html",
            site=context.site_name,
            nav=navigation_of(visitor, request),
            servers=[(server, colour_of(server), _gpus(context, server.id)) for server in servers],
        )
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/console", include_in_schema=False)
    def open_console(request: Request, id: ServerId) -> Response:
        """Lead to the server's console, at an address that Nova makes for this once."""
        visitor = require_page_visitor(request)
        refuse_reader(visitor)
        with access.opened(request, visitor) as cloud:
            address = cloud.console(_require_server(cloud, id).id)
        if not address.startswith(("https://", "http://")):
            text = "This cloud's console is not for browsers; use 'openstack console url show'."
            raise Refusal(502, "no_console", text)
        return RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})

    @app.post("/server", include_in_schema=False)
    def act_on_server(request: Request, form: Form) -> Response:
        visitor = require_visitor(request)
        refuse_reader(visitor)
        with access.opened(request, visitor) as cloud:
            server = _require_server(cloud, form.get("id", ""))
            _act(cloud, server, form.get("action", ""))
        deleted = form.get("action") == ServerAction.DELETE
        return RedirectResponse("servers" if deleted else f"server?id={server.id}", 303)


def _require_server(cloud: PersonalCloud, id: str) -> PersonalServer:
    """Return a server of the project. Raises Refusal 404, CloudError, TokenExpiredError."""
    server = cloud.server(id) if ID.fullmatch(id) else None
    if server is None:
        raise Refusal(404, "not_found", "Your project has no such server; it may be deleted, or of another project.")
    return server


def _read(cloud: PersonalCloud, server: PersonalServer) -> ServerPage:
    user = cloud.image_user(server.image)
    if not server.addresses:
        return server_page(server, user, external=False, admits_ssh=True)
    external = any(network.external for network in cloud.networks())
    return server_page(server, user, external, cloud.admits_ssh(server.id))


def _act(cloud: PersonalCloud, server: PersonalServer, action: str) -> None:
    """Have an action begin. Raises Refusal for one that there is not, CloudError, TokenExpiredError."""
    if action == ADD_FLOATING_IP:
        cloud.add_floating_ip(server.id)
    elif action == ADMIT_SSH:
        cloud.admit_ssh(server.id)
    elif action in set(ServerAction):
        cloud.act(server.id, ServerAction(action))
    else:
        raise Refusal(422, "no_such_action", "There is no such action; use the buttons of the server's page.")


def _gpus(context: InventoryContext, server_id: str) -> list[tuple[str, str]]:
    """Return (name, address of its page) of the GPUs that a server has, as far as they were seen."""
    view = context.inventory.latest()
    gpus = (
        [status.gpu for status in view.statuses if status.claim and status.claim.server_id == server_id] if view else []
    )
    return [(f"{gpu.host}/{gpu.address}", gpu_href(gpu.host, gpu.address)) for gpu in gpus]
