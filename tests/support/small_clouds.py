"""A real CloudApi without OpenStack behind it: all services at one address, and a token that is ready."""

from __future__ import annotations

from types import SimpleNamespace

from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.calls import CloudCalls


def cloud_at(url: str, counted: CloudCalls | None = None) -> CloudApi:
    session = Session(Token(url, "token"))
    config = SimpleNamespace(name="test", region_name="", auth={"auth_url": url})
    services = {
        service: Adapter(session, service, endpoint_override=url)
        for service in ("compute", "placement", "identity", "image", "network")
    }
    return CloudApi(SimpleNamespace(config=config, **services), counted)  # type: ignore[arg-type]
