"""A clouds.yaml that is no such file is named, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.client.portal import open_session
from gpuyard.model.errors import UsageError
from gpuyard.openstack.api import connect
from gpuyard.openstack.config import find_cloud
from gpuyard.openstack.errors import CloudError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"clouds:\n  a: [b\n", "clouds.yaml, line 3 is not YAML"),
        (b"clouds:\n  a: 3\n", "cloud a has no settings"),
        (b"clouds: []\n", "has no 'clouds:'"),
        (b"just text", "has no 'clouds:'"),
        (b"", "has no 'clouds:'"),
        (b"\xff", "cannot be read"),
        (b"clouds: {b: {auth: {auth_url: 'http://127.0.0.1:9'}}}", "cloud a cannot be used: Cloud a was not found"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_what_is_wrong_with_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str, named: bool
) -> None:
    path = tmp_path / "clouds.yaml"
    path.write_bytes(content)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    given = path if named else None
    for use in (lambda: find_cloud("a", given), lambda: connect("a", given), lambda: open_session("a", "", given)):
        with pytest.raises(UsageError) as caught:
            use()
        assert said in str(caught.value)
        assert str(path) in str(caught.value) or "was not found" in str(caught.value)


@pytest.mark.filterwarnings("ignore::openstack.warnings.OpenStackDeprecationWarning")
@pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK60Warning")
def test_nothing_is_asked_that_the_unit_of_the_portal_forbids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_netlink() -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr("openstack.cloud._utils.psutil.net_if_addrs", no_netlink)
    path = tmp_path / "clouds.yaml"
    path.write_text(
        "clouds: {a: {auth: {auth_url: 'http://127.0.0.1:9/v3', username: u, password: p, project_name: p, "
        "user_domain_id: default, project_domain_id: default}}}"
    )
    with pytest.raises(CloudError, match=r"127\.0\.0\.1:9"):  # so far it comes: nobody is there
        connect("a", path)
