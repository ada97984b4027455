"""The MTU that Docker is given in servers of built images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.images.element_files import own_elements
from gpuyard.images.guest.docker_mtu import OPTION, write

SCRIPT = own_elements()["gpuyard-containers/static/usr/local/lib/gpuyard/docker_mtu.py"][1]
NVIDIA = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}
"""What `nvidia-ctk runtime configure --runtime=docker` writes."""


def opts(mtu: int) -> dict[str, object]:
    """As dockerd 26.1.5 takes them: it refuses a number ("cannot unmarshal number ... of type string")."""
    return {"bridge": {OPTION: str(mtu)}}


@pytest.mark.parametrize("known", [True, False], ids=["docker-26", "docker-20"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"mtu": 1450, "default-network-opts": opts(1450)}),
        (NVIDIA, NVIDIA | {"mtu": 1450, "default-network-opts": opts(1450)}),
        ({"mtu": 1200}, {"mtu": 1200, "default-network-opts": opts(1450)}),
        ({"default-network-opts": {}}, {"mtu": 1450, "default-network-opts": {}}),
    ],
    ids=["none", "nvidia", "own-mtu", "own-options"],
)
def test_what_somebody_else_wrote_stays(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], known: bool
) -> None:
    daemon, ours = tmp_path / "docker/daemon.json", tmp_path / "lib/ours.json"
    daemon.parent.mkdir()
    if before:
        daemon.write_text(json.dumps(before))
    if not known and "default-network-opts" not in before:
        after = {key: value for key, value in after.items() if key != "default-network-opts"}
    for _ in range(2):
        write(daemon, ours, 1450, known)
        assert json.loads(daemon.read_text()) == after


def test_another_network_has_another_mtu(tmp_path: Path) -> None:
    daemon, ours = tmp_path / "daemon.json", tmp_path / "ours.json"
    write(daemon, ours, 1500, True)
    write(daemon, ours, 1442, True)
    assert json.loads(daemon.read_text()) == {"mtu": 1442, "default-network-opts": opts(1442)}
    write(daemon, ours, 1442, False)
    assert json.loads(daemon.read_text()) == {"mtu": 1442}, "an older Docker would not start with the other"


def test_a_file_that_is_not_docker_s_is_left_as_it_is(tmp_path: Path) -> None:
    daemon = tmp_path / "daemon.json"
    for text in ("[]", "{"):
        daemon.write_text(text)
        with pytest.raises(ValueError, match=r"is no object of JSON|Expecting"):
            write(daemon, tmp_path / "ours.json", 1450, True)
        assert daemon.read_text() == text


NETWORK = "ip tuntap add dev t0 mode tap && ip link set t0 mtu 1442 up && ip addr add 10.0.0.2/24 dev t0"
NAMESPACES = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-n", "sh", "-c", NETWORK], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not NAMESPACES, reason="wants root, network namespaces and taps")
@pytest.mark.parametrize(("route", "mtu"), [("ip route add default via 10.0.0.1", 1442), ("true", None)])
def test_the_mtu_is_that_of_the_way_out(tmp_path: Path, route: str, mtu: int | None) -> None:
    (tmp_path / "docker_mtu.py").write_bytes(SCRIPT)
    ask = "import docker_mtu; print(docker_mtu.mtu_of_default_route())"
    python = f"{sys.executable} -c '{ask}'"
    words = ["unshare", "-n", "sh", "-c", f"{NETWORK} && {route} && {python}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == str(mtu)


def test_docker_starts_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "docker_mtu.py").write_bytes(SCRIPT)
    done = subprocess.run(
        [sys.executable, "docker_mtu.py"],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "Docker keeps the MTU that it has" in done.stderr
    drop_in = own_elements()["gpuyard-containers/static/etc/systemd/system/docker.service.d/gpuyard-mtu.conf"][
        1
    ].decode()
    assert "ExecStartPre=-/usr/bin/python3 /usr/local/lib/gpuyard/docker_mtu.py" in drop_in
    assert own_elements()["gpuyard-containers/element-deps"][1].decode().split() == [
        "install-static",
        "package-installs",
    ]
