"""How Keystone is asked who somebody is; tests/contract/people.py has what it answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token

from gpuyard.bookings.controllers.enforce import Enforcer
from gpuyard.openstack import api, people
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import KeystonePeople, domain_of, shown, shown_user
from gpuyard.openstack.reader import Names, Reader

# The SDK warns of what it was not asked for, whatever the cloud.
pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
HOME, EVIL = {"id": "default", "name": "Default"}, {"id": "0f" * 16, "name": "evil"}


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v3"


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
    assert shown_user(name, {"id": "other", "name": domain}) == f"{name}@{domain}"


NAMES = st.text("a@", min_size=1, max_size=5) | st.sampled_from(
    ["x@default", "x@default@default", "default", "Default"]
)
DOMAINS = {
    "default": "Default", "1": "evil", "2": "a", "3": "a@a", "4": "default@default", "5": "default", "6": "a@",
}  # fmt: skip


@given(NAMES, st.sampled_from(sorted(DOMAINS)), NAMES, st.sampled_from(sorted(DOMAINS)))
def test_no_two_projects_have_one_name(name: str, domain: str, other: str, of: str) -> None:
    one, two = (shown(n, {"id": id, "name": DOMAINS[id]}) for n, id in ((name, domain), (other, of)))
    assert (one == two) == ((name, domain) == (other, of))
    assert (domain_of(one) == "") == (domain == "default")


def test_a_name_with_an_at_sign_is_not_that_of_another_domain() -> None:
    assert shown("physics@evil", HOME) == "physics@evil@default" != shown("physics", EVIL)


class TwoDomains:
    """Keystone with a project physics in two domains, and one of the default domain that is called as the other."""

    name = "test"
    projects: ClassVar = {
        "p1": {"id": "p1", "name": "physics", "domain_id": HOME["id"]},
        "p2": {"id": "p2", "name": "physics", "domain_id": EVIL["id"]},
        "p3": {"id": "p3", "name": "physics@evil", "domain_id": HOME["id"]},
    }

    def get(self, service: str, path: str, **query: object) -> dict[str, object]:
        kind, _, id = path[1:].partition("/")
        rows = self.projects if kind == "projects" else {domain["id"]: domain for domain in (HOME, EVIL)}
        if not id:
            matches = [row for row in rows.values() if all(row[key] == value for key, value in query.items())]
            return {kind: matches}
        if id not in rows:
            raise CloudError("no such thing", 404)
        return {kind[:-1]: rows[id]}


def test_each_project_has_one_name_wherever_it_is_read() -> None:
    """Rules and limits go by it."""
    cloud: Any = TwoDomains()
    names = {"p1": "physics", "p2": "physics@evil", "p3": "physics@evil@default"}
    for id, name in names.items():
        for id_or_name in (id, name):
            assert [(project.id, project.name) for project in KeystonePeople(cloud).projects(id_or_name)] == [
                (id, name)
            ]
    known_names = Names()
    with Reader(cloud) as reader:
        known_names.learn(reader, projects=names)
        assert reader.projects() == {"physics": "p1", "physics@evil@default": "p3"}
    assert {id: known_names.of("project", id) for id in names} == names
    assert Enforcer(cloud, "").projects() == {"physics": "p1", "physics@evil@default": "p3"}


class OneToken:
    """Keystone with a user who is an admin of one project, and a token of theirs for it."""

    def __init__(self, domain: dict[str, str], **facts: object) -> None:
        self.project = {"id": "p1", "name": "physics", "domain": domain}
        self.roles = [{"name": "Admin"}, {"name": "member"}]
        user = {"id": "u1", "name": "ada", "domain": HOME}
        self.facts = {"user": user, "expires_at": "2026-11-23T12:00:00Z", "audit_ids": ["a1"], **facts}

    def request(self, method: str, service: str, path: str, **_: object) -> dict[str, object]:
        return {"token": {**self.facts, "project": self.project, "roles": self.roles}}

    def get(self, service: str, path: str, **_: object) -> dict[str, object]:
        scope = {"project": self.project}
        answers: dict[str, dict[str, object]] = {
            "/users/u1": {"user": {"id": "u1", "name": "ada", "domain_id": "default", "enabled": True}},
            "/domains/default": {"domain": {**HOME, "enabled": True}},
            "/users/u1/projects": {"projects": [{**self.project, "enabled": True}]},
            "/role_assignments": {"role_assignments": [{"role": role, "scope": scope} for role in self.roles]},
        }
        return answers[path]


@pytest.mark.parametrize(("domain", "roles"), [(HOME, {"admin", "member"}), (EVIL, {"member"})])
def test_admins_of_other_domains_are_none_here(domain: dict[str, str], roles: set[str]) -> None:
    cloud: Any = OneToken(domain)
    account, token = KeystonePeople(cloud).account("u1"), KeystonePeople(cloud).token("gAAAAAB")
    assert account is not None
    assert token is not None
    assert [membership.roles for membership in account.memberships] == [roles]
    assert token.membership == account.memberships[0]


@pytest.mark.parametrize("of", ["", "application_credential", "OS-TRUST:trust", "OS-OAUTH1", "OS-OAUTH2"])
def test_a_token_that_is_lent_is_known(of: str) -> None:
    cloud: Any = OneToken(HOME, **({of: {"id": "1"}} if of else {}))
    facts = KeystonePeople(cloud).token("gAAAAAB")
    assert facts is not None
    assert facts.lent == bool(of)


def test_a_keystone_that_says_nothing_keeps_nobody_for_long(black_hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "SOON", 0.5)
    identity = Adapter(Session(Token(black_hole, "t")), "identity", endpoint_override=black_hole)
    config = SimpleNamespace(name="test", region_name="")
    others = dict.fromkeys(("compute", "placement", "image", "network"))
    services = SimpleNamespace(identity=identity, config=config, **others)
    keystone = KeystonePeople(api.CloudApi(services))  # type: ignore[arg-type]
    begin = time.monotonic()
    with pytest.raises(CloudError):
        keystone.token("gAAAAAB")
    with pytest.raises(CloudError):
        keystone.log_in("ada", "secret", "Default")
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
