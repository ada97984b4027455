"""What has become of builds of images: branches of drivers that ended, packages that have security updates."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.images import archive
from gpuyard.images.ageing import driver_findings, hole_findings, mended_versions, newer
from gpuyard.images.archive import indexes_of, security_versions
from gpuyard.images.driver_end_dates import ENDS, NEWEST, end_of
from gpuyard.images.packages import read_bill
from gpuyard.images.publishing import StoredImage
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.finding import Severity
from gpuyard.site.image_rules import ImageBase

TODAY = date(2026, 11, 22)
BUILD = "i-20261101-0123456789"
DEBIAN = ImageBase.model_validate({"distribution": "debian", "release": "bookworm"})


def stored(driver: str) -> StoredImage:
    return StoredImage("1", BUILD, "i", BUILD, "active", "public", "2026-11-01T10:00:00Z", 1, False, driver)


@pytest.mark.parametrize(
    ("driver", "severity", "part"),
    [
        ("535", Severity.WARNING, "535 ended before 2026-07-01"),
        ("470", Severity.WARNING, "470 has ended"),
        (str(NEWEST + 5), Severity.UNKNOWN, "newer than gpuyard's list"),
    ],
)
def test_a_branch_that_has_ended_or_that_nobody_knows(driver: str, severity: Severity, part: str) -> None:
    (finding,) = driver_findings(stored(driver), TODAY)
    assert (finding.severity, finding.object, part in finding.reason) == (severity, BUILD, True), finding.reason


def test_a_branch_is_in_use_until_it_ends() -> None:
    assert driver_findings(stored(""), TODAY) == []
    assert driver_findings(stored("580"), TODAY) == []
    last = ENDS[580]
    findings_by_days = {days: driver_findings(stored("580"), last - timedelta(days)) for days in (91, 90, 1, 0)}
    assert {days: [finding.severity for finding in findings] for days, findings in findings_by_days.items()} == {
        91: [],
        90: [Severity.NOTE],
        1: [Severity.NOTE],
        0: [Severity.WARNING],
    }
    assert [str(end_of(branch)) for branch in ("580", "470", "999")] == [last.isoformat(), "over", "unknown"]


def test_holes_are_what_security_updates_mend() -> None:
    installed = {"openssl": "3.0.16-1", "zlib1g": "1:1.2.13", "mine": "1"}
    (finding,) = hole_findings(BUILD, installed, {"openssl": "3.0.17-1~deb12u2", "zlib1g": "1:1.2.13", "other": "2"})
    assert (finding.severity, finding.payload) == (Severity.WARNING, {"packages": ["openssl"]})
    assert "1 of its packages: openssl 3.0.17-1~deb12u2 (3.0.16-1)" in finding.reason
    (finding,) = hole_findings(BUILD, installed, {"openssl": "3.0.16-1"})
    assert finding.severity is Severity.OK
    many = {f"p{number:02}": "1" for number in range(20)}
    (finding,) = hole_findings(BUILD, many, dict.fromkeys(many, "2"))
    assert "p07 2 (1) and 12 more" in finding.reason
    assert finding.payload["packages"] == sorted(many)


def test_of_two_versions_in_the_archive_the_newer_one_counts() -> None:
    index = "Package: a\nVersion: 1.10\n\nPackage: a\nVersion: 1.9\n\nVersion: 3\n\nPackage: b\n"
    assert mended_versions([index, "Package: c\nVersion: 2\n"]) == {"a": "1.10", "c": "2"}


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="there is no dpkg to compare with")
def test_versions_are_in_dpkgs_order() -> None:
    rising = [
        "1~~",
        "1~rc1",
        "1",
        "1-1",
        "1-1+b1",
        "1.0",
        "1.0a",
        "1.0+deb12u1",
        "1.0+deb12u10",
        "1.2",
        "1.10",
        "1:0.1",
    ]
    for index, version in enumerate(rising):
        for other in rising[index:]:
            is_newer = subprocess.run(["dpkg", "--compare-versions", other, "gt", version], check=False).returncode == 0
            assert newer(other, version) is is_newer, (other, version)
            assert not newer(version, other)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_two_texts_have_an_order(one: str, other: str) -> None:
    assert not (newer(one, other) and newer(other, one))


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_index_is_read(text: str) -> None:
    assert all(mended_versions([text]).values())


def test_where_the_security_updates_are() -> None:
    assert indexes_of(DEBIAN)[0] == (
        "http://deb.debian.org/debian-security/dists/bookworm-security/main/binary-amd64/Packages.xz"
    )
    stated = {"distribution": "ubuntu", "release": "noble", "architecture": "arm64", "mirror": "http://m/u/"}
    assert (
        indexes_of(ImageBase.model_validate(stated))[2]
        == "http://m/u/dists/noble-security/restricted/binary-arm64/Packages.xz"
    )


def test_what_an_archive_sends_may_be_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "need_programs", lambda _: None)
    whole = lzma.compress(b"Package: a\nVersion: 1\n")
    for sent in (b"<html>", whole[:-4]):
        monkeypatch.setattr(archive, "run", lambda *_, sent=sent: sent)
        with pytest.raises(GpuyardError, match="not an index of packages"):
            security_versions(DEBIAN)
    monkeypatch.setattr(archive, "run", lambda *_: whole)
    assert security_versions(DEBIAN) == {"a": "1"}


@pytest.mark.parametrize("content", ["", "[]", '{"components": [{"name": "a"}]}', "[" * 100_000])
def test_what_is_no_bill(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bill"
    with pytest.raises(UsageError, match="cannot be read"):
        read_bill(path)
    path.write_text(content)
    with pytest.raises(UsageError, match="not a list of packages"):
        read_bill(path)
    path.write_text(json.dumps({"components": [{"name": "a", "version": "1"}]}))
    assert read_bill(path) == {"a": "1"}
