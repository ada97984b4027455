"""Holds of units: a consumer for each, whatever else happens to the device meanwhile."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpuyard.bookings.controllers.enforce import Enforcer, OvertakenError
from gpuyard.bookings.enforcement import PlaceHold, ReleaseHold, SeenProvider
from gpuyard.model.units import hold_of
from gpuyard.openstack.api import CloudApi, CloudError

CLASS = "CUSTOM_GPU_PART"
UNITS = [f"host_0000:41:00.0~{number}" for number in (1, 2, 3)]
DEVICE = ("rp", CLASS)


class OneDevice:
    """What Placement answers of one provider, as its API has it."""

    project, user, name = "our-project", "us", "test"

    def __init__(self, total: int, reserved: int = 0, servers: int = 0) -> None:
        self.total, self.reserved = total, reserved
        self.allocations: dict[str, dict[str, Any]] = {f"server-{n}": {} for n in range(servers)}
        self.gone = False

    def get(self, service: str, path: str) -> dict[str, Any]:
        kind, _, rest = path.strip("/").partition("/")
        if kind == "allocations":
            return {"allocations": self.allocations.get(rest, {}).get("allocations", {})}
        if self.gone:
            raise CloudError("there is none", 404)
        if rest.endswith("/usages"):
            return {"usages": {CLASS: len(self.allocations)}}
        inventory = {"total": self.total, "reserved": self.reserved}
        return {"inventories": {CLASS: inventory}, "resource_provider_generation": 7}

    def request(self, method: str, service: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        consumer = path.removeprefix("/allocations/")
        if method == "DELETE":
            if consumer not in self.allocations:
                raise CloudError("there is none", 404)
            del self.allocations[consumer]
            return {}
        assert body is not None
        if consumer in self.allocations or len(self.allocations) >= self.total - self.reserved:
            raise CloudError("unable to allocate inventory", 409)
        self.allocations[consumer] = body
        return {}


def enforcer(device: OneDevice) -> Enforcer:
    return Enforcer(cast(CloudApi, device), "mark")


def hold(name: str) -> PlaceHold:
    return PlaceHold("part", name, 0, "a test")


def test_holds_of_one_device_do_not_touch_each_other() -> None:
    device = OneDevice(3, servers=1)
    ours = enforcer(device)
    for name in UNITS[:2]:
        ours.carry_out(hold(name), DEVICE)
    assert {hold_of(name) for name in UNITS[:2]} < device.allocations.keys()
    body = device.allocations[hold_of(UNITS[0])]
    assert body["allocations"] == {"rp": {"resources": {CLASS: 1}}}
    assert (body["consumer_type"], body["consumer_generation"]) == ("GPUYARD_HOLD", None)
    assert (body["project_id"], body["user_id"]) == ("our-project", "us")
    ours.carry_out(ReleaseHold("part", UNITS[0], 0, "a test"))
    providers = ours.look(dict.fromkeys(UNITS, DEVICE))
    assert providers == {
        UNITS[0]: SeenProvider(False, 0),
        UNITS[1]: SeenProvider(True, 0),
        UNITS[2]: SeenProvider(False, 0),
    }


def test_one_too_many_is_refused_and_looked_at_again() -> None:
    device = OneDevice(2, reserved=1, servers=1)
    ours = enforcer(device)
    assert ours.look(dict.fromkeys(UNITS, DEVICE)) == {}, "none of them can be held now"
    with pytest.raises(OvertakenError):
        ours.carry_out(hold(UNITS[0]), DEVICE)


def test_a_hold_that_is_there_already_is_overtaken_and_one_that_is_gone_is_let_go() -> None:
    device = OneDevice(3)
    ours = enforcer(device)
    ours.carry_out(hold(UNITS[0]), DEVICE)
    with pytest.raises(OvertakenError):
        ours.carry_out(hold(UNITS[0]), DEVICE)
    for _ in range(2):
        ours.carry_out(ReleaseHold("part", UNITS[0], 0, "a test"))
    assert not device.allocations


def test_a_device_that_is_gone_is_left_out() -> None:
    device = OneDevice(3)
    device.gone = True
    assert enforcer(device).look({UNITS[0]: DEVICE}) == {}
