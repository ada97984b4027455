"""``gpuyard gpu why`` on hosts that take some flavors only; on a lab of its own, as the example site has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from gpuyard.openstack.api import connect
from gpuyard.site.load import load_site
from gpuyard_lab import control, portal
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.integration.conftest import start_lab
from tests.support.asking import Cloud, kinds, remedy

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HYPER18 = "hyper18"


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A lab whose hosts take only the site's flavors, some of them only in one aggregate."""
    recordings = EXAMPLE_SITE.parent / "recordings"
    small = {"vcpus": 2, "ram": "4 GiB", "disk": "20 GiB", "gpus": {"k40c": 1}}
    document = {
        "site": "apart",
        "exclusive": True,
        "hosts": {
            HYPER18: {"recording": str(recordings / "hyper18.json")},
            "c4130": {"recording": str(recordings / "quadro-k4200.json")},
        },
        "pools": {"k40c": {"models": ["10de:1024"]}, "k4200": {"models": ["10de:11b4"]}},
        "aggregates": {"cold": {"hosts": [HYPER18]}, "hot": {"hosts": ["c4130"]}},
        "flavors": {"right": {**small, "aggregates": ["cold"]}},
        "projects": {"demo": {"gpus": {"k40c": 4}}},
    }
    folder = tmp_path_factory.mktemp("apart")
    site = folder / "site.yaml"
    site.write_text(json.dumps(document))
    running = start_lab(folder / "lab", site=site)
    try:
        loaded = load_site(site)
        portal.apply_site(running.lab, loaded)
        operator, user = (connect(name, running.lab.clouds_file) for name in (ADMIN_CLOUD, DEMO_CLOUD))
        yield Cloud(operator, user, Exercise(operator, user, loaded.compiled), loaded)
    finally:
        control.down(running.settings)


@pytest.fixture
def own(apart: Cloud) -> Callable[[str, dict[str, str]], None]:
    """Makes a flavor that is not the site's, or gives it more extra specs."""

    def make(name: str, specs: dict[str, str]) -> None:
        api = apart.operator
        if name not in {row["id"] for row in api.get("compute", "/flavors")["flavors"]}:
            body = {"id": name, "name": name, "vcpus": 1, "ram": 512, "disk": 1}
            api.request("POST", "compute", "/flavors", {"flavor": body})
        api.request("POST", "compute", f"/flavors/{name}/os-extra_specs", {"extra_specs": specs})

    return make


def test_a_flavor_for_another_aggregate(apart: Cloud, own: Callable[[str, dict[str, str]], None]) -> None:
    specs = dict(next(iter(apart.loaded.compiled.flavors)).extra_specs)
    (key,) = (name for name in specs if name.startswith("aggregate_instance_extra_specs:"))
    right = specs[key]
    own("other", {**specs, key: right.replace("cold", "hot")})
    explanation = apart.refuses("other")
    assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"aggregate"})
    assert explanation.others == ("c4130",)
    own("other", {key: right})
    apart.exercise.delete([apart.starts("other")])
    apart.exercise.delete([apart.starts("right")])


def test_a_flavor_that_is_not_the_site_s_on_isolated_hosts(
    apart: Cloud, own: Callable[[str, dict[str, str]], None]
) -> None:
    own("foreign", {"pci_passthrough:alias": "k40c:1"})
    explanation = apart.refuses("foreign")
    assert (kinds(explanation), kinds(explanation, HYPER18)) == (set(), {"aggregate-isolated"})
    (action,) = remedy(explanation).actions
    missing = action.text.removeprefix("set ").removesuffix("=required in the flavor")
    own("foreign", {missing: "required"})
    apart.exercise.delete([apart.starts("foreign")])
