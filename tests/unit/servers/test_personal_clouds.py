"""The cloud in memory keeps the rules that the real one keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuyard.openstack.personal import PersonalCloud
from tests.contract.personal_cloud import RULES, Bench
from tests.support.ledgers import ADA
from tests.support.people import PASSWORD, people
from tests.support.personal_clouds import FLAVOR, InMemoryPersonalClouds


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules(rule: Callable[[Bench], None]) -> None:
    keystone = people()
    token = keystone.log_in(ADA.user, PASSWORD, "Default").token

    def wait(cloud: PersonalCloud, id: str, status: str) -> None:
        server = cloud.server(id)
        assert (server.status if server else "") == status

    rule(Bench(InMemoryPersonalClouds(keystone), token, ADA.project_id, FLAVOR.name, wait))
