"""Sites of releases before 2025.1: what is compiled is what they read; what they lack is refused with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.deployment.kolla.folder import read_folder
from gpuyard.deployment.kolla.render import plan_kolla
from gpuyard.nova.release import LARGEST_LIMIT, RELEASES
from gpuyard.provisioning.apply import hidden_limits
from gpuyard.site.objects import LimitObject, limit_objects
from gpuyard.site.problems import SiteError
from gpuyard.site.steps import LimitStep
from tests.support.kolla import kolla_folder
from tests.support.sites import site

OLD = pytest.mark.parametrize("release", ["2024.1", "2024.2"])
NAMED = {"unified_limits_resource_strategy", "unified_limits_resource_list"}


def refused(folder: Path, document: dict[str, Any]) -> str:
    with pytest.raises(SiteError) as caught:
        site(folder, document)
    return str(caught.value)


@pytest.mark.parametrize("release", RELEASES.values(), ids=lambda release: release.name)
def test_limits_are_named_where_nova_reads_the_names(tmp_path: Path, release: Any) -> None:
    options = site(tmp_path, {"release": release.name}).compiled.options_of("nova")
    assert options.values("quota", "driver") == ["nova.quota.UnifiedLimitsDriver"]
    keys = {option.key for option in options.options if option.section == "quota"}
    assert (keys >= NAMED) is release.limits_named
    assert release.limits_named or not keys & NAMED


@OLD
@pytest.mark.parametrize("wish", [{"managed": False}, {"managed": True}, {"live_migratable": True}])
def test_what_came_with_2025_1_is_refused_before(tmp_path: Path, release: str, wish: dict[str, bool]) -> None:
    pools = {"v100": {"models": ["10de:1db4"], **wish}}
    (key,) = wish
    message = f"Nova knows {key} from 2025.1 on, and the site's release is {release}"
    assert message in refused(tmp_path, {"release": release, "pools": pools})
    site(tmp_path, {"release": "2025.1", "pools": pools})


@OLD
def test_virtual_functions_with_a_driver_of_their_own_are_refused(tmp_path: Path, release: str) -> None:
    document = {"release": release, "pools": {"mig": {"models": ["10de:2335"], "kind": "vf", "type": "1414"}}}
    assert "Nova leaves functions with their own driver from 2025.1 on" in refused(tmp_path, document)


@OLD
def test_a_reserve_is_refused_whose_classes_limits_would_refuse(tmp_path: Path, release: str) -> None:
    host = {"recording": "gpu-server.json", "reserve": {"vcpus": 8, "ram": "64 GiB"}}
    reserved: dict[str, Any] = {"release": release, "hosts": {"gpu-server": host}}
    assert f"Nova of {release} refuses what has no limit in Keystone" in refused(tmp_path, reserved)
    site(tmp_path, reserved | {"gpu_quotas": False})
    site(tmp_path, reserved | {"release": "2025.1"})


@OLD
@pytest.mark.parametrize(
    ("wish", "place"),
    [
        ({"limits": {"servers": -1}}, "limits.servers"),
        ({"limits": {"ram": -1, "vcpus": 9000}}, "limits.ram"),
        ({"projects": {"demo": {"disk": -1}}}, "projects.demo.disk"),
    ],
)
def test_no_limit_is_refused_where_nova_takes_it_for_reached(
    tmp_path: Path, release: str, wish: dict[str, Any], place: str
) -> None:
    message = refused(tmp_path, {"release": release, **wish})
    assert (
        f"{place}: Nova of {release} takes -1 for a limit that is reached, and refuses every server; write a" in message
    )
    site(tmp_path, {"release": release, "gpu_quotas": False, **wish})
    site(tmp_path, {"release": "2025.1", **wish})


@pytest.mark.parametrize(("release", "free"), [("2024.2", LARGEST_LIMIT), ("2025.1", -1)])
def test_runners_have_no_limit_in_any_release(tmp_path: Path, release: str, free: int) -> None:
    without_runners = site(tmp_path, {"release": release, "limits": {"servers": 10}}).compiled.site
    with_runners = without_runners.model_copy(update={"runners": SimpleNamespace(project="ci")})
    limits = limit_objects(with_runners, ())
    assert [limit.value for limit in limits if (limit.project, limit.resource) == ("ci", "servers")] == [free]


@pytest.mark.parametrize("release", RELEASES)
def test_limits_that_keystone_does_not_show_are_said(tmp_path: Path, release: str) -> None:
    compiled = site(tmp_path, {"release": release}).compiled
    mine, everybody = LimitObject("servers", 5, "demo"), LimitObject("servers", 5)
    made, default = LimitStep("", None, mine), LimitStep("", None, everybody)
    admin: Any = SimpleNamespace(name="mine", sees_all_limits=False)
    system: Any = SimpleNamespace(name="mine", sees_all_limits=True)
    message = hidden_limits(admin, compiled, [default, made])
    assert bool(message) is (release < "2026.1")
    assert not message or "give cloud mine in clouds.yaml 'gpuyard: {limits: CLOUD}'" in message
    assert not hidden_limits(system, compiled, [made])
    assert not hidden_limits(admin, compiled, [default, LimitStep("", mine, mine)])


@pytest.mark.parametrize("release", ["2024.1", "2024.2", "2025.1", "2025.2"])
def test_kolla_is_not_given_credentials_that_these_cannot_use(tmp_path: Path, release: str) -> None:
    folder = read_folder(kolla_folder(tmp_path / "etc", "---\n"))
    rendering = plan_kolla(site(tmp_path, {"release": release}).compiled, folder)
    assert not any("[oslo_limit]" in (change.after or "") for change in rendering.changes)
    assert any("[oslo_limit] is not written; write it into" in note for note in rendering.notes)
