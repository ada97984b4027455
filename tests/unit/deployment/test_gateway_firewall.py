"""The filter at the cloud's end of WireGuard, and what becomes of it when nftables is started, reloaded and stopped."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuyard.deployment.gateway.tunnel import tunnel_files
from tests.support.gateways import VARIANTS, gateway

UNIT = "cloud/etc/systemd/system/gpuyard-tunnel.service"
DROP_IN = "cloud/etc/systemd/system/nftables.service.d/gpuyard-tunnel.conf"
FILTER = "/etc/gpuyard/tunnel/filter.nft"
FIREWALL = Path("/etc/nftables.conf")
"""Of Debian's package nftables; its unit reads it at each start and reload."""
DEBIANS = """\
[Unit]
Description=nftables
Wants=network-pre.target
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
DefaultDependencies=no

[Service]
Type=oneshot
RemainAfterExit=yes
StandardInput=null
ProtectSystem=full
ProtectHome=true
ExecStart=/usr/sbin/nft -f /etc/nftables.conf
ExecReload=/usr/sbin/nft -f /etc/nftables.conf
ExecStop=/usr/sbin/nft flush ruleset
"""
"""nftables.service of Debian's nftables 1.0.6-2+deb12u2, without Documentation and [Install]."""
WITH_NFT = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("nft", "unshare"))) or not FIREWALL.exists(),
    reason="wants root, and the package nftables",
)


def test_the_tunnel_and_its_filter_go_with_the_unit_of_nftables() -> None:
    """systemd.unit(5): PartOf is for stop and restart. systemd.service(5): commands of ExecReload and ExecStartPost add
    to those that are there; after '-' a failure counts as success; ExecStopPost is also run when a start failed."""
    files = tunnel_files(gateway(VARIANTS["all"]))
    unit = files[UNIT]
    for line in ("After=nftables.service", "PartOf=nftables.service", f"ExecReload=/usr/sbin/nft -f {FILTER}"):
        assert f"\n{line}\n" in unit
    (stop,) = re.findall(r"^ExecStop.*$", unit, re.MULTILINE)
    assert stop == "ExecStopPost=-/usr/sbin/ip link delete dev gpuyard0"
    section, *commands = [line for line in files[DROP_IN].splitlines() if not line.startswith("#")]
    assert section == "[Service]"
    assert [command.partition("=-")[0] for command in commands] == ["ExecStartPost", "ExecReload"]
    assert all(f"/usr/sbin/nft -f {FILTER} ||" in command for command in commands)


def test_only_the_end_that_has_the_filter_touches_the_unit_of_nftables() -> None:
    assert [name for name in tunnel_files(gateway(VARIANTS["all"])) if "nftables" in name] == [DROP_IN]
    assert not [name for name in tunnel_files(gateway(VARIANTS["ssh"])) if "nftables" in name]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_has_nothing_to_say_of_what_is_added_to_nftables(tmp_path: Path) -> None:
    """Of Debian's unit, without its program."""
    unit, added = tmp_path / "nftables.service", tmp_path / "nftables.service.d/gpuyard-tunnel.conf"
    unit.write_text(DEBIANS.replace("/usr/sbin/nft", "/bin/true"))
    added.parent.mkdir()
    added.write_text(tunnel_files(gateway(VARIANTS["all"]))[DROP_IN])
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Machine:
    """The cloud's end, in a network namespace of its own: what systemd runs for the two units there."""

    def __init__(self, folder: Path) -> None:
        files = tunnel_files(gateway(VARIANTS["all"]))
        self.filter, self._systemctl, self._asked = folder / "filter.nft", folder / "systemctl", folder / "asked"
        self.filter.write_text(files[f"cloud{FILTER}"])
        self._systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self._asked}\n')
        self._systemctl.chmod(0o755)
        self._texts = {"tunnel": files[UNIT], "nftables": DEBIANS + files[DROP_IN]}
        self._script: list[str] = []

    def does(self, unit: str, *words: str) -> None:
        """Its commands of these kinds, in systemd's order; '-' before one is kept."""
        for word in words:
            for minus, command in re.findall(rf"^{word}=(-?)(.*)$", self._texts[unit], re.MULTILINE):
                if "nft" in command:
                    mine = command.replace(FILTER, str(self.filter)).replace("/usr/bin/systemctl", str(self._systemctl))
                    self._script.append(f"{shlex.join(shlex.split(mine))}{' || true' if minus else ''}")
        self._script.append("nft list tables; echo .")

    def loses_its_filter(self) -> None:
        self._script.append(f"rm {self.filter}")

    def has_the_filter(self) -> list[bool]:
        """After each that a unit did."""
        command = ["unshare", "--net", "sh", "-ec", "\n".join(self._script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ["gpuyard_tunnel" in text for text in done.stdout.split(".\n")[:-1]]

    @property
    def asked(self) -> str:
        """Of systemctl."""
        return self._asked.read_text() if self._asked.exists() else ""


@WITH_NFT
def test_the_filter_is_there_after_nftables_was_started_and_reloaded(tmp_path: Path) -> None:
    """The tunnel is up first, and then somebody types 'systemctl enable --now nftables'."""
    machine = Machine(tmp_path)
    machine.does("tunnel", "ExecStart")
    machine.does("nftables", "ExecStart")
    machine.does("nftables", "ExecStartPost")
    machine.does("nftables", "ExecReload")
    assert machine.has_the_filter() == [True, False, True, True], "Debian's own command drops it, and ours comes after"
    assert machine.asked == ""


@WITH_NFT
def test_nftables_starts_and_reloads_without_the_tunnel(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.does("nftables", "ExecStart", "ExecStartPost")
    machine.does("nftables", "ExecReload")
    assert machine.has_the_filter() == [True, True]
    assert machine.asked == ""


@WITH_NFT
def test_without_its_filter_the_tunnel_is_stopped_and_nftables_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.does("tunnel", "ExecStart")
    machine.loses_its_filter()
    machine.does("nftables", "ExecStart", "ExecStartPost")
    assert machine.has_the_filter() == [True, False]
    assert machine.asked == "--no-block stop gpuyard-tunnel.service\n"
