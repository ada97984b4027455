"""How Keystone is asked who somebody is; tests/contract/people.py has what it answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from gpuyard.cloud import api, objects, people
from gpuyard.cloud.errors import CloudError
from gpuyard.cloud.people import KeystonePeople, shown, shown_user

# The SDK warns of what it was not asked for, whatever the cloud.
pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
HOME, EVIL = {"id": "default", "name": "Default"}, {"id": "0f" * 16, "name": "evil"}


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v3"


def test_home_is_where_the_projects_of_a_site_are() -> None:
    assert people.DOMAIN == objects.DOMAIN


def test_names_of_another_domain_are_not_those_of_a_site_file() -> None:
    assert (shown("physics", HOME), shown("physics", EVIL)) == ("physics", "physics@evil")
    assert (shown_user("ada", HOME), shown_user("ada", EVIL)) == ("ada", "ada@evil")


@pytest.mark.parametrize("name", ["gpuyard", "GPUyard", " gpuyard"])
def test_nobody_is_called_as_gpuyard_itself_in_the_audit_log(name: str) -> None:
    assert shown_user(name, HOME) == f"{name}@Default"
    assert shown_user(name, EVIL) == f"{name}@evil"
    assert shown("gpuyard", HOME) == "gpuyard"  # a project is no actor


@given(st.text(), st.text())
def test_what_another_domain_shows_names_its_domain(name: str, domain: str) -> None:
    for spell in (shown, shown_user):
        assert spell(name, {"id": "other", "name": domain}) == f"{name}@{domain}"


def test_a_keystone_that_says_nothing_keeps_nobody_for_long(black_hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "SOON", 0.5)
    identity = Adapter(Session(Token(black_hole, "t")), "identity", endpoint_override=black_hole)
    config = SimpleNamespace(name="test", region_name="")
    services = SimpleNamespace(compute=None, placement=None, image=None, identity=identity, config=config)
    found = KeystonePeople(api.CloudApi(services))  # type: ignore[arg-type]
    begin = time.monotonic()
    with pytest.raises(CloudError):
        found.token("gAAAAAB")
    with pytest.raises(CloudError):
        found.log_in("ada", "secret", "Default")
    assert time.monotonic() - begin < 5


def test_a_token_of_our_own_is_not_waited_for_without_end(
    black_hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "TIMEOUT", 0.5)
    auth = f"{{auth_url: '{black_hole}', username: u, password: p, project_name: p}}"
    domains = "user_domain_id: default, project_domain_id: default"
    path = tmp_path / "clouds.yaml"
    path.write_text(f"clouds: {{test: {{auth: {auth[:-1]}, {domains}}}}}}}")
    thread = ThreadPoolExecutor(1)
    try:
        with pytest.raises(CloudError, match="timed out"):
            thread.submit(api.connect, "test", path).result(10)
    finally:
        thread.shutdown(wait=False)
