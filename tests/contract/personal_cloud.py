"""What the portal may rely on when it asks the cloud in a person's name.

Each function is one rule. They run on a cloud in memory (tests/unit/servers/test_personal_clouds.py) and on the real
services of the lab (tests/integration/test_personal_cloud.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import PersonalCloud, PersonalClouds, ServerAction, ServerOrder, TokenExpiredError
from gpuyard.servers.keys import new_key_pair

NOBODY_S = "00000000-0000-4000-8000-00000000ffff"


@dataclass(frozen=True)
class Bench:
    """A person with a token of no project, who is a member of one with a network."""

    clouds: PersonalClouds
    token: str
    project_id: str
    flavor: str
    """Name of one that can start."""
    wait: Callable[[PersonalCloud, str, str], None]
    """Wait until a server has a status and no task; empty: until there is none."""

    @property
    def cloud(self) -> PersonalCloud:
        return self.clouds.open(self.token, self.project_id)

    def order(self, **values: str) -> ServerOrder:
        cloud = self.cloud
        flavor = next(flavor.id for flavor in cloud.flavors() if flavor.name == self.flavor)
        network = next(network.id for network in cloud.networks() if network.attachable)
        order = ServerOrder("ada-t4", flavor, cloud.images()[0].id, network, "", "form-1")
        return replace(order, **values)


def a_token_that_is_not_valid_opens_nothing(bench: Bench) -> None:
    for token in ("gAAAAABnonsense", "x" * 200):
        with pytest.raises(TokenExpiredError):
            bench.clouds.open(token, bench.project_id)


def a_server_is_started_with_what_was_chosen(bench: Bench) -> None:
    cloud = bench.cloud
    cloud.add_key("ada-laptop", new_key_pair("ada").public)
    assert "ada-laptop" in cloud.key_names()
    order = bench.order(key="ada-laptop", form="form-chosen")
    id = cloud.start(order)
    bench.wait(cloud, id, "ACTIVE")
    server = cloud.server(id)
    assert server is not None
    assert (server.name, server.flavor, server.image) == (order.name, bench.flavor, order.image)
    assert id in [server.id for server in cloud.servers(server.user_id)]
    assert (server.key, len(server.addresses), server.fault) == ("ada-laptop", 1, "")
    cloud.act(id, ServerAction.DELETE)


def the_server_of_a_form_is_found_whatever_its_name(bench: Bench) -> None:
    cloud = bench.cloud
    assert cloud.started("form-found_-1") == ""
    id = cloud.start(bench.order(form="form-found_-1", network=""))
    assert cloud.started("form-found_-1") == id
    assert cloud.started("form-found") == ""
    bench.wait(cloud, id, "ACTIVE")
    cloud.act(id, ServerAction.DELETE)


def an_image_says_who_logs_in(bench: Bench) -> None:
    cloud = bench.cloud
    image = cloud.images()[0]
    assert cloud.image_user(image.id) == image.user
    assert cloud.image_user(NOBODY_S) == ""
    assert cloud.image_user("") == ""


def a_name_of_a_key_is_taken_once(bench: Bench) -> None:
    bench.cloud.add_key("ada-once", new_key_pair("ada").public)
    with pytest.raises(CloudError) as refusal:
        bench.cloud.add_key("ada-once", new_key_pair("ada").public)
    assert refusal.value.status == 409
    bench.cloud.delete_key("ada-once")
    bench.cloud.delete_key("ada-once")
    assert "ada-once" not in bench.cloud.key_names()
    assert "ada-once" in refusal.value.reason


def a_server_is_stopped_started_and_deleted(bench: Bench) -> None:
    cloud = bench.cloud
    id = cloud.start(bench.order(form="form-acts"))
    bench.wait(cloud, id, "ACTIVE")
    for action, status in (
        (ServerAction.STOP, "SHUTOFF"),
        (ServerAction.START, "ACTIVE"),
        (ServerAction.HARD_REBOOT, "ACTIVE"),
        (ServerAction.SHELVE, "SHELVED_OFFLOADED"),
        (ServerAction.UNSHELVE, "ACTIVE"),
        (ServerAction.REBUILD, "ACTIVE"),
    ):
        cloud.act(id, action)
        bench.wait(cloud, id, status)
    cloud.act(id, ServerAction.DELETE)
    bench.wait(cloud, id, "")
    cloud.act(id, ServerAction.DELETE)


def ssh_is_let_in_when_asked(bench: Bench) -> None:
    cloud = bench.cloud
    id = cloud.start(bench.order(form="form-ssh"))
    bench.wait(cloud, id, "ACTIVE")
    assert not cloud.admits_ssh(id)
    cloud.admit_ssh(id)
    assert cloud.admits_ssh(id)
    cloud.admit_ssh(id)
    cloud.act(id, ServerAction.DELETE)


def there_is_no_server_of_others(bench: Bench) -> None:
    assert bench.cloud.server(NOBODY_S) is None


RULES = (
    a_token_that_is_not_valid_opens_nothing,
    a_server_is_started_with_what_was_chosen,
    the_server_of_a_form_is_found_whatever_its_name,
    an_image_says_who_logs_in,
    a_name_of_a_key_is_taken_once,
    a_server_is_stopped_started_and_deleted,
    ssh_is_let_in_when_asked,
    there_is_no_server_of_others,
)
