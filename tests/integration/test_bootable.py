"""What is said to be bootable boots, and what is not does not: against the real Nova, in states by chance."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings.errors import RefusedError
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.site.load import load_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.portal import apply_site
from tests.integration.booked_lab import BookedLab, open_booked_lab
from tests.integration.conftest import start_lab
from tests.support.booked_sites import booked_site
from tests.support.filling import NO_HOST, QUOTA, Walk, limits_now
from tests.support.sites import plain_site

pytestmark = pytest.mark.lab
STATES = int(os.environ.get("GPUYARD_TEST_STATES", "18"))
"""How many the narrow cloud goes through; a hundred show every kind of each refusal."""


@pytest.fixture
def walk(operator: CloudApi, user: CloudApi, exercise: Exercise) -> Iterator[Walk]:
    before = limits_now(operator)
    made = Walk(operator, {"demo": user}, load_site(plain_site()), random.Random(36))
    yield made
    made.clear(before)


def test_what_is_said_to_be_bootable_boots_and_no_more(walk: Walk) -> None:
    while walk.states < 10:
        walk.change()
        walk.compare("demo", 1)
        walk.try_one("demo")
    assert walk.seen["started"]
    assert walk.seen[NO_HOST] or walk.seen[QUOTA]


NARROW: dict[str, Any] = {
    "site": "narrow",
    "hosts": {
        "gpu-server": {"recording": "recordings/epyc-v100.json",
                       "reserve": {"vcpus": 40, "ram": "160 GiB", "disk": "400 GiB"}},
        "cld-dfa-gpu-02": {"recording": "recordings/t4-node.json"},
        "hyper18": {"recording": "recordings/hyper18.json", "reserve": "largest-flavors", "cpu_allocation_ratio": 2.0},
        "c4130": {"recording": "recordings/quadro-k4200.json"},
    },
    "pools": {
        "v100": {"models": ["10de:1db4"]},
        "t4": {"models": ["10de:1eb8"], "booking": {"must_book": True}},
        "k40c": {"models": ["10de:1024"]},
        "k4200": {"models": ["10de:11b4"]},
    },
    "aggregates": {"cold": {"hosts": ["hyper18"]}, "hot": {"hosts": ["c4130", "gpu-server"]}},
    "extra_filters": ["AggregateMultiTenancyIsolation"],
    "flavors": {
        "tiny": {"vcpus": 4, "ram": "2 GiB", "disk": "20 GiB", "gpus": {"v100": 1}},
        "big": {"vcpus": 24, "ram": "200 GiB", "disk": "300 GiB", "ephemeral": "400 GiB", "gpus": {"v100": 1}},
        "two": {"vcpus": 8, "ram": "64 GiB", "disk": "60 GiB", "gpus": {"v100": 2}},
        "pair": {"vcpus": 12, "ram": "128 GiB", "disk": "60 GiB", "gpus": {"v100": 2}, "same_group": True},
        "t4": {"vcpus": 15, "ram": "90 GiB", "disk": "20 GiB", "ephemeral": "500 GiB", "gpus": {"t4": 1}},
        "t4x2": {"vcpus": 30, "ram": "180 GiB", "disk": "20 GiB", "ephemeral": "1400 GiB", "gpus": {"t4": 2}},
        "k40c": {"vcpus": 2, "ram": "4 GiB", "disk": "40 GiB", "gpus": {"k40c": 1}, "aggregates": ["cold"]},
        "k4200": {"vcpus": 4, "ram": "16 GiB", "disk": "40 GiB", "gpus": {"k4200": 1}},
        "secret": {"vcpus": 4, "ram": "16 GiB", "disk": "40 GiB", "gpus": {"k4200": 2}, "projects": ["physics"]},
        "cpus": {"vcpus": 16, "ram": "1 GiB", "disk": "1 GiB"},
        "ram": {"vcpus": 1, "ram": "40 GiB", "disk": "1 GiB"},
        "disk": {"vcpus": 1, "ram": "1 GiB", "disk": "250 GiB"},
    },
    "limits": {"servers": 40},
}  # fmt: skip
RULES = {"must_book": False, "most_active": 50, "grace": "30 min", "hold": "10 min"}
PROJECTS = {
    "physics": {"gpus": {"v100": 5, "t4": 4, "k40c": 1, "k4200": 2}},
    "art": {"gpus": {"v100": 3, "t4": 2, "k4200": 1}},
}


@dataclass
class Booked:
    """Bookings, beside a walk."""

    lab: BookedLab
    walk: Walk
    kept: str = ""
    """Id of the aggregate that keeps a host for a project."""

    def settle(self) -> None:
        """The controller does what there is to do."""
        for _ in range(2):
            self.lab.controller.run()
            self.lab.clock.forward(seconds=6)

    def book(self) -> None:
        who, pool = self.walk.rng.choice(["ada", "bob"]), self.walk.rng.choice(["v100", "t4"])
        try:
            self.lab.book(who, start=1, hours=self.walk.rng.randint(1, 3), gpus=self.walk.rng.randint(1, 2), pool=pool)
        except RefusedError:
            return
        self.lab.clock.forward(seconds=2)
        self.settle()
        self.walk.seen["booked"] += 1

    def later(self) -> None:
        self.lab.clock.forward(minutes=self.walk.rng.randint(10, 90))
        self.settle()
        self.walk.seen["later"] += 1

    def keep(self) -> None:
        """A host is kept for one project, or not any more."""
        api = self.walk.operator
        if self.kept:
            aggregate = api.get("compute", f"/os-aggregates/{self.kept}")["aggregate"]
            for host in aggregate["hosts"]:
                api.request("POST", "compute", f"/os-aggregates/{self.kept}/action", {"remove_host": {"host": host}})
            api.request("DELETE", "compute", f"/os-aggregates/{self.kept}")
            self.kept = ""
            return
        made = api.request("POST", "compute", "/os-aggregates", {"aggregate": {"name": "kept"}})["aggregate"]
        self.kept = str(made["id"])
        host = self.walk.rng.choice(sorted(self.walk.loaded.site.hosts))
        path = f"/os-aggregates/{self.kept}/action"
        api.request("POST", "compute", path, {"add_host": {"host": host}})
        project = self.lab.people[self.walk.rng.choice(["ada", "bob"])].project_id
        api.request("POST", "compute", path, {"set_metadata": {"metadata": {"filter_tenant_id": project}}})
        self.walk.seen["kept"] += 1

    def leave(self) -> None:
        """A host leaves the aggregate that a flavor runs on, or comes back."""
        api = self.walk.operator
        (cold,) = [
            aggregate for aggregate in api.get("compute", "/os-aggregates")["aggregates"] if aggregate["name"] == "cold"
        ]
        way = "remove_host" if cold["hosts"] else "add_host"
        api.request("POST", "compute", f"/os-aggregates/{cold['id']}/action", {way: {"host": "hyper18"}})
        self.walk.seen["left"] += 1

    def fill(self) -> None:
        self.walk.fill(self.walk.users)


@pytest.fixture
def booked(tmp_path: Path) -> Iterator[Booked]:
    """A lab of its own, whose hosts are shared, kept apart and booked."""
    booked_site(tmp_path, RULES, PROJECTS, **NARROW)
    path = tmp_path / "site.yaml"
    running = start_lab(tmp_path / "lab", site=path)
    try:
        loaded = load_site(path)
        apply_site(running.lab, loaded)
        operator = connect(ADMIN_CLOUD, running.lab.clouds_file)
        lab = open_booked_lab(running, operator, tmp_path, RULES, PROJECTS, **NARROW)
        walk = Walk(operator, {"physics": lab.apis["ada"], "art": lab.apis["bob"]}, loaded, random.Random(136))
        yield Booked(lab, walk)
        lab.ledger.close()
    finally:
        control.down(running.settings)


KINDS = {"held", "service", "limit", "booked", "later", "kept", "left", "filled", "deleted", "compared"}


@pytest.mark.slow
def test_in_many_states_of_a_narrow_cloud(booked: Booked) -> None:
    walk = booked.walk
    booked.settle()
    number = 0
    while walk.states < STATES:
        number += 1
        for _ in range(walk.rng.randint(1, 2)):
            walk.change((booked.book, booked.book, booked.later, booked.keep, booked.leave, booked.fill, booked.fill))
        project = walk.rng.choice(sorted(walk.users))
        if number % 3 == 0:
            walk.compare(project, 4)
        walk.try_one(project)
    assert walk.seen["started"] >= STATES / 5
    assert walk.seen[NO_HOST] + walk.seen[QUOTA] >= STATES / 10
    if STATES >= 100:
        assert min(walk.seen[NO_HOST], walk.seen[QUOTA]) >= 5
        assert set(walk.seen) >= KINDS
