"""Images: what is planned for a definition, the disk that is made of a file system, and what a check means."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import gpuyard_lab as lab_package
from gpuyard.cli.main import app
from gpuyard.images import programs
from gpuyard.images.build import mounts_below
from gpuyard.images.checking import HOST_NAME, WRITTEN, ImageCheckOutput, judge, read_console, user_data
from gpuyard.images.element_files import elements_beside, of_elements, own_elements, write_elements
from gpuyard.images.layout import MIB, SECTOR, core_image, first_sector, lay_out, partition_table
from gpuyard.images.machine import VirtualMachine, boot
from gpuyard.images.manifest import FORMAT, Artifact, CheckRecord, Manifest, check_path, manifest_of, read_check
from gpuyard.images.naming import BuiltName, parse_built_name
from gpuyard.images.packages import bill_of_materials, installed_packages
from gpuyard.images.planner import Folders, plan_build
from gpuyard.images.publishing import StoredImage, plan_promotion, plan_pruning, record_of, stored_image
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.model.finding import Severity
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.load import load_site

DAY = date(2026, 11, 22)
BUILD = ImageBuild.model_validate({"base": {"distribution": "debian", "release": "bookworm"}, "agent": True})
OWN = own_elements()
FOLDERS = Folders(*map(Path, ("/c/elements", "/c/dib", "/c/work", "/c/trees/it", "/c/runner.tar.gz")))
NONCE = "0123456789abcdef"
STATUS = """\
Package: bash
Status: install ok installed
Architecture: amd64
Source: bash-source (5.2)
Version: 5.2.15-2+b7
Description: GNU Bourne Again SHell
 Version: of a description

Package: gone
Status: deinstall ok config-files
Version: 1

Package: driver
Status: hold ok installed
Architecture: all
Version: 1:2~3
"""


def changed(**more: object) -> ImageBuild:
    return ImageBuild.model_validate({**BUILD.model_dump(mode="json"), **more})


# Names


def test_a_name_says_image_day_and_definition() -> None:
    name = plan_build("debian-12", BUILD, OWN, DAY).name
    assert str(name).startswith("debian-12-20261122-")
    assert parse_built_name(str(name)) == name
    assert plan_build("debian-12", changed(), OWN, DAY).name == name, "the same is called the same"


def test_what_is_built_differently_is_called_differently() -> None:
    base = plan_build("i", BUILD, OWN, DAY).name.digest
    other_file = {**OWN, "gpuyard-base/post-install.d/50-gpuyard-base": (0o755, b"#!/bin/sh\n")}
    no_file = {**OWN, "unused/install.d/50-it": (0o755, b"#!/bin/sh\n")}
    assert plan_build("i", changed(packages=["git"]), OWN, DAY).name.digest != base
    assert plan_build("i", BUILD, other_file, DAY).name.digest != base
    assert plan_build("i", BUILD, no_file, DAY).name.digest == base, "an element that is not in it changes nothing"


@pytest.mark.parametrize(
    "text", ["", "debian-12", "a-20261322-0123456789", "a-20261122-012345678", "-20261122-0123456789"]
)
def test_what_is_no_name_of_a_build(text: str) -> None:
    assert parse_built_name(text) is None


@given(st.text(min_size=1, max_size=200), st.dates(), st.from_regex(r"\A[0-9a-f]{10}\Z"))
def test_every_name_is_read_back(image: str, day: date, digest: str) -> None:
    name = BuiltName(image, day, digest)
    if day.year >= 1000:
        assert parse_built_name(str(name)) == name


# Elements and arguments


def test_the_plan_is_what_diskimage_builder_is_told() -> None:
    plan = plan_build("i", changed(size=4, packages=["git", "tmux"], elements=["mine"]), OWN, DAY)
    words = plan.arguments(FOLDERS)
    assert words[-4:] == ["debian-minimal", "gpuyard-base", "gpuyard-agent", "mine"]
    assert words[words.index("--image-size") + 1] == "4"
    assert words[words.index("-p") + 1] == "git,tmux"
    assert words[words.index("-t") + 1] == "raw", "dividing a disk is not diskimage-builder's"


def test_nothing_of_the_operators_shell_is_in_a_build() -> None:
    shell = {
        "PATH": "/opt/bin",
        "HOME": "/root",
        "DIB_RELEASE": "sid",
        "ELEMENTS_PATH": "/x",
        "http_proxy": "http://p:1",
    }
    environment = plan_build("i", BUILD, OWN, DAY).environment(FOLDERS, shell)
    assert (environment["DIB_RELEASE"], environment["ELEMENTS_PATH"]) == ("bookworm", "/c/elements")
    assert environment["http_proxy"] == "http://p:1"
    assert "/opt/bin" in environment["PATH"].split(":")
    assert "DIB_DISTRIBUTION_MIRROR" not in environment
    jammy = changed(base={"distribution": "ubuntu", "release": "jammy", "mirror": "http://m.example/ubuntu"})
    plan = plan_build("i", jammy, OWN, DAY)
    assert plan.elements[0] == "ubuntu-minimal"
    assert plan.environment(FOLDERS, {})["DIB_DISTRIBUTION_MIRROR"] == "http://m.example/ubuntu"
    assert plan.environment(FOLDERS, {})["DIB_GPUYARD_RESOLVED"] == "systemd", "there it is in another package"


def test_elements_are_taken_with_those_that_they_need(tmp_path: Path) -> None:
    (tmp_path / "mine/install.d").mkdir(parents=True)
    (tmp_path / "mine/install.d/50-it").write_text("#!/bin/sh\n")
    (tmp_path / "mine/element-deps").write_text("gpuyard-agent\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/README").write_text("")
    files = of_elements({**OWN, **elements_beside(tmp_path)}, ["mine"])
    assert {path.partition("/")[0] for path in files} == {"mine", "gpuyard-agent"}
    write_elements(files, tmp_path / "out")
    assert os.access(tmp_path / "out/mine/install.d/50-it", os.X_OK)
    assert not os.access(tmp_path / "out/gpuyard-agent/element-deps", os.X_OK)
    agent = tmp_path / "out/gpuyard-agent/static/usr/local/lib/gpuyard-agent/gpuyard_agent.py"
    assert agent.read_bytes().startswith(b"#!/usr/bin/python3")


@pytest.mark.parametrize("path", [path for path, (mode, _) in OWN.items() if mode == 0o755])
def test_shellcheck_has_nothing_to_say(path: str) -> None:
    done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=OWN[path][1], capture_output=True, check=False)
    assert done.stdout == b""
    assert OWN[path][1].startswith(b"#!/bin/sh\n")


def test_shellcheck_has_nothing_to_say_of_the_check() -> None:
    script = Path(programs.__file__).parent / "guest/check.sh"
    done = subprocess.run(["shellcheck", "--shell=sh", str(script)], capture_output=True, check=False)
    assert done.stdout == b""


# The disk


@given(st.integers(1, 1 << 44), st.sampled_from(["amd64", "arm64"]))
def test_partitions_do_not_overlap_and_the_root_can_grow(size: int, architecture: str) -> None:
    layout = lay_out(size, architecture)
    parts = layout.partitions
    assert parts[-1] is layout.root
    assert layout.root.count * SECTOR >= size
    for partition, following in itertools.pairwise(parts):
        assert partition.start + partition.count <= following.start
    assert all(part.offset % MIB == 0 for part in parts)
    assert layout.bytes % MIB == 0
    assert layout.bytes - (layout.root.offset + layout.root.count * SECTOR) == MIB, "for the second partition table"
    assert (layout.bios is None) == (architecture == "arm64")


def test_the_same_build_has_the_same_ids() -> None:
    table = partition_table(lay_out(5 * MIB, "amd64"), "a")
    assert table == partition_table(lay_out(5 * MIB, "amd64"), "a")
    assert table != partition_table(lay_out(5 * MIB, "amd64"), "b")
    assert "1 : start=135168, size=10240, type=0FC63DAF" in table


def test_the_first_sector_keeps_the_partition_table_and_knows_where_the_rest_is() -> None:
    boot = bytearray(bytes([1]) * SECTOR)
    boot[0x1FE:] = b"\x55\xaa"
    old_sector = bytes([2]) * SECTOR
    made = first_sector(old_sector, bytes(boot), 2048)
    assert made[0x1B8:] == old_sector[0x1B8:], "disk id, partition table, signature"
    assert made[3:0x5A] == old_sector[3:0x5A], "what a BIOS keeps there"
    assert struct.unpack_from("<Q", made, 0x5C) == (2048,)
    assert made[0x66:0x68] == b"\x90\x90"
    assert len(made) == SECTOR
    with pytest.raises(ValueError, match="not a boot sector"):
        first_sector(old_sector, b"", 2048)


def test_the_core_image_knows_where_its_rest_is() -> None:
    core = bytearray(3 * SECTOR - 7)
    struct.pack_into("<QHH", core, SECTOR - 12, 1, 2, 0x820)
    made = core_image(bytes(core), 2048, 2048)
    assert struct.unpack_from("<QHH", made, SECTOR - 12) == (2049, 2, 0x820)
    assert len(made) == 3 * SECTOR
    for wrong, most in ((b"", 9), (bytes(core), 2), (bytes(core) + bytes(SECTOR), 9)):
        with pytest.raises(ValueError, match=r"core\.img"):
            core_image(wrong, 2048, most)


def test_mounts_that_a_killed_build_has_left() -> None:
    places = ("/", "/c/work/dib/mnt/dev", "/c/work/dib/mnt/proc", "/c/workshop")
    mounts = "".join(f"it {place} ext4 rw 0 0\n" for place in places)
    assert mounts_below("/c/work", mounts) == ["/c/work/dib/mnt/proc", "/c/work/dib/mnt/dev"]
    assert mounts_below("/with space", "a /with\\040space/b c d 0 0\n") == ["/with\\040space/b"]


# What is in it


def test_packages_are_those_that_are_installed() -> None:
    driver, bash = sorted(installed_packages(STATUS), key=lambda one: one.name, reverse=True)
    assert (bash.name, bash.version, bash.source, bash.held) == ("bash", "5.2.15-2+b7", "bash-source", False)
    assert (driver.name, driver.version, driver.held) == ("driver", "1:2~3", True)


def test_the_bill_names_packages_as_scanners_do() -> None:
    name = BuiltName("i", DAY, "0123456789")
    bill = bill_of_materials(installed_packages(STATUS), name, "debian", "bookworm", datetime(2026, 11, 22, tzinfo=UTC))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert [component["purl"] for component in bill["components"]] == [
        "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64&distro=bookworm",
        "pkg:deb/debian/driver@1%3A2~3?arch=all&distro=bookworm",
    ]


@given(st.text())
def test_any_list_of_packages_can_be_read(text: str) -> None:
    installed_packages(text)


def manifest() -> Manifest:
    disk, bill = Artifact("a.qcow2", 5, hashlib.sha256(b"").hexdigest()), Artifact("a.cdx.json", 5, "0")
    made = datetime(2026, 11, 22, 10, tzinfo=UTC)
    name = str(plan_build("debian-12", BUILD, OWN, DAY).name)
    elements = ("debian-minimal",)
    return Manifest(
        FORMAT, name, made, "0.1", elements, BUILD, "", disk, 3 * 1024**3 + 1, bill, ("6.1",), 9, {"disk": 1.5}
    )


def test_a_manifest_is_read_back() -> None:
    assert manifest_of(manifest().text().encode(), "a.json") == manifest()
    assert manifest().min_disk_gib == 4
    assert manifest().built.day == DAY


@pytest.mark.parametrize(
    "change",
    [
        {"format": 9},
        {"name": "x"},
        {"made": "2026-11-22T10:00:00"},
        {"disk": {"file": "../x", "bytes": 1, "sha256": ""}},
        {"build": {}},
    ],
)
def test_what_is_no_manifest_is_refused(change: dict[str, object]) -> None:
    text = json.dumps({**json.loads(manifest().text()), **change})
    with pytest.raises(UsageError, match=r"^a\.json: "):
        manifest_of(text.encode(), "a.json")


@given(st.binary())
def test_any_file_is_a_manifest_or_refused(content: bytes) -> None:
    with pytest.raises(UsageError):
        manifest_of(content, "a.json")


# The check


def console(**words: str) -> str:
    values_by_word = {
        "begun": "",
        "kernel": "6.1.0",
        "seconds": "61.5",
        "failed-units": "",
        "datasource": "DataSourceConfigDrive [net,ver=2]",
        "cloud-init-errors": "",
        "host-name": HOST_NAME,
        "written": WRITTEN,
        "root": f"{38 * 10**8} {8 * 2**20} /dev/vda1",
        "pci": "1234:11e8",
        "unit": "gpuyard-agent.service enabled active 0",
        "over": "",
    }
    values_by_word |= {word.replace("_", "-"): value for word, value in words.items()}
    return "\n".join(
        f"[  1.0] gpuyard-image: {NONCE} {word} {value}" for word, value in values_by_word.items() if value != "-"
    )


def verdicts(text: str, switched_off: bool = True) -> dict[str, tuple[Severity, str]]:
    findings = judge(read_console(text, NONCE), BUILD, "1234:11e8", switched_off)
    return {finding.code: (finding.severity, finding.reason) for finding in findings}


def test_an_image_that_is_good() -> None:
    verdicts_by_code = verdicts(console())
    assert list(verdicts_by_code) == ["image-boots", "cloud-init", "root-grows", "pci-device", "units", "agent"]
    assert {severity for severity, _ in verdicts_by_code.values()} == {Severity.OK}


@pytest.mark.parametrize(
    ("words", "code", "severity", "part"),
    [
        ({"datasource": "DataSourceNone"}, "cloud-init", Severity.ERROR, "not from the config drive"),
        ({"cloud_init_errors": "'x'"}, "cloud-init", Severity.ERROR, "failed in parts"),
        ({"written": "-"}, "cloud-init", Severity.ERROR, "the file that it was to write is ''"),
        ({"root": f"{18 * 10**8} {8 * 2**20} /dev/vda1"}, "root-grows", Severity.ERROR, "has not grown"),
        ({"root": "x y"}, "root-grows", Severity.ERROR, "cannot be read"),
        ({"pci": "-"}, "pci-device", Severity.ERROR, "does not show"),
        ({"no-lspci": ""}, "pci-device", Severity.WARNING, "no lspci"),
        ({"failed_units": "a.service"}, "units", Severity.WARNING, "a.service"),
        ({"unit": "gpuyard-agent.service missing inactive 0"}, "agent", Severity.ERROR, "missing, inactive"),
        ({"unit": "gpuyard-agent.service enabled active 3"}, "agent", Severity.ERROR, "started again 3 times"),
        ({"over": "-"}, "image-boots", Severity.ERROR, "never came to an end"),
    ],
)
def test_an_image_that_is_not(words: dict[str, str], code: str, severity: Severity, part: str) -> None:
    verdicts_by_code = verdicts(console(**words))
    assert verdicts_by_code[code][0] is severity
    assert part in verdicts_by_code[code][1]


def test_a_server_that_says_nothing_or_something_else() -> None:
    assert verdicts("")["image-boots"][1] == "the serial console of the server says nothing"
    assert "did not start" in verdicts("login:")["image-boots"][1]
    assert "did not start" in verdicts(console().replace(NONCE, "fedcba9876543210"))["image-boots"][1]
    assert verdicts(console(), switched_off=False)["image-boots"][0] is Severity.WARNING


@given(st.text(), st.booleans())
def test_any_console_can_be_judged(text: str, marked: bool) -> None:
    lines = [f"gpuyard-image: {NONCE} {line}" for line in text.splitlines()] if marked else [text]
    assert judge(read_console("\n".join(lines), NONCE), BUILD, "1234:11e8", True)


def test_a_server_is_asked_with_a_number_of_its_own() -> None:
    assert f"NONCE={NONCE}" in user_data(NONCE)
    with pytest.raises(ValueError, match="hexadecimal"):
        user_data("$(reboot)")


def test_a_machine_is_as_the_image_needs_it() -> None:
    bios = VirtualMachine("amd64", False, Path("/a,b"), Path("/d"), Path("/c"))
    assert "file=/a,,b" in bios.command(None)[bios.command(None).index("-drive") + 1]
    assert "pc" in bios.command(None)
    uefi = VirtualMachine("amd64", True, Path("/a"), Path("/d"), Path("/c"), kvm=True)
    assert "if=pflash,unit=0,format=raw,readonly=on,file=/f" in uefi.command(Path("/f"))
    assert "q35" in uefi.command(Path("/f"))
    assert ImageCheckOutput({}, frozenset(), {}, False).tail == ()


# Programs


def test_programs_that_are_missing_are_named_with_their_packages() -> None:
    with pytest.raises(UsageError, match=r"no-such-one, no-such-two; install them.*apt-get install one.*images part"):
        programs.need_programs({"no-such-one": "one", "no-such-two": "", "sh": "dash"})


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(GpuyardError, match="a disk: sh failed: no room"):
        programs.run(["sh", "-c", "echo no room >&2; exit 1"], "a disk")
    with pytest.raises(GpuyardError, match="a disk: /no/such: No such file"):
        programs.run(["/no/such"], "a disk")
    with pytest.raises(GpuyardError, match="/no/such: No such file"):
        programs.run_logged(["/no/such"], {}, tmp_path / "log")
    with pytest.raises(GpuyardError, match=r"(?s)sh failed \(exit code 4\).*log, at last:\n  third"):
        programs.run_logged(["sh", "-c", "echo third; exit 4"], os.environ, tmp_path / "log")


# The commands


SITE = """\
  debian-12: {build: {base: {distribution: debian, release: bookworm}}}
  by-others: {hide_hypervisor: true}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    lab = Path(lab_package.__file__).parent
    for name in ("site.yaml", "recordings"):
        (tmp_path / name).symlink_to(lab / name)
    file = tmp_path / "mine.yaml"
    file.write_text((lab / "site.yaml").read_text().replace("images:\n", f"images:\n{SITE}"))
    return file


def test_a_plan_builds_nothing(site: Path, tmp_path: Path) -> None:
    command = ["image", "build", "debian-12", "--site", str(site), "--plan", "--day", "2026-11-22"]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out")])
    assert done.output.startswith("debian-12-20261122-"), done.output
    assert done.output.rstrip().endswith(": debian-minimal gpuyard-base")
    assert not (tmp_path / "out").exists()


def test_an_image_of_others_is_not_built(site: Path) -> None:
    done = CliRunner().invoke(app, ["image", "build", "by-others", "--site", str(site)])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).endswith("no image 'by-others' with a 'build'; it builds debian-12, tiny")


def test_a_plan_of_the_site_wants_only_the_images_of_others(site: Path) -> None:
    assert [image.name for image in load_site(site).compiled.images] == ["by-others"]


def test_a_file_without_manifest_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a.qcow2").write_bytes(b"")
    done = CliRunner().invoke(app, ["image", "check", str(tmp_path / "a.qcow2")])
    assert "a.json: cannot be read: No such file" in str(done.exception)


def test_a_machine_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "qemu-system-x86_64"
    fake.write_text("#!/bin/sh\necho 'no such device' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    machine = VirtualMachine("amd64", False, tmp_path / "a", tmp_path / "d", tmp_path / "c")
    with pytest.raises(GpuyardError, match=r"qemu-system-x86_64 failed \(exit code 1\): no such device"):
        boot(machine, 60)
    fake.write_text(f"#!/bin/sh\necho halfway >{tmp_path}/c\nexec sleep 60\n")
    assert boot(machine, 0.5) == ("halfway\n", False)
    fake.write_text(f"#!/bin/sh\necho done >{tmp_path}/c\n")
    assert boot(machine, 60) == ("done\n", True)


# Glance


def stored(build: str = "i-20261122-0123456789", **more: object) -> StoredImage:
    row = {"id": build, "name": build, "status": "active", "created_at": "2026-11-22T10:00:00Z", "gpuyard_image": "i"}
    image = stored_image({**row, "gpuyard_build": build, **more})
    assert image is not None
    return image


OLD, NEW = "i-20261101-0123456789", "i-20261122-0123456789"


def test_what_glance_is_told_of_a_build() -> None:
    record = record_of(manifest(), {"hw_firmware_type": "uefi"}, "community")
    assert (record["min_disk"], record["architecture"], record["os_version"]) == (4, "x86_64", "bookworm")
    assert (record["visibility"], record["hw_firmware_type"]) == ("community", "uefi")
    image = stored_image({**record, "id": "1", "status": "queued"})
    assert image is not None
    assert (image.image, image.promoted, image.driver) == ("debian-12", False, "")
    assert stored(gpuyard_driver="535").driver == "535"
    assert stored(gpuyard_driver="5x").driver == "", "anybody may set properties of an image of his"


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"gpuyard_image": "j", "gpuyard_build": NEW},
        {"gpuyard_image": "i", "gpuyard_build": "i"},
        {"gpuyard_image": "i", "gpuyard_build": NEW, "instance_uuid": "1"},
    ],
)
def test_images_of_others_are_none_of_ours(row: dict[str, str]) -> None:
    assert stored_image({"id": "1", "name": "i", **row}) is None


def test_the_name_of_an_image_is_always_some_builds() -> None:
    steps = plan_promotion(NEW, [stored(OLD, name="i"), stored(NEW)], ())
    assert [(step.id, step.before, step.after) for step in steps] == [(NEW, NEW, "i"), (OLD, "i", OLD)]
    assert plan_promotion(NEW, [stored(OLD), stored(NEW, name="i")], ()) == [], "it is promoted already"
    half = plan_promotion(NEW, [stored(OLD, name="i"), stored(NEW, name="i")], ())
    assert half == steps[1:], "when only the first step was done"
    back = plan_promotion(OLD, [stored(OLD), stored(NEW, name="i")], ())
    assert [step.after for step in back] == ["i", NEW]
    assert [step.after for step in plan_promotion(NEW, [stored(OLD), stored(NEW)], ())] == ["i"], "nobody had it"


def test_a_promotion_that_cannot_be() -> None:
    with pytest.raises(BlockedError, match="not in Glance; none of its image is there"):
        plan_promotion(NEW, [], ())
    with pytest.raises(BlockedError, match=f"not in Glance; there are {OLD}"):
        plan_promotion(NEW, [stored(OLD)], ())
    with pytest.raises(BlockedError, match="is queued in Glance"):
        plan_promotion(NEW, [stored(NEW, status="queued")], ())
    with pytest.raises(BlockedError, match="7b5c in Glance is named i, too"):
        plan_promotion(NEW, [stored(NEW)], {"7b5c"})


def test_builds_that_somebody_needs_stay() -> None:
    names = [f"i-202611{day:02}-0123456789" for day in range(1, 9)]
    ours = [
        stored(names[0]),
        stored(names[1], name="i"),
        stored(names[2], protected=True),
        *map(stored, names[3:]),
    ]
    verdicts = plan_pruning(ours, 2, {names[3]: 2, names[5]: 0}, {names[4]})
    assert [(verdict.stored.build, verdict.kept) for verdict in verdicts] == [
        (names[7], "one of the 2 newest"),
        (names[6], "one of the 2 newest"),
        (names[5], ""),
        (names[4], "the site file names it"),
        (names[3], "servers were made of it: 2"),
        (names[2], "it is protected in Glance"),
        (names[1], "servers that ask for the image get it"),
        (names[0], ""),
    ]


def test_being_new_keeps_nothing_that_has_aged() -> None:
    names = [f"i-202611{day:02}-0123456789" for day in range(1, 6)]
    ours = [stored(names[0]), *map(stored, names[1:4]), stored(names[4], name="i")]
    verdicts = plan_pruning(ours, 1, {names[1]: 1}, (), {names[4], names[3], names[1]})
    assert [verdict.kept for verdict in verdicts] == [
        "servers that ask for the image get it",
        "",
        "one of the 1 newest",
        "servers were made of it: 1",
        "",
    ]


def test_the_record_of_a_check_is_read_back(tmp_path: Path) -> None:
    path = check_path(tmp_path / "a.qcow2")
    assert read_check(path) is None
    record = CheckRecord("0", datetime(2026, 11, 22, 10, tzinfo=UTC), ("bad",))
    path.write_text(record.text())
    assert read_check(path) == record
    path.write_text("{}")
    with pytest.raises(UsageError, match="not the record of a check"):
        read_check(path)


def test_an_image_that_was_not_checked_is_not_uploaded(site: Path, tmp_path: Path) -> None:
    disk = tmp_path / "a.qcow2"
    disk.write_bytes(b"")
    made = replace(manifest(), disk=Artifact("a.qcow2", 0, hashlib.sha256(b"").hexdigest()))
    disk.with_suffix(".json").write_text(made.text())
    command = ["image", "upload", str(disk), "--site", str(site), "--os-cloud", "no-such-cloud"]
    assert "was not checked" in str(CliRunner().invoke(app, command).exception)
    record = CheckRecord(made.disk.sha256, datetime(2026, 11, 22, 10, tzinfo=UTC), ("it does not boot",))
    check_path(disk).write_text(record.text())
    assert "is not good: it does not boot" in str(CliRunner().invoke(app, command).exception)
    assert "no-such-cloud" in str(CliRunner().invoke(app, [*command, "--unchecked"]).exception)
    disk.write_bytes(b"x")
    assert "not the disk that its manifest is about" in str(CliRunner().invoke(app, command).exception)
