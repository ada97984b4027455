"""Which accounts gpuyard's bootstrap would make, and the file that it keeps their secrets in."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from ruamel.yaml import YAML

from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.config import Elsewhere
from gpuyard.provisioning.access.accounts import (
    LIMITS_USER,
    MEMBER,
    READER,
    USER,
    WHOLE_SYSTEM,
    Accounts,
    HeldRole,
    SeenAccounts,
    granted,
    plan_accounts,
    wanted,
)
from gpuyard.provisioning.access.apply import AccountsReader, Bootstrapper
from gpuyard.provisioning.access.calls import ROOTS
from gpuyard.provisioning.access.clouds_file import read_clouds, write_clouds
from gpuyard.provisioning.cli.bootstrap import policy_changes
from gpuyard.runtime.config_files import write

ACCOUNTS = wanted(dict(ROOTS), ("ci", "ci", "check"))
TRIED = "2.104"
"""Newest microversion of Nova in 2026.2."""
FRESH = SeenAccounts(roles={MEMBER: "1", READER: "2"})


def complete(accounts: Accounts) -> SeenAccounts:
    observed = SeenAccounts(
        projects={place: place for _, _, place in accounts.grants if place},
        users={user: user for user, _, _ in accounts.grants},
        roles={role: role for _, role, _ in accounts.grants},
        credentials={credential.cloud: credential for credential in accounts.credentials},
        ids={credential.cloud: credential.cloud for credential in accounts.credentials},
        limits=True,
    )
    return replace(observed, held=frozenset(granted(accounts, observed)))


def said(seen: SeenAccounts, rotate: bool = False) -> list[str]:
    return [str(step) for step in plan_accounts(ACCOUNTS, seen, rotate).steps]


def test_all_is_made_in_the_order_in_which_it_can_be() -> None:
    kinds = [step.kind for step in plan_accounts(ACCOUNTS, FRESH, False).steps]
    assert list(dict.fromkeys(kinds)) == ["project", "role", "user", "grant", "credential", "login"]
    assert kinds.count("credential") == 3, "a project that is named twice gets one"
    assert "create role member" not in said(FRESH), "it is not ours to make"


def test_nothing_is_done_twice_and_asked_for_only_secrets_change() -> None:
    observed = complete(ACCOUNTS)
    assert said(observed) == []
    assert said(observed, rotate=True) == [
        "replace credential gpuyard", "replace credential gpuyard-in-ci", "replace credential gpuyard-in-check",
        "replace login gpuyard-limits",
    ]  # fmt: skip


def test_a_credential_with_other_rules_is_replaced() -> None:
    observed = complete(ACCOUNTS)
    old = replace(observed.credentials["gpuyard"], rules=frozenset({("compute", "GET", "/**")}))
    assert said(replace(observed, credentials={**observed.credentials, "gpuyard": old})) == [
        "replace credential gpuyard"
    ]


def test_a_credential_that_lets_nobody_in_is_replaced_and_one_that_is_gone_made() -> None:
    observed = complete(ACCOUNTS)
    silent = {cloud: credential for cloud, credential in observed.credentials.items() if cloud != "gpuyard"}
    assert said(replace(observed, credentials=silent)) == ["replace credential gpuyard"]
    gone = replace(observed, credentials=silent, ids={cloud: cloud for cloud in silent})
    assert said(gone) == ["create credential gpuyard"]


def test_no_password_changes_that_somebody_may_log_in_with() -> None:
    """A portal runs with a file that is not the one that was named."""
    elsewhere = replace(complete(ACCOUNTS), ids={}, credentials={}, limits=False)
    credential_refusal, other = plan_accounts(ACCOUNTS, elsewhere, False).refusals
    assert credential_refusal.startswith(f"the user {USER} exists, and this file has no application credential")
    assert other.startswith(f"the user {LIMITS_USER} exists, and this file has no log-in of it")
    for refusal in (credential_refusal, other):
        assert "name the file that has one with --clouds, or" in refusal
        assert "--rotate, which locks out" in refusal
    rotated = plan_accounts(ACCOUNTS, elsewhere, True)
    assert not rotated.refusals
    assert rotated.notes == (f"the password of the user {USER} changes; nobody knows the new one",)
    assert rotated.steps[-1].reason.endswith("who has the old password is locked out")
    assert not plan_accounts(ACCOUNTS, FRESH, False).refusals, "what is made now has no password yet"


def test_a_login_alone_that_the_file_lacks_is_not_made_anew() -> None:
    (refusal,) = plan_accounts(ACCOUNTS, replace(complete(ACCOUNTS), limits=False), False).refusals
    assert LIMITS_USER in refusal


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            HeldRole(("user", USER), "1", ("project", "2"), names=(USER, "admin", "ops")),
            (
                "the user gpuyard has the role admin in project ops, more than the site file calls for; "
                "'openstack role remove --user gpuyard --project 2 1' takes it away"
            ),
        ),
        (
            HeldRole(("group", "3"), "gpuyard", WHOLE_SYSTEM, names=("staff", "gpuyard", "")),
            (
                "the group staff has the role gpuyard on the system, more than the site file calls for; "
                "'openstack role remove --group 3 --system all gpuyard' takes it away"
            ),
        ),
        (
            HeldRole(("user", USER), "gpuyard", ("project", "7"), inherited=True, names=(USER, "gpuyard", "ci")),
            (
                "the user gpuyard has the role gpuyard in project ci and below, more than the site file calls for; "
                "'openstack role remove --user gpuyard --project 7 --inherited gpuyard' takes it away"
            ),
        ),
    ],
)
def test_rights_that_nobody_asked_for_are_not_taken_over(held: HeldRole, said: str) -> None:
    observed = complete(ACCOUNTS)
    assert plan_accounts(ACCOUNTS, replace(observed, held=observed.held | {held}), True).refusals == (said,)
    assert not plan_accounts(ACCOUNTS, observed, True).refusals


def test_a_role_that_is_only_had_below_a_project_is_given_in_it() -> None:
    observed = complete(ACCOUNTS)
    (ours,) = [
        held_role for held_role, grant in granted(ACCOUNTS, observed).items() if grant == (USER, "gpuyard", "gpuyard")
    ]
    plan = plan_accounts(
        ACCOUNTS, replace(observed, held=observed.held - {ours} | {replace(ours, inherited=True)}), False
    )
    assert [str(step) for step in plan.steps] == ["create grant gpuyard to gpuyard in project gpuyard"]
    assert len(plan.refusals) == 1


class Keystone:
    """What is asked of it for an account reader, with a user `gpuyard` and the role `gpuyard` from before."""

    def get(self, service: str, path: str, **query: str) -> dict[str, Any]:
        named = {"user": USER, "role": "gpuyard", "project": "ops"}
        if path == "/role_assignments":
            return {"role_assignments": self.assignments(query)}
        if path == "/users/user-id/groups":
            return {"groups": [{"id": "group-id"}]}
        if path == "/users/user-id/application_credentials":
            return {"application_credentials": []}
        (kind,) = [candidate for candidate in named if path == f"/{candidate}s"]
        return {path[1:]: [{"id": f"{kind}-id", "name": named[kind], "domain_id": None}]}

    def assignments(self, query: dict[str, str]) -> list[dict[str, Any]]:
        home, evil = {"id": "default", "name": "Default"}, {"id": "7", "name": "evil"}
        ours, ops = {"id": "user-id", "name": USER, "domain": home}, {"id": "8", "name": "ops", "domain": home}
        role, admin = {"id": "role-id", "name": "gpuyard"}, {"id": "9", "name": "admin"}
        assert query.pop("include_names")
        (row,) = {
            "role.id": {"user": {"id": "6", "name": "eve\x1b[2J", "domain": evil}, "role": role,
                        "scope": {"project": ops, "OS-INHERIT:inherited_to": "projects"}},
            "user.id": {"user": ours, "role": admin, "scope": {"domain": home}},
            "group.id": {"group": {"id": "group-id", "name": "staff", "domain": home}, "role": admin,
                         "scope": {"system": {"all": True}}},
        }[next(iter(query))],  # fmt: skip
        assert query in ({"role.id": "role-id"}, {"user.id": "user-id"}, {"group.id": "group-id"})
        return [row]


def test_who_has_our_roles_and_which_our_users_have_is_read_wherever_it_is(tmp_path: Path) -> None:
    observed = AccountsReader(cast(CloudApi, Keystone()), tmp_path / "clouds.yaml").read(ACCOUNTS)
    assert [(str(held_role), held_role.removal) for held_role in sorted(observed.held, key=str)] == [
        ("the group staff has the role admin on the system", "openstack role remove --group group-id --system all 9"),
        ("the user eve\\x1b[2J of domain evil has the role gpuyard in project ops and below",
         "openstack role remove --user 6 --project 8 --inherited role-id"),
        ("the user gpuyard has the role admin in domain Default",
         "openstack role remove --user user-id --domain default 9"),
    ]  # fmt: skip


def test_others_are_named_and_left_alone() -> None:
    plan = plan_accounts(ACCOUNTS, replace(complete(ACCOUNTS), strays=("gpuyard of last year",)), True)
    assert "gpuyard of last year" in plan.notes[0]
    assert not [step for step in plan.steps if "last year" in step.name]


def test_without_the_role_member_nothing_can_be_made() -> None:
    assert "keystone-manage bootstrap" in plan_accounts(ACCOUNTS, SeenAccounts(), False).refused
    assert not plan_accounts(wanted(dict(ROOTS), ()), SeenAccounts(), False).refusals


def test_what_others_wrote_into_the_file_stays_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "clouds.yaml"
    path.write_text("# mine\nclouds:\n  other: {auth: {username: me}}  # keep\n  gpuyard: {auth: {}}\n")
    path.chmod(0o644)
    write_clouds(path, {"gpuyard": {"auth": {"application_credential_id": "7"}}})
    assert path.read_text().startswith("# mine\n")
    assert "# keep" in path.read_text()
    assert read_clouds(path)["gpuyard"] == {"auth": {"application_credential_id": "7"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["clouds.yaml"]


def test_a_link_to_the_file_stays_one_and_what_it_leads_to_gets_the_new_secrets(tmp_path: Path) -> None:
    """The old ones end: a portal that reads the other name must find the new ones there."""
    path, link = tmp_path / "etc" / "clouds.yaml", tmp_path / "clouds.yaml"
    path.parent.mkdir()
    write_clouds(path, {"gpuyard": {"auth": {"application_credential_id": "7"}}})
    link.symlink_to(path)
    write_clouds(link, {"gpuyard": {"auth": {"application_credential_id": "8"}}})
    assert link.is_symlink()
    assert read_clouds(path)["gpuyard"] == {"auth": {"application_credential_id": "8"}}
    assert [entry.name for entry in path.parent.iterdir()] == ["clouds.yaml"]


def test_secrets_that_are_tried_go_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, victim = tmp_path / "clouds.yaml", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "clouds.yaml.new").symlink_to(victim)
    monkeypatch.setattr("gpuyard.provisioning.access.apply.probe", lambda _: [])
    observed = complete(ACCOUNTS)
    clouds = (*observed.ids, "gpuyard-limits")
    entries: dict[str, dict[str, Any]] = {cloud: {"auth": {"password": "new"}} for cloud in clouds}
    Bootstrapper(cast(CloudApi, None), path, ACCOUNTS, observed)._store(entries, replaces=False)
    assert victim.read_text() == "mine"
    assert read_clouds(path)["gpuyard-limits"] == {"auth": {"password": "new"}}


@pytest.mark.parametrize("text", ["clouds: [1]", "- 1", "clouds: {a: 1}", "a: [", "\x00", "{}", ""])
def test_a_file_that_is_no_clouds_yaml_is_left_alone_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "clouds.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="clouds"):
        write_clouds(path, {"gpuyard": {}})
    assert path.read_text() == text


@pytest.mark.parametrize("document", [[], "x", {"limit": "a"}, {"limits": 1}, {"projects": []}, {"projects": {"a": 1}}])
def test_other_clouds_are_named_as_the_command_writes_them(document: object) -> None:
    with pytest.raises(UsageError, match="cloud mine: 'gpuyard' in clouds"):
        Elsewhere.of(document, "mine")
    assert Elsewhere.of({"limits": "a", "projects": {"7": "b"}}, "mine") == Elsewhere("a", {"7": "b"})
    assert Elsewhere.of(None, "mine") == Elsewhere()


def test_policy_files_are_written_once_and_others_never(tmp_path: Path) -> None:
    for change in policy_changes(tmp_path, TRIED):
        write(change)
    assert policy_changes(tmp_path, TRIED) == []
    assert "role:gpuyard" in YAML(typ="safe").load(tmp_path / "nova/policy.yaml")["context_is_admin"]
    (tmp_path / "nova/policy.yaml").write_text('"context_is_admin": "role:boss"\n')
    with pytest.raises(BlockedError, match=r"nova/policy.yaml: somebody else's rules"):
        policy_changes(tmp_path, TRIED)


def test_a_policy_json_is_somebody_elses_too(tmp_path: Path) -> None:
    """Kolla takes the first of policy.yaml and policy.json: ours would put a site's own restrictions out of force."""
    (tmp_path / "nova").mkdir()
    (tmp_path / "nova/policy.json").write_text('{"os_compute_api:servers:create": "role:boss"}')
    with pytest.raises(BlockedError, match=r"nova/policy.json: somebody else's rules"):
        policy_changes(tmp_path, TRIED)
    (tmp_path / "nova/policy.json").unlink()
    (tmp_path / "nova/nova.conf").touch()
    assert policy_changes(tmp_path, TRIED)


@pytest.mark.parametrize(
    ("microversion", "said"),
    [("2.100", "on this cloud it is 2.100"), ("2.103", "is 2.103"), ("2.105", "is 2.105"), ("", "it does not say")],
)
def test_policy_files_are_only_for_the_release_whose_rules_they_repeat(
    tmp_path: Path, microversion: str, said: str
) -> None:
    with pytest.raises(BlockedError, match=said):
        policy_changes(tmp_path, microversion)
