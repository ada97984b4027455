"""Builds of images in the lab's Glance: brought there, promoted, used by a server, pruned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard.images.glance import GlanceShelf
from gpuyard.images.manifest import CheckRecord, Manifest, check_path
from gpuyard.images.publishing import record_of
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.site.image_rules import ImageBuild
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.images import empty_build, empty_qcow2
from tests.integration.conftest import RunningLab
from tests.support.image_command import image_command
from tests.support.sites import plain_site

pytestmark = pytest.mark.lab

NAME = "debian-12-images"
SITE = f"""\
  {NAME}:
    hide_hypervisor: true
    build: {{base: {{distribution: debian, release: bookworm}}, visibility: public, keep: 1}}
"""
BUILD = ImageBuild.model_validate({"base": {"distribution": "debian", "release": "bookworm"}})


def built(folder: Path, day: int) -> tuple[Path, Manifest]:
    """A build of the day, good by its check; of nothing but an empty disk."""
    content, made = empty_qcow2() + bytes([day]), datetime(2026, 11, day, tzinfo=UTC)
    manifest = empty_build(NAME, BUILD, content, made)
    disk = folder / manifest.disk.file
    disk.write_bytes(content)
    disk.with_suffix(".json").write_text(manifest.text())
    check_path(disk).write_text(CheckRecord(manifest.disk.sha256, made, ()).text())
    return disk, manifest


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The lab's site, which builds an image."""
    plain = plain_site()
    (tmp_path / "recordings").symlink_to(plain.parent / "recordings")
    file = tmp_path / "site.yaml"
    file.write_text(plain.read_text().replace("images:\n", f"images:\n{SITE}"))
    return file


@pytest.fixture
def shelf(operator: CloudApi) -> Iterator[GlanceShelf]:
    shelf = GlanceShelf(operator)
    yield shelf
    for build in shelf.builds(NAME):
        shelf.delete(build)


def test_from_a_file_to_a_server(
    lab: RunningLab,
    applied: None,
    exercise: Exercise,
    operator: CloudApi,
    user: CloudApi,
    shelf: GlanceShelf,
    site: Path,
    tmp_path: Path,
) -> None:
    disks, made = zip(*(built(tmp_path, day) for day in (1, 2, 3, 4)), strict=True)
    for disk in disks:
        image_command("upload", str(disk), "--site", str(site))
    assert "is there already" in image_command("upload", str(disks[0]), "--site", str(site))
    first = next(build for build in shelf.builds(NAME) if build.build == made[0].name)
    shown = operator.get("image", f"/images/{first.id}")
    assert (shown["os_hash_value"], shown["min_disk"], shown["visibility"], shown["img_hide_hypervisor_id"]) == (
        hashlib.sha512(disks[0].read_bytes()).hexdigest(), 1, "public", "true",
    )  # fmt: skip

    assert image_command("promote", made[0].name).endswith(f"{NAME} is {made[0].name}\n")
    (image,) = operator.get("image", "/images", name=NAME)["images"]
    assert image["id"] == first.id
    server = exercise.boot("gpu_tiny", image=first.id)
    assert server.status == "ACTIVE", server.fault

    user.request("POST", "compute", f"/servers/{server.server_id}/action", {"createImage": {"name": "mine"}})
    (mine,) = user.get("image", "/images", name="mine")["images"]
    assert mine["gpuyard_build"] == made[0].name, "Nova gives snapshots the properties of what they are of"

    image_command("promote", made[2].name)
    (image,) = operator.get("image", "/images", name=NAME)["images"]
    assert image["gpuyard_build"] == made[2].name
    assert operator.get("image", f"/images/{first.id}")["name"] == made[0].name, "it has its own name back"
    listed = image_command("list", NAME, "-f", "value", "-c", "Build", "-c", "Promoted").splitlines()
    assert listed == [f"{manifest.name} {manifest is made[2]}" for manifest in made]

    assert f"{made[0].name}: unknown: its list of packages is not in" in image_command(
        "audit", NAME, "-o", str(tmp_path / "nothing")
    )

    output = image_command("prune", NAME, "--site", str(site), "--yes")
    assert f"{made[0].name}: stays: servers were made of it: 1" in output
    assert f"{made[1].name} is deleted" in output
    assert {build.build for build in shelf.builds(NAME)} == {made[0].name, made[2].name, made[3].name}
    exercise.delete([server.server_id])
    image_command("prune", NAME, "--site", str(site), "--yes", "--keep", "0")
    assert {build.build for build in shelf.builds(NAME)} == {made[2].name}
    assert operator.get("image", f"/images/{mine['id']}")["name"] == "mine", "a user's snapshot is none of our builds"
    operator.request("DELETE", "image", f"/images/{mine['id']}")


def test_an_upload_that_was_interrupted_is_done_again(shelf: GlanceShelf, operator: CloudApi, tmp_path: Path) -> None:
    disk, manifest = built(tmp_path, 5)
    record = record_of(manifest, {}, "private")
    half = operator.request("POST", "image", "/images", record)["id"]
    with pytest.raises(BlockedError, match="is queued in Glance"):
        image_command("promote", manifest.name)
    messages: list[str] = []
    whole = shelf.upload(record, disk, messages.append)
    assert messages == [f"{half} is queued, of an earlier try, and is deleted"]
    assert [build.id for build in shelf.builds(NAME)] == [whole]


def test_what_an_admin_has_put_out_of_use_is_not_brought_again(
    shelf: GlanceShelf, operator: CloudApi, tmp_path: Path
) -> None:
    disk, manifest = built(tmp_path, 9)
    record = record_of(manifest, {}, "private")
    image = shelf.upload(record, disk, lambda _: None)
    operator.request("POST", "image", f"/images/{image}/actions/deactivate")
    with pytest.raises(GpuyardError, match="is deactivated in Glance"):
        shelf.upload(record, disk, lambda _: None)
    assert [build.id for build in shelf.builds(NAME)] == [image]


def test_what_is_promoted_while_it_asks_stays(
    shelf: GlanceShelf, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks, made = zip(*(built(tmp_path, day) for day in (10, 11)), strict=True)
    for disk in disks:
        image_command("upload", str(disk), "--site", str(site))

    def asked(_question: str) -> bool:
        image_command("promote", made[0].name)
        return True

    monkeypatch.setattr("gpuyard.images.cli.image_store.confirmed", asked)
    output = image_command("prune", NAME, "--site", str(site))
    assert f"{made[0].name}: goes" in output
    assert f"{made[0].name} stays: it has changed meanwhile" in output
    assert {build.build for build in shelf.builds(NAME)} == {manifest.name for manifest in made}


def test_an_image_is_shared_with_the_projects_that_the_site_names(
    shelf: GlanceShelf, user: CloudApi, site: Path, tmp_path: Path
) -> None:
    disk, manifest = built(tmp_path, 7)
    text = site.read_text()

    def upload(members: str) -> list[str]:
        site.write_text(text.replace("visibility: public, keep: 1", f"visibility: shared, members: [{members}]"))
        image_command("upload", str(disk), "--site", str(site))
        return [image["name"] for image in user.get("image", "/images", name=manifest.name)["images"]]

    assert upload("service") == []
    assert upload("service, demo") == [manifest.name]
    with pytest.raises(UsageError, match="has no project 'nobody'"):
        upload("nobody")


def test_who_may_not_see_all_servers_prunes_nothing(shelf: GlanceShelf, user: CloudApi) -> None:
    with pytest.raises(CloudError, match="role admin"):
        GlanceShelf(user).users()


def test_an_image_of_somebody_else_is_in_the_way(shelf: GlanceShelf, operator: CloudApi, tmp_path: Path) -> None:
    disk, manifest = built(tmp_path, 6)
    shelf.upload(record_of(manifest, {}, "private"), disk, lambda _: None)
    other = operator.request(
        "POST", "image", "/images", {"name": NAME, "disk_format": "raw", "container_format": "bare"}
    )
    try:
        with pytest.raises(BlockedError, match=f"{other['id']} in Glance is named {NAME}, too"):
            image_command("promote", manifest.name)
    finally:
        operator.request("DELETE", "image", f"/images/{other['id']}")


def test_what_another_project_calls_a_build_is_none_and_its_private_images_are_in_nobodys_way(
    shelf: GlanceShelf, user: CloudApi, tmp_path: Path
) -> None:
    disk, manifest = built(tmp_path, 8)
    shelf.upload(record_of(manifest, {}, "private"), disk, lambda _: None)
    theirs = user.request("POST", "image", "/images", {**record_of(manifest, {}, "private"), "name": NAME})
    try:
        assert [build.id for build in shelf.builds(NAME) if build.id == theirs["id"]] == []
        assert image_command("promote", manifest.name).endswith(f"{NAME} is {manifest.name}\n")
    finally:
        user.request("DELETE", "image", f"/images/{theirs['id']}")
