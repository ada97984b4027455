"""The portal's login and API with a real Keystone."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpuyard.dashboard.sources import Sources
from gpuyard.model.moments import iso_text
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.people import KeystonePeople, People
from gpuyard.openstack.personal import PersonalClouds
from gpuyard.server.app import create_app
from gpuyard.web.portal_context import utc_now
from gpuyard.web.store import PortalStore
from gpuyard_lab.http import call
from tests.contract.people import RULES, Bench
from tests.integration.conftest import RunningLab
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import open_ledger
from tests.support.portals import ROOMY, Browser
from tests.support.served import RealClock

pytestmark = pytest.mark.lab

TOMORROW = utc_now() + timedelta(days=1)
WISH = {"pool": "t4", "start": iso_text(TOMORROW), "end": iso_text(TOMORROW + timedelta(hours=2))}


@dataclass
class Visitors:
    """Makes users, groups and projects in the lab's Keystone, and deletes them."""

    operator: CloudApi
    made: list[str] = field(default_factory=list)
    """Paths to delete."""

    def make(self, kind: str, name: str, **values: Any) -> str:
        body = {kind: {"name": name, **values}}
        id = str(self.operator.request("POST", "identity", f"/{kind}s", body)[kind]["id"])
        self.made.append(f"/{kind}s/{id}")
        return id

    def role(self, name: str) -> str:
        return str(self.operator.get("identity", "/roles", name=name)["roles"][0]["id"])

    def grant(self, project: str, actor: str, role: str) -> None:
        """`actor`: ``users/ID`` or ``groups/ID``."""
        self.operator.request("PUT", "identity", f"/projects/{project}/{actor}/roles/{self.role(role)}")

    def revoke(self, project: str, actor: str, role: str) -> None:
        self.operator.request("DELETE", "identity", f"/projects/{project}/{actor}/roles/{self.role(role)}")

    def update(self, kind: str, id: str, **values: Any) -> None:
        self.operator.request("PATCH", "identity", f"/{kind}s/{id}", {kind: values})

    def clear(self) -> None:
        for path in reversed(self.made):
            with suppress(CloudError):
                self.operator.request("DELETE", "identity", path)


@dataclass
class KeystoneAs:
    """Somebody who asks Keystone with a token of their own."""

    lab: RunningLab
    token: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = call("POST", f"{self.lab.lab.endpoint('keystone')}{path}", body, token=self.token)
        assert isinstance(answer.body, dict)
        return answer.body


@pytest.fixture
def visitors(operator: CloudApi) -> Iterator[Visitors]:
    visitors = Visitors(operator)
    yield visitors
    visitors.clear()


@pytest.fixture
def bench(lab: RunningLab, operator: CloudApi, visitors: Visitors) -> Bench:
    """A new user in a new project."""
    name, password = f"ada-{secrets.token_hex(4)}", secrets.token_urlsafe(16)
    project = visitors.make("project", f"physics-{name}", domain_id="default")
    user = visitors.make(
        "user", name, domain_id="default", password=password, email="ada@example.org", default_project_id=project
    )
    visitors.grant(project, f"users/{user}", "member")

    def new_token() -> str:
        who = {"id": user, "password": password}
        auth = {
            "identity": {"methods": ["password"], "password": {"user": who}},
            "scope": {"project": {"id": project}},
        }
        token = call("POST", f"{lab.lab.endpoint('keystone')}/auth/tokens", {"auth": auth}).token
        assert token
        return token

    return Bench(
        KeystonePeople(operator),
        user,
        name,
        password,
        "ada@example.org",
        project,
        f"physics-{name}",
        new_token,
        lambda: visitors.revoke(project, f"users/{user}", "member"),
        lambda: visitors.update("user", user, enabled=False),
        lambda: visitors.update("user", user, password=secrets.token_urlsafe(16)),
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_keystone_keeps_the_rules(bench: Bench, rule: Callable[[Bench], None]) -> None:
    rule(bench)


def test_roles_of_groups_and_inherited_ones_count(bench: Bench, visitors: Visitors) -> None:
    group = visitors.make("group", f"group-{bench.user}", domain_id="default")
    visitors.operator.request("PUT", "identity", f"/groups/{group}/users/{bench.user_id}")
    by_group = visitors.make("project", f"a-{bench.user}", domain_id="default")
    visitors.grant(by_group, f"groups/{group}", "admin")
    parent = visitors.make("project", f"b-{bench.user}", domain_id="default")
    child = visitors.make("project", f"c-{bench.user}", domain_id="default", parent_id=parent)
    inherited = f"/OS-INHERIT/projects/{parent}/users/{bench.user_id}/roles/{visitors.role('reader')}"
    visitors.operator.request("PUT", "identity", f"{inherited}/inherited_to_projects")
    closed = visitors.make("project", f"d-{bench.user}", domain_id="default")
    visitors.grant(closed, f"users/{bench.user_id}", "member")
    visitors.update("project", closed, enabled=False)
    account = bench.people.account(bench.user_id)
    assert account is not None
    roles = {membership.project_id: membership.roles for membership in account.memberships}
    assert roles == {
        bench.project_id: {"member", "reader"},
        by_group: {"admin", "manager", "member", "reader"},
        child: {"reader"},
    }


def test_a_user_of_a_disabled_domain_is_out(bench: Bench, visitors: Visitors) -> None:
    domain = visitors.make("domain", f"dept-{bench.user}")
    user = visitors.make("user", bench.user, domain_id=domain, password="secret-of-dept")  # noqa: S106
    visitors.grant(bench.project_id, f"users/{user}", "member")
    assert bench.people.log_in(bench.user, "secret-of-dept", f"dept-{bench.user}").user_id == user
    assert bench.people.account(user) is not None
    visitors.update("domain", domain, enabled=False)
    assert bench.people.account(user) is None


def test_projects_and_users_of_another_domain_are_not_taken_for_those_of_a_site_file(
    bench: Bench, visitors: Visitors
) -> None:
    """Whoever runs a domain may call what is in it as he likes."""
    evil = visitors.make("domain", f"evil-{bench.user}")
    theirs = visitors.make("project", bench.project, domain_id=evil)
    user = visitors.make("user", bench.user, domain_id=evil, password="secret-of-evil")  # noqa: S106
    name, project = f"{bench.user}@evil-{bench.user}", f"{bench.project}@evil-{bench.user}"
    visitors.grant(theirs, f"users/{user}", "member")
    visitors.grant(bench.project_id, f"users/{user}", "reader")
    account = bench.people.account(user)
    assert account is not None
    assert account.user == name
    assert {membership.project for membership in account.memberships} == {bench.project, project}
    who = {"name": bench.user, "password": "secret-of-evil", "domain": {"id": evil}}
    scope = {"project": {"id": theirs}}
    auth = {"identity": {"methods": ["password"], "password": {"user": who}}, "scope": scope}
    answer = call("POST", f"{str(visitors.operator.auth_url).removesuffix('/v3')}/v3/auth/tokens", {"auth": auth})
    facts = bench.people.token(str(answer.token))
    assert facts is not None
    assert facts.membership is not None
    assert (facts.user, facts.membership.project) == (name, project)
    assert [(project.id, project.name) for project in bench.people.projects(bench.project)] == [
        (bench.project_id, bench.project)
    ]
    for name_or_id in (theirs, project):
        assert [(project.id, project.name) for project in bench.people.projects(name_or_id)] == [(theirs, project)]
    assert list(bench.people.users(bench.user)) == [bench.user_id]
    assert list(bench.people.users(name)) == list(bench.people.users(user)) == [user]
    assert not bench.people.projects(f"{bench.project}@Default")


def test_a_user_who_is_called_as_gpuyard_is_not_taken_for_it(bench: Bench, visitors: Visitors) -> None:
    user = visitors.make("user", "gpuyard", domain_id="default", password="secret-of-it")  # noqa: S106
    account = bench.people.account(user)
    assert account is not None
    assert account.user == "gpuyard@Default"
    assert list(bench.people.users("gpuyard@Default")) == [user]
    assert not bench.people.users("gpuyard")


def test_a_wrong_password_costs_the_service_nothing(bench: Bench, operator: CloudApi) -> None:
    """Its own token is not thrown away: each wrong password would have it log in again."""
    session = operator._connection.session
    before = session.get_token()
    rule = next(rule for rule in RULES if rule.__name__ == "nothing_else_does")
    rule(bench)
    assert session.get_token() == before


def test_no_password_and_no_token_gets_into_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    token = bench.new_token()
    with caplog.at_level("DEBUG"):
        bench.people.log_in(bench.user, bench.password, bench.domain)
        bench.people.token(token)
        bench.people.account(bench.user_id)
    assert "/users/" in caplog.text  # the requests are in it
    assert bench.password not in caplog.text
    assert token not in caplog.text


def app_for(people: People, folder: Path, clouds: PersonalClouds | None = None, **settings: Any) -> FastAPI:
    """Its time is the machine's, as Keystone's is: tokens expire. `clouds`: where servers are started from pages."""
    ledger = open_ledger(folder, clock=RealClock())
    return create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="lab",
            gpus=GPUS,
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=people,
            settings=replace(ROOMY, keeps_tokens=clouds is not None, **settings),
            clouds=clouds,
        ),
        ["testserver"],
    )


@pytest.fixture
def portal(bench: Bench, tmp_path: Path) -> Callable[[], TestClient]:
    """New clients of one portal."""
    app = app_for(bench.people, tmp_path)
    return lambda: TestClient(app, follow_redirects=False)


def test_somebody_logs_in_books_and_logs_out(bench: Bench, portal: Callable[[], TestClient]) -> None:
    browser = Browser(portal())
    assert browser.client.get("/calendar").headers["location"] == "./login?next=/calendar"
    wrong = browser.client.post("/login", data={"user": bench.user, "password": "wrong"})
    assert wrong.status_code == 403
    assert "set-cookie" not in wrong.headers
    browser.log_in(bench.user, bench.password)
    me = browser.client.get("/v1/me").json()
    assert (me["user"]["name"], me["project"]["name"]) == (bench.user, bench.project)
    assert me["user"]["email"] == "ada@example.org"
    made = browser.client.post("/v1/bookings", json=WISH)
    assert made.status_code == 201
    assert made.json()["user"] == bench.user
    assert browser.client.get(made.headers["location"]).json() == made.json()
    assert browser.client.post("/logout").status_code == 303
    assert browser.client.get("/v1/me").status_code == 401


def token_for(lab: RunningLab, identity: dict[str, Any], **scope: Any) -> str:
    token = call("POST", f"{lab.lab.endpoint('keystone')}/auth/tokens", {"auth": {"identity": identity, **scope}}).token
    assert token
    return token


def by_password(bench: Bench) -> dict[str, Any]:
    return {"methods": ["password"], "password": {"user": {"id": bench.user_id, "password": bench.password}}}


@pytest.fixture
def sso(bench: Bench, tmp_path: Path, lab: RunningLab) -> Callable[[str], TestClient]:
    """Posts a token as Keystone's page does; that page itself needs a web server with an identity provider."""
    keystone = lab.lab.endpoint("keystone")
    app = app_for(bench.people, tmp_path, websso="mapped", websso_url=keystone)

    def post(token: str) -> TestClient:
        client = TestClient(app, follow_redirects=False)
        client.post("/login/sso", data={"token": token}, headers={"Origin": keystone.removesuffix("/v3")})
        return client

    return post


@pytest.fixture
def federated(bench: Bench, visitors: Visitors, lab: RunningLab) -> tuple[str, str]:
    """Name and token of a user of an identity provider, who is a member of the project. Keystone takes what a mapping
    names from the environment of the request, where headers are, too."""
    name, operator = f"fay-{bench.user_id}", visitors.operator
    rules = [{"local": [{"user": {"name": "{0}"}}], "remote": [{"type": "HTTP_X_LAB_USER"}]}]
    for path, body in (
        (f"/OS-FEDERATION/identity_providers/{name}", {"identity_provider": {"enabled": True}}),
        (f"/OS-FEDERATION/mappings/{name}", {"mapping": {"rules": rules}}),
        (f"/OS-FEDERATION/identity_providers/{name}/protocols/mapped", {"protocol": {"mapping_id": name}}),
    ):
        operator.request("PUT", "identity", path, body)
        visitors.made.append(path)
    path = f"{lab.lab.endpoint('keystone')}/OS-FEDERATION/identity_providers/{name}/protocols/mapped/auth"
    answer = call("GET", path, headers={"X-Lab-User": name})
    assert answer.token
    visitors.grant(bench.project_id, f"users/{answer.body['token']['user']['id']}", "member")
    return name, answer.token


def test_single_sign_on_ends_with_a_federated_unscoped_token(
    federated: tuple[str, str], sso: Callable[[str], TestClient]
) -> None:
    name, token = federated
    client = sso("")
    assert client.get("/v1/me", headers={"X-Auth-Token": token}).json()["code"] == "no_project"
    client = sso(token)
    assert client.get("/v1/me").json()["user"]["name"].startswith(name)
    assert client.get("/v1/me", headers={"X-Auth-Token": token}).json()["code"] == "unauthorized"  # it is spent


def test_no_other_token_becomes_a_session(
    bench: Bench, lab: RunningLab, visitors: Visitors, federated: tuple[str, str], sso: Callable[[str], TestClient]
) -> None:
    """An application credential of a reader, a trust, and a token for a project may do less than their user."""
    mine = KeystoneAs(lab, bench.new_token())
    reader = {"name": "reader", "roles": [{"name": "reader"}]}
    made = mine.post(f"/users/{bench.user_id}/application_credentials", {"application_credential": reader})
    credential = {key: made["application_credential"][key] for key in ("id", "secret")}
    trustee = visitors.make("user", f"tim-{bench.user}", domain_id="default", password="tim-tim-tim")  # noqa: S106
    trust = {
        "trustor_user_id": bench.user_id, "trustee_user_id": trustee, "project_id": bench.project_id,
        "impersonation": True, "roles": [{"name": "member"}],
    }  # fmt: skip
    trusted = mine.post("/OS-TRUST/trusts", {"trust": trust})["trust"]["id"]
    of_trustee = {"methods": ["password"], "password": {"user": {"id": trustee, "password": "tim-tim-tim"}}}
    project = {"scope": {"project": {"id": bench.project_id}}}
    federated_token = {"methods": ["token"], "token": {"id": federated[1]}}
    tokens = {
        "password": token_for(lab, by_password(bench), scope="unscoped"),
        "project": token_for(lab, by_password(bench), **project),
        "application credential": token_for(
            lab, {"methods": ["application_credential"], "application_credential": credential}
        ),
        "trust": token_for(lab, of_trustee, scope={"OS-TRUST:trust": {"id": trusted}}),
        "federated, for a project": token_for(lab, federated_token, **project),
    }
    for what, token in tokens.items():
        assert bench.people.token(token) is not None, what
        assert sso(token).get("/v1/me").status_code == 401, what


def test_a_changed_password_ends_sessions(
    bench: Bench, portal: Callable[[], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.web.directory.FRESH", 0.0)
    browser = Browser(portal())
    browser.log_in(bench.user, bench.password)
    assert browser.client.get("/v1/me").status_code == 200
    bench.change_password()
    assert browser.client.get("/v1/me").status_code == 401


def test_a_program_books_with_a_token(bench: Bench, portal: Callable[[], TestClient], visitors: Visitors) -> None:
    program = portal()
    program.headers["X-Auth-Token"] = bench.new_token()
    assert program.post("/v1/bookings", json=WISH).status_code == 201
    stranger = portal()
    stranger.headers["X-Auth-Token"] = "no-token"
    assert stranger.get("/v1/me").status_code == 401
    reader = visitors.make("user", f"eve-{bench.user}", domain_id="default", password="eve-eve-eve")  # noqa: S106
    visitors.grant(bench.project_id, f"users/{reader}", "reader")
    eve = Browser(portal())
    eve.log_in(f"eve-{bench.user}", "eve-eve-eve")
    assert eve.client.get("/v1/bookings").json()["bookings"]
    assert eve.client.post("/v1/bookings", json=WISH).status_code == 403
    assert eve.client.get("/v1/bookings", params={"user": bench.user}).json()["bookings"]
    assert not eve.client.get("/v1/bookings", params={"user": "nobody"}).json()["bookings"]
