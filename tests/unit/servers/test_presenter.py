"""The page of a server: the way in, and what can be done in which state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuyard.openstack.personal import PersonalServer, ServerAction, ServerAddress
from gpuyard.servers.presenter import server_page
from tests.support.ledgers import NOON

LAN = ServerAddress("10.0.0.5", "lan", False)
SERVER = PersonalServer("s", "ada-t4", "ACTIVE", "", NOON, "t4", "i", "", "u", [LAN], "", ("default",))


def test_the_way_in_is_a_floating_ip_before_others_and_ipv4_before_ipv6() -> None:
    six, floating = ServerAddress("fd00::5", "lan", False), ServerAddress("192.0.2.7", "lan", True)
    assert server_page(replace(SERVER, addresses=[six, LAN]), "ubuntu", True, True).ssh == "ssh ubuntu@10.0.0.5"
    page = server_page(replace(SERVER, addresses=[LAN, floating]), "ubuntu", True, True)
    assert (page.ssh, page.may_get_floating_ip) == ("ssh ubuntu@192.0.2.7", False)
    assert server_page(SERVER, "", True, True).ssh == "ssh USER@10.0.0.5"
    assert server_page(SERVER, "", True, True).may_get_floating_ip
    assert not server_page(SERVER, "", False, True).may_get_floating_ip


def test_only_a_key_that_was_made_here_has_a_known_file() -> None:
    made = replace(SERVER, key="gpuyard-ada-20261128-120000")
    assert server_page(made, "ubuntu", True, True).ssh == f"ssh -i ~/.ssh/{made.key} ubuntu@10.0.0.5"
    assert server_page(replace(SERVER, key="laptop"), "ubuntu", True, True).ssh == "ssh ubuntu@10.0.0.5"


@pytest.mark.parametrize(
    ("status", "task", "actions", "rebuild"),
    [
        ("ACTIVE", "", {ServerAction.REBOOT, ServerAction.HARD_REBOOT, ServerAction.STOP, ServerAction.SHELVE}, True),
        ("ACTIVE", "rebooting", set(), False),
        ("SHUTOFF", "", {ServerAction.START, ServerAction.SHELVE}, True),
        ("SHELVED_OFFLOADED", "", {ServerAction.UNSHELVE}, False),
        ("ERROR", "", {ServerAction.HARD_REBOOT}, True),
        ("BUILD", "spawning", set(), False),
        ("RESCUE", "", set(), False),
    ],
)
def test_actions(status: str, task: str, actions: set[ServerAction], rebuild: bool) -> None:
    page = server_page(replace(SERVER, status=status, task=task), "ubuntu", True, True)
    assert (set(page.actions), page.may_rebuild, bool(page.ssh)) == (actions, rebuild, status == "ACTIVE")


def test_a_server_that_never_ran_can_only_be_deleted() -> None:
    page = server_page(replace(SERVER, status="ERROR", launched=False, fault="No valid host"), "ubuntu", True, True)
    assert (page.actions, page.may_rebuild) == ((), False)


def test_what_happens_is_said() -> None:
    assert "copies the image" in server_page(replace(SERVER, status="BUILD", task="spawning"), "", True, True).stage
    failed = replace(SERVER, status="ERROR", fault="No valid host was found.")
    assert server_page(failed, "", True, True).stage == "No valid host was found."
    assert "only its console" in server_page(replace(SERVER, addresses=[]), "", True, True).stage
    assert server_page(SERVER, "", True, False).ssh_blocked
