"""Kolla's folder: its collection, whether it is there and was installed by what this release of kolla-ansible requires,
and its passwords, where kolla-genpwd has nothing to make."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.deployment.folder import COLLECTION, MARKER, DeployFolder, collections_path, read_passwords
from gpuyard.deployment.journal import DeployJournal
from gpuyard.deployment.planner import plan_deployment
from gpuyard.deployment.state import DeploymentState, KollaState
from gpuyard.deployment.tasks import DeployTask, TaskStanding
from gpuyard.model.errors import GpuyardError
from tests.support.deployments import site

REQUIREMENTS = {"20.6.0": "stable/2025.1", "21.3.0": "stable/2025.2", "22.0.0": "stable/2026.1"}
"""kolla-ansible -> the branch in its requirements.yml."""
DUMP = [
    {"name": "COLLECTIONS_PATHS", "origin": "default", "value": ["/root/.ansible/collections", "/usr/share/ansible"]},
    {"GALAXY_SERVERS": {}},
]
"""Of what ansible-core 2.19.14 prints for `ansible-config dump --format json`."""


def require(folder: Path, release: str) -> None:
    """Put the files of this kolla-ansible in the place of any other one's."""
    share = folder / "share/kolla-ansible"
    share.mkdir(parents=True, exist_ok=True)
    (share / "requirements.yml").write_text(
        "---\ncollections:\n  - name: https://opendev.org/openstack/ansible-collection-kolla\n"
        f"    type: git\n    version: {REQUIREMENTS[release]}\n"
    )
    (share / "requirements-core.yml").write_text("---\ncollections:\n  - name: ansible.posix\n    version: <3\n")


@pytest.fixture
def folder(tmp_path: Path) -> DeployFolder:
    require(tmp_path, "20.6.0")
    paths = [str(tmp_path / "first"), str(tmp_path / "second")]
    dump = json.dumps([{"name": "COLLECTIONS_PATHS", "origin": "default", "value": paths}])
    (tmp_path / "bin").mkdir()
    for name, text in (("kolla-ansible", "exit 1"), ("ansible-config", f"printf %s {shlex.quote(dump)}")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return DeployFolder(tmp_path / "etc", str(tmp_path / "bin/kolla-ansible"))


def install(folder: Path) -> None:
    """As ansible-galaxy does: what is there is removed first, whatever is in it."""
    shutil.rmtree(folder / "first" / COLLECTION, ignore_errors=True)
    (folder / "first" / COLLECTION).mkdir(parents=True)
    (folder / "first" / COLLECTION / "MANIFEST.json").write_text('{"collection_info": {"version": "1.0.0"}}')


def test_a_collection_of_another_release_is_installed_again(folder: DeployFolder, tmp_path: Path) -> None:
    assert not folder.has_collection()
    install(tmp_path)
    assert (folder.has_collection(), folder.collection_is_current()) == (True, False)
    folder.keep_requirements()
    folder.keep_requirements()
    assert folder.collection_is_current()
    require(tmp_path, "21.3.0")
    assert (folder.has_collection(), folder.collection_is_current()) == (True, False)
    install(tmp_path)
    folder.keep_requirements()
    assert folder.collection_is_current()


def test_bounds_of_other_collections_count_too(folder: DeployFolder, tmp_path: Path) -> None:
    install(tmp_path)
    folder.keep_requirements()
    (tmp_path / "share/kolla-ansible/requirements-core.yml").write_text("---\ncollections: []\n")
    assert not folder.collection_is_current()


def test_a_collection_that_somebody_else_installed_since_is_not_taken_for_ours(
    folder: DeployFolder, tmp_path: Path
) -> None:
    install(tmp_path)
    folder.keep_requirements()
    install(tmp_path)
    assert not folder.collection_is_current()


def test_nothing_is_noted_where_nothing_was_installed(folder: DeployFolder, tmp_path: Path) -> None:
    with pytest.raises(
        GpuyardError, match=r"install-deps ended well, and .*/first/ansible_collections/openstack/kolla"
    ):
        folder.keep_requirements()
    assert not (tmp_path / "first").exists()
    install(tmp_path)
    (tmp_path / "share/kolla-ansible/requirements.yml").unlink()
    with pytest.raises(GpuyardError, match=r"has no requirements\.yml; install kolla-ansible again"):
        folder.keep_requirements()
    assert not (tmp_path / "first" / COLLECTION / MARKER).exists()


def test_collections_are_installed_in_the_first_of_ansibles_paths() -> None:
    assert collections_path(json.dumps(DUMP)) == "/root/.ansible/collections"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "[" * 10000,
        '["a"]',
        '[{"name": "COLLECTIONS_PATHS"}]',
        '[{"name": ["x"], "value": 1}]',
        '[{"name": "COLLECTIONS_PATHS", "value": []}]',
        '[{"name": "COLLECTIONS_PATHS", "value": [7]}]',
        '[{"name": "COLLECTIONS_PATHS", "value": ["relative"]}]',
    ],
)
def test_settings_without_paths_are_refused(text: str) -> None:
    with pytest.raises(GpuyardError, match="does not say where collections are"):
        collections_path(text)


def planned(kolla: KollaState) -> DeployTask:
    tasks = plan_deployment(site(), DeploymentState(kolla=kolla), DeployJournal())
    return next(task for task in tasks if task.stage == "install-deps")


def test_install_deps_is_left_until_the_collection_is_of_this_release() -> None:
    current = KollaState(collection=True, collection_current=True)
    assert planned(current).standing is TaskStanding.DONE
    for kolla, says in (
        (replace(current, collection_current=False), "~ openstack.kolla: it was not installed by what this"),
        (KollaState(), "+ openstack.kolla, from its git repository"),
    ):
        task = planned(kolla)
        assert task.standing is not TaskStanding.DONE
        assert task.verdict.says[0].startswith(says)


INLINE = """\
database_password: !vault |
          $ANSIBLE_VAULT;1.1;AES256
          33373663313637323061396264663766396132316463303930356633383162313631346561616665
          6135626262653563663063653635306132653863666235340a386161333836396539383661333530
          39613438386564646366626434353831356533653666626334313938393539353830393763353662
          3563366539616634660a343066623937383139666530633430346135313738306163333562356664
          3763
"""
WHOLE = """\
$ANSIBLE_VAULT;1.1;AES256
39346334633362333233656662656466613739356438353937663831346139336337666366623262
3632303931653733306536643333323833643931376463300a633930323836626136643531363936
66323938386437653331303265336630326166313065323165653235333736613064646233336466
3663363532343736300a313366613231363161363133383532623663613733656233396361376465
65346334363331666333343237333561633038343637323038653734643634616163
"""
"""What ansible-vault of ansible-core 2.19.14 wrote, for `encrypt_string` and for `encrypt`."""
MADE = {
    "encrypted": WHOLE,
    "values": f"{INLINE}keystone_admin_password: x\ndocker_registry_password:\n",
    "a key's part": f"kolla_ssh_key:\n  private_key: {INLINE.partition(': ')[2]}  public_key: x\n",
    "comments": "# mine\ndatabase_password: a  # of 2024\n\nb: 'c'\n",
}
"""Files in which no password is missing."""


@pytest.mark.parametrize("case", MADE)
def test_passwords_that_are_made_get_a_mode_and_are_not_written(folder: DeployFolder, case: str) -> None:
    """There is no kolla-genpwd here, so whoever asks for it fails."""
    folder.path.mkdir()
    path = folder.path / "passwords.yml"
    path.write_text(MADE[case])
    path.chmod(0o644)
    before = path.stat()
    folder.make_passwords()
    after = path.stat()
    assert path.read_text() == MADE[case]
    assert (after.st_mode & 0o777, after.st_ino, after.st_mtime_ns) == (0o640, before.st_ino, before.st_mtime_ns)
    path.chmod(0o604)
    folder.make_passwords()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_missing_beside_encrypted_passwords_is_asked_for(folder: DeployFolder) -> None:
    """kolla-genpwd of 22.0.0 reads with yaml.safe_load (kolla_ansible/cmd/genpwd.py), which refuses Ansible's tags."""
    folder.path.mkdir()
    path = folder.path / "passwords.yml"
    text = f"{INLINE}a:\nb:\nc:\nnova_ssh_key:\n  private_key:\n  public_key:\n"
    path.write_text(text)
    passwords = read_passwords(text)
    assert not passwords.made
    assert passwords.refusal.startswith(
        "passwords.yml has no value for a, b, c and 1 more, and kolla-genpwd reads no file"
    )
    with pytest.raises(GpuyardError, match=r"passwords\.yml has no value for a, b, c and 1 more"):
        folder.make_passwords()
    assert path.read_text() == text
    tasks = plan_deployment(
        site(), DeploymentState(kolla=KollaState(passwords_refusal=passwords.refusal)), DeployJournal()
    )
    verdict = next(task for task in tasks if task.stage == "passwords").verdict
    assert (verdict.standing, verdict.says) == (TaskStanding.BLOCKED, (passwords.refusal,))
    plain = read_passwords("a:\nb: !!str x\n")
    assert (plain.made, plain.refusal) == (False, "")
