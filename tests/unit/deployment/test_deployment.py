"""A deployment is planned from what is seen, and goes on after a kill at any point as if there had been none."""

from __future__ import annotations

import errno
import functools
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry, JournalFile, parse_journal
from gpuyard.deployment.kolla.site_inventory import bridges_hypervisors, variables_of
from gpuyard.deployment.kolla.variables import Variable
from gpuyard.deployment.planner import STAGES, plan_deployment
from gpuyard.deployment.runner import Deployment, stop_at_blocked
from gpuyard.deployment.state import DeploymentState, HostState, KollaState
from gpuyard.deployment.tasks import EVERYTHING, DeployRange, DeployTask, TaskStanding
from gpuyard.host.network import HostInterface
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.site.load import read_site
from gpuyard.site.problems import SiteError
from tests.support.deployments import NOTHING_YET, NOW, FakeHost, FakeWorld, Killed, run_once, site

STAGE_NAMES = [stage.name for stage in STAGES]


def plan_of(
    world: FakeWorld, journal: DeployJournal = NOTHING_YET, deploy_range: DeployRange = EVERYTHING
) -> list[DeployTask]:
    deployment = Deployment(world.site, world, deploy_range, lambda: NOW)
    return list(deployment.plan(deployment.first_look(), journal))


def task(tasks: list[DeployTask], title: str) -> DeployTask:
    return next(task for task in tasks if task.title == title)


@functools.cache
def finished() -> FakeWorld:
    """After one run that nobody disturbed."""
    world = FakeWorld(site())
    with tempfile.TemporaryDirectory() as folder:
        run_once(world, Path(folder) / "journal")
    return world


def test_bare_machines_become_a_cloud_step_by_step(tmp_path: Path) -> None:
    world = FakeWorld(site())
    screen = run_once(world, tmp_path / "journal")
    assert screen.shown == [
        "2/17 prepare gpu1 prepare gpu2: done",
        "3/17 reboot gpu1 reboot gpu2: done",
        "4/17 record gpu1 record gpu2: done",
        "6/17 machines: done",
        "7/17 passwords: done",
        "8/17 render: done",
        "9/17 install-deps: done",
        "10/17 bootstrap-servers ctl bootstrap-servers gpu1 bootstrap-servers gpu2: done",
        "11/17 restart ctl restart gpu1 restart gpu2: done",
        "12/17 prechecks: done",
        "13/17 deploy: done",
        "14/17 post-deploy: done",
        "15/17 limits: done",
        "16/17 apply: done",
        "17/17 image ml: done",
    ]
    assert {task.standing for task in plan_of(world)} == {TaskStanding.DONE}
    assert run_once(world, tmp_path / "journal", "again").shown == []
    assert run_once(world, tmp_path / "lost journal", "again").shown == []


def test_a_plan_says_of_each_step_why_it_is_one_and_what_it_changes() -> None:
    tasks = plan_of(FakeWorld(site()))
    assert [task.stage for task in tasks if task.object in ("", "gpu1", "ml")] == STAGE_NAMES[:-2]
    assert all(task.reason and task.how for task in tasks)
    assert task(tasks, "prepare gpu1").verdict.says == ("+ file list", "~ group 1", "~ run update-grub")
    assert task(tasks, "reboot gpu1").standing is TaskStanding.LATER
    assert task(tasks, "reboot gpu1").verdict.says == ("kernel option iommu=pt",)
    assert task(tasks, "deploy").verdict.says == (
        "ctl: keystone, nova_api, nova_conductor, nova_scheduler, placement_api",
        "gpu1: nova_compute",
        "gpu2: nova_compute",
    )
    assert [task.title for task in tasks if task.standing is TaskStanding.DUE] == ["prepare gpu1", "prepare gpu2"]


def test_killed_before_any_change_the_next_run_comes_to_the_same_end(tmp_path: Path) -> None:
    for left in range(finished().changes):
        world, journal = FakeWorld(site(), left=left), tmp_path / f"journal-{left}"
        with pytest.raises(Killed):
            run_once(world, journal, "first", keeps=left)
        world.left = None
        run_once(world, journal, "second")
        assert world.state() == finished().state(), left
        assert {task.standing for task in plan_of(world)} == {TaskStanding.DONE}
    assert left > 50


@given(
    kills=st.lists(st.integers(0, 40), max_size=6),
    prepared=st.sets(st.sampled_from(["gpu1", "gpu2"])),
    pending=st.sets(st.sampled_from(["gpu1", "gpu2"])),
    engines=st.sets(st.sampled_from(["ctl", "gpu1", "gpu2"])),
    machines=st.booleans(),
    collection=st.booleans(),
    keeps=st.integers(0, 200),
)
def test_from_any_half_done_world_and_any_kills_the_end_is_the_same(
    kills: list[int],
    prepared: set[str],
    pending: set[str],
    engines: set[str],
    machines: bool,
    collection: bool,
    keeps: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = FakeWorld(site(), machines=machines, collection=collection)
        for host in prepared:
            world.hosts[host].steps = []
        for host in pending:
            world.hosts[host].pending = True
        for host in engines:
            world.hosts[host].engine = True
        for number, left in enumerate(kills):
            world.left = left
            try:
                run_once(world, folder / "journal", f"run{number}", keeps=keeps)
            except Killed:
                continue
        world.left = None
        run_once(world, folder / "journal", "last")
        assert world.state() == finished().state()
        assert world.passwords == [0]
        assert {task.standing for task in plan_of(world)} == {TaskStanding.DONE}


def test_a_run_of_kolla_that_was_killed_when_its_containers_ran_already_is_run_again(tmp_path: Path) -> None:
    world = FakeWorld(site())
    run_once(world, tmp_path / "journal", deploy_range=DeployRange(last="prechecks"))
    # Begun is written, three hosts get their containers, and one of them is finished.
    world.left = 1 + 1 + 3 + 1
    with pytest.raises(Killed):
        run_once(world, tmp_path / "journal", "killed")
    assert all(host.containers for host in world.hosts.values())
    assert not all(host.ready for host in world.hosts.values())
    world.left = None
    journal = JournalFile(tmp_path / "journal").read()
    assert task(plan_of(world, journal), "deploy").verdict.says == (
        "it was begun, and has not come to a good end (begun at 2026-11-23T09:00:00+00:00)",
    )
    assert run_once(world, tmp_path / "journal", "next").shown[0] == "12/17 prechecks: done"
    assert all(host.ready for host in world.hosts.values())


def test_a_run_for_one_host_does_not_end_what_was_begun_for_all(tmp_path: Path) -> None:
    world = FakeWorld(site())
    run_once(world, tmp_path / "journal", deploy_range=DeployRange(last="prechecks"))
    world.left = 1 + 1 + 3 + 1
    with pytest.raises(Killed):
        run_once(world, tmp_path / "journal", "killed")
    world.left = None
    run_once(world, tmp_path / "journal", "limited", deploy_range=DeployRange(hosts=("gpu2",)))
    journal = JournalFile(tmp_path / "journal").read()
    assert task(plan_of(world, journal, DeployRange(hosts=("gpu2",))), "deploy").standing is TaskStanding.DONE
    for left in (DeployRange(hosts=("gpu1",)), EVERYTHING):
        assert "has not come to a good end" in task(plan_of(world, journal, left), "deploy").verdict.says[0]
    run_once(world, tmp_path / "journal", "limited", deploy_range=DeployRange(hosts=("gpu1", "ctl")))
    assert task(plan_of(world, JournalFile(tmp_path / "journal").read()), "deploy").standing is TaskStanding.DONE


def test_what_is_deployed_from_changes_and_deploy_is_due_again_for_each_host(tmp_path: Path) -> None:
    world, journal = FakeWorld(site()), tmp_path / "journal"
    run_once(world, journal)
    world.variables = "with Cinder"
    says = task(plan_of(world, JournalFile(journal).read()), "deploy").verdict.says
    assert says == ("inventory or variables have changed since ctl was deployed to at 2026-11-23T09:00:00+00:00",)
    run_once(world, journal, "limited", deploy_range=DeployRange(hosts=("gpu2",)))
    left = JournalFile(journal).read()
    assert task(plan_of(world, left, DeployRange(hosts=("gpu2",))), "deploy").standing is TaskStanding.DONE
    assert task(plan_of(world, left), "deploy").standing is not TaskStanding.DONE
    assert run_once(world, journal, "all").shown == ["12/17 prechecks: done", "13/17 deploy: done"]
    assert run_once(world, journal, "again").shown == []
    # Without a journal nobody knows from what it was deployed, until gpuyard itself changes that.
    assert task(plan_of(world), "deploy").standing is TaskStanding.DONE
    world.machines = False
    assert task(plan_of(world), "deploy").verdict.says == ("inventory or variables change before it",)
    lost = tmp_path / "lost journal"
    assert run_once(world, lost, "lost", deploy_range=DeployRange(last="machines")).shown == ["6/6 machines: done"]
    assert run_once(world, lost, "on").shown == ["12/17 prechecks: done", "13/17 deploy: done"]


def test_a_host_that_comes_later_is_the_only_one_that_is_bootstrapped(tmp_path: Path) -> None:
    world, journal = FakeWorld(site()), tmp_path / "journal"
    run_once(world, journal)
    world.hosts["gpu2"] = FakeHost(steps=[])
    world.variables = "with gpu2 again"
    shown = run_once(world, journal, "later").shown
    assert shown == [
        "10/17 bootstrap-servers gpu2: done",
        "11/17 restart gpu2: done",
        "12/17 prechecks: done",
        "13/17 deploy: done",
    ]


def test_a_control_host_that_comes_later_is_for_people_to_bootstrap(tmp_path: Path) -> None:
    deploy = json.loads(site().model_dump_json())["deploy"]
    world = FakeWorld(site(deploy={**deploy, "hosts": {**deploy["hosts"], "ctl2": {"roles": ["control"]}}}))
    run_once(world, tmp_path / "journal")
    world.hosts["ctl2"] = FakeHost(steps=[])
    with pytest.raises(
        BlockedError, match=r"bootstrap-servers ctl2: .* \(ctl\) need it in their /etc/hosts.*--limit ctl2,ctl'"
    ):
        run_once(world, tmp_path / "journal", "later")
    assert not world.hosts["ctl2"].engine


def test_another_release_is_an_upgrade_and_no_deployment() -> None:
    world = finished()
    tasks = seen(world, "gpu1", releases=frozenset({"2025.2", "2026.1"}))
    assert task(tasks, "deploy").standing is TaskStanding.BLOCKED
    assert "gpu1 runs 2025.2, and the site file says 'release: 2026.1'" in task(tasks, "deploy").verdict.says[0]
    assert task(seen(world, "gpu1", releases=frozenset({"2026.1"})), "deploy").standing is TaskStanding.DONE


def test_passwords_that_everybody_may_read_are_to_do() -> None:
    world = finished()
    deployment = Deployment(world.site, world, EVERYTHING, lambda: NOW)
    state = deployment.first_look()
    assert state.kolla is not None
    state = replace(state, kolla=replace(state.kolla, passwords_mode="0644"))
    verdict = task(list(deployment.plan(state, NOTHING_YET)), "passwords").verdict
    assert verdict.standing is TaskStanding.DUE
    assert verdict.says == ("their file has mode 0644: others than its owner and group will not read it",)


def test_a_line_that_the_disk_takes_only_a_part_of_is_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, write = JournalEntry("r", "deploy", "", Happening.BEGUN, "t"), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:7]))
    with JournalFile(tmp_path / "journal").writer() as writer:
        writer.write(entry)
    assert JournalFile(tmp_path / "journal").read().last("deploy") == entry


def test_a_disk_that_is_full_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(descriptor: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JournalFile(tmp_path / "journal").writer() as writer:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(GpuyardError, match="the journal cannot be written: No space left on device"):
            writer.write(JournalEntry("r", "deploy", "", Happening.BEGUN, "t"))


def test_what_fails_is_named_with_host_step_and_reason_and_is_the_last(tmp_path: Path) -> None:
    world = FakeWorld(site(), fails={"prepare gpu2"})
    with pytest.raises(GpuyardError, match=r"^prepare gpu2: it does not want to$") as caught:
        run_once(world, tmp_path / "journal")
    assert caught.value.exit_code == 1
    assert world.hosts["gpu1"].steps == []
    assert world.hosts["gpu1"].boots == 1
    last = JournalFile(tmp_path / "journal").read().last("prepare", "gpu2")
    assert last is not None
    assert (last.happening, last.about) == (Happening.FAILED, "it does not want to")
    world.fails.clear()
    assert run_once(world, tmp_path / "journal", "next").shown[0] == "2/17 prepare gpu2: done"


def test_what_was_carried_out_and_is_still_to_do_is_an_error_and_no_loop(tmp_path: Path) -> None:
    class Stubborn(FakeWorld):
        def _machines(self, name: str) -> None:
            pass

    with pytest.raises(GpuyardError, match="machines was carried out, and is still to do: \\+ inventory"):
        run_once(Stubborn(site()), tmp_path / "journal")


def seen(world: FakeWorld, host: str, **changes: object) -> list[DeployTask]:
    deployment = Deployment(world.site, world, DeployRange(), lambda: NOW)
    state = deployment.first_look()
    hosts = {**state.hosts, host: replace(state.hosts[host], **changes)}  # type: ignore[arg-type]
    return list(deployment.plan(replace(state, hosts=hosts), DeployJournal()))


@pytest.mark.parametrize(
    ("changes", "title", "reason"),
    [
        ({"problem": "unreachable: no route to host"}, "look gpu1", "unreachable: no route to host"),
        ({"name": "localhost"}, "look gpu1", "it calls itself 'localhost', and so would Nova"),
        (
            {"interfaces": (HostInterface("lo"), HostInterface("eth0"))},
            "look gpu1",
            "gpu1 has no network interface eno1; it has lo, eth0: write the right one as deploy.hosts.gpu1.interface",
        ),
        ({"interfaces_problem": "ip is not there"}, "look gpu1", "the network interfaces of gpu1 are not known: ip"),
        ({"refusals": ("group 19 (27:00.0) is in use",)}, "prepare gpu1", "is in use"),
        ({"changes": ()}, "prepare gpu1", "gpuyard host check --ssh gpu1"),
        (
            {"changes": (), "pending": ("x",), "containers": frozenset({"nova_compute"})},
            "reboot gpu1",
            "its servers would go down",
        ),
        (
            {"changes": (), "pending": ("x",), "containers": frozenset({"nova_libvirt"})},
            "reboot gpu1",
            "its servers would go down",
        ),
        ({"changes": (), "pending": ("x",), "stopped": frozenset({"nova_libvirt"})}, "reboot gpu1", "(nova_libvirt)"),
        (
            {"changes": (), "pending": ("x",), "hypervisor": ("qemu-kvm (process 7)",)},
            "reboot gpu1",
            "its servers would go down (qemu-kvm (process 7)): empty it",
        ),
        (
            {"changes": (), "pending": ("x",), "engine_problem": "docker ps did not answer within 30 s"},
            "reboot gpu1",
            "docker ps did not answer within 30 s: whether servers run there is not known",
        ),
        (
            {"changes": (), "restart": True, "engine_problem": "docker ps did not answer within 30 s"},
            "restart gpu1",
            "docker ps did not answer within 30 s: whether servers run there is not known",
        ),
        ({"changes": (), "pending": ("x",), "here": True}, "reboot gpu1", "the machine that you type on"),
        (
            {"changes": (), "restart_problem": "not known: type 'dnf install dnf-utils' there"},
            "restart gpu1",
            "type 'dnf install dnf-utils' there, and then the same again",
        ),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_is_done(
    tmp_path: Path, changes: dict[str, object], title: str, reason: str
) -> None:
    deploy_task = task(seen(FakeWorld(site()), "gpu1", **changes), title)
    assert deploy_task.standing is TaskStanding.BLOCKED
    assert reason in deploy_task.verdict.says[0]


def test_a_host_in_use_is_deployed_to_whether_or_not_its_packages_say_that_they_ask_for_a_reboot() -> None:
    problem = {"changes": (), "restart_problem": "not known: no dnf-utils"}
    for busy in ({"containers": frozenset({"keystone"})}, {"hypervisor": ("qemu-kvm (process 7)",)}):
        deploy_task = task(seen(FakeWorld(site()), "gpu1", **problem, **busy), "restart gpu1")
        assert deploy_task.standing is TaskStanding.DONE
        assert deploy_task.verdict.says == (
            "not known: no dnf-utils; containers or servers are there, so a reboot is yours",
        )


def test_a_host_on_its_way_up_after_our_reboot_is_waited_for_and_any_other_one_is_missed() -> None:
    world = FakeWorld(site())
    sight = DeploymentState(hosts={name: HostState(problem="unreachable: timed out") for name in world.hosts})
    entry = JournalEntry("r", "reboot", "gpu1", Happening.BEGUN, "2026-11-23T09:00:00+00:00", "gpu1-1")
    tasks = list(plan_deployment(world.site, sight, DeployJournal((entry,))))
    assert task(tasks, "look gpu1").standing is TaskStanding.DUE
    assert task(tasks, "look gpu2").standing is TaskStanding.BLOCKED


def test_a_faulty_gpu_is_not_offered() -> None:
    world = FakeWorld(site(), recorded={"gpu1", "gpu2"})
    world.hosts["gpu1"].steps = []
    deploy_task = task(seen(world, "gpu1", faults=("27:00.0 cannot be opened",)), "verify gpu1")
    assert (deploy_task.standing, deploy_task.verdict.says) == (TaskStanding.BLOCKED, ("27:00.0 cannot be opened",))


def test_what_the_cloud_says_counts_once_it_is_deployed() -> None:
    world = FakeWorld(site(), credentials=True)
    deployment = Deployment(world.site, world, DeployRange(), lambda: NOW)
    sight = deployment.first_look()
    assert sight.cloud is not None
    down = replace(sight, cloud=replace(sight.cloud, problem="Keystone does not answer"))
    assert task(list(deployment.plan(down, DeployJournal())), "limits").standing is TaskStanding.LATER
    from_limits = Deployment(world.site, world, DeployRange(first="limits"), lambda: NOW)
    assert task(list(from_limits.plan(down, DeployJournal())), "limits").standing is TaskStanding.BLOCKED


def test_a_range_and_a_limit_leave_the_rest_alone(tmp_path: Path) -> None:
    world = FakeWorld(site())
    run_once(world, tmp_path / "journal", deploy_range=DeployRange(last="verify"))
    assert world.recorded == {"gpu1", "gpu2"}
    assert not world.machines
    only = DeployRange("look", "verify", ("gpu2",))
    assert [deploy_task.title for deploy_task in plan_of(world, deploy_range=only)] == [
        "look gpu2",
        "prepare gpu2",
        "reboot gpu2",
        "record gpu2",
        "verify gpu2",
    ]
    whole = {deploy_task.stage for deploy_task in plan_of(world, deploy_range=DeployRange(hosts=("gpu1",)))}
    assert whole & {"post-deploy", "limits", "apply", "image"} == set()
    with pytest.raises(BlockedError, match=r"record gpu1 cannot be done yet: gpu1.json; leave --from and --limit out"):
        run_once(FakeWorld(site()), tmp_path / "other", deploy_range=DeployRange("record", "verify"))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (DeployRange("nonsense"), "there is no step 'nonsense'; there are look, prepare"),
        (DeployRange("deploy", "look"), "step deploy comes after look"),
        (DeployRange(hosts=("gpu9",)), "deploy.hosts has no gpu9; it has ctl, gpu1, gpu2"),
    ],
)
def test_a_range_that_there_is_not_is_refused(wanted: DeployRange, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        plan_of(FakeWorld(site()), deploy_range=wanted)


@given(
    st.lists(
        st.one_of(st.text(max_size=50), st.sampled_from(['{"run": 1}', "[]", "null", '{"stage": []}'])), max_size=9
    )
)
def test_a_journal_of_anything_is_read(lines: list[str]) -> None:
    entry = JournalEntry("r", "deploy", "", Happening.BEGUN, "t", "about")
    journal = parse_journal([*lines, entry.line(), entry.line()[:20]], "r")
    assert journal.last("deploy") == entry
    assert journal.is_open("deploy")
    assert not journal.is_open("post-deploy")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal")
    with (
        file.writer(),
        pytest.raises(GpuyardError, match="another 'gpuyard deploy run', or a program"),
        file.writer(),
    ):
        pass
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def deploy_error(**deploy: object) -> str:
    good = json.loads(site().model_dump_json())["deploy"]
    with pytest.raises(ValidationError) as caught:
        site(deploy={**good, **deploy})
    return str(caught.value)


@pytest.mark.parametrize(
    ("deploy", "reason"),
    [
        ({"vip": "somewhere"}, "'somewhere' is no IP address"),
        ({"variables": {"kolla_base_distro": "rocky"}}, "kolla_base_distro follows from deploy.base"),
        ({"variables": {"keystone_admin_password": "x"}}, "is a secret, and a site file is for everybody"),
        ({"hosts": {"gpu1": {}}}, "deploy.hosts has no gpu2 with the role compute"),
        ({"hosts": {"a": {"roles": ["compute"]}}}, "no host has the role control"),
        ({"vip": None}, "vip is missing: without one the APIs are at the control host's own address"),
        (
            {"hosts": {"a": {"address": "10.0.0.1"}}, "vip": None, "variables": {"enable_proxysql": "yes"}},
            "with enable_proxysql a load balancer would listen at the control host's own address",
        ),
        (
            {"hosts": {"a": {"address": "10.0.0.1"}}, "vip": None, "variables": {"enable_haproxy": "{{ x }}"}},
            "with enable_haproxy a load balancer would listen",
        ),
        (
            {
                "hosts": {"a": {"address": "10.0.0.250"}},
                "variables": {"enable_haproxy": "no", "enable_proxysql": True},
            },
            "vip 10.0.0.250 is the address of a; write one that no machine has",
        ),
        ({"hosts": {"a": {}, "b": {}}, "vip": None}, "vip is missing: a and b share the role control"),
        ({"hosts": {"a": {"address": "localhost"}, "b": {"address": "localhost"}}}, "cannot both be localhost"),
        (
            {"hosts": {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.1"}}},
            "a and b are both at 10.0.0.1; give each its own address",
        ),
        ({"hosts": {"a": {}, "b": {"address": "a"}}}, "a and b are both at a; give each its own address"),
        (
            {"hosts": {"a": {"address": "10.0.0.250"}}},
            "vip 10.0.0.250 is the address of a; write one that no machine has",
        ),
        ({"external_interface": "eno1"}, "interface and external_interface of ctl are both eno1"),
        ({"hosts": {"a": {"interface": "eno2"}}}, "interface and external_interface of a are both eno2"),
        ({"interface": "eno1; reboot"}, "string_pattern_mismatch"),
        ({"hosts": {"a": {"address": "-oProxyCommand=x"}}}, "string_pattern_mismatch"),
    ],
)
def test_machines_that_cannot_be_are_refused(deploy: dict[str, object], reason: str) -> None:
    assert reason in deploy_error(**deploy)


INTERNAL = HostInterface("eno1", ("10.0.0.11", "fd00::11"), default_route=True)
FREE = HostInterface("eno2")


def alone(interfaces: tuple[HostInterface, ...], address: str = "10.0.0.11", **deploy: object) -> str:
    """What look says of a machine that is everything, without a vip."""
    machines = {"interface": "eno1", "external_interface": "eno2", "hosts": {"gpu1": {"address": address}}, **deploy}
    lone_site = site(hosts={"gpu1": {"recording": "gpu1.json"}}, deploy=machines)
    sight = DeploymentState(hosts={"gpu1": HostState(boot_id="b", name="gpu1", interfaces=interfaces)})
    return "; ".join(plan_deployment(lone_site, sight, DeployJournal())[0].verdict.says)


@pytest.mark.parametrize(
    ("interfaces", "reason"),
    [
        (
            (INTERNAL, replace(FREE, addresses=("10.0.0.12",))),
            "external_interface eno2 has the address 10.0.0.12: Kolla",
        ),
        ((INTERNAL, replace(FREE, addresses=("fd00::12",))), "external_interface eno2 has the address fd00::12"),
        ((INTERNAL, replace(FREE, default_route=True)), "external_interface eno2 has the default route"),
        ((INTERNAL, replace(FREE, master="bond0")), "external_interface eno2 is a part of bond0: Kolla would move it"),
        ((INTERNAL,), "gpu1 has no network interface eno2; it has eno1: write the right one as"),
        (
            (replace(INTERNAL, addresses=()), FREE),
            "interface eno1 has no address, and OpenStack's services would listen",
        ),
        (
            (replace(INTERNAL, addresses=("10.1.0.11", "10.0.0.11")), FREE),
            "the address 10.0.0.11 of gpu1 is not the first one of interface eno1, which has 10.1.0.11, 10.0.0.11",
        ),
        (
            (replace(INTERNAL, addresses=("fd00::11",)), FREE),
            "the address 10.0.0.11 of gpu1 is not the first one of interface",
        ),
    ],
)
def test_interfaces_that_would_cut_a_host_off_are_refused(interfaces: tuple[HostInterface, ...], reason: str) -> None:
    assert reason in alone(interfaces)


def test_interfaces_that_fit_are_taken() -> None:
    assert alone((INTERNAL, FREE)) == "it answers"
    # Once Kolla has been there, the interface is a port of Open vSwitch.
    assert alone((INTERNAL, replace(FREE, master="ovs-system"))) == "it answers"
    assert alone((replace(INTERNAL, addresses=("fd00::11",)), FREE), "fd00:0::11") == "it answers"
    two = (replace(INTERNAL, addresses=("10.1.0.11",)), FREE)
    assert alone(two, vip="10.1.0.250") == "it answers"


def test_a_hypervisor_needs_a_free_interface_only_where_kolla_bridges_hypervisors() -> None:
    world = FakeWorld(site())
    busy = (HostInterface("eno1", ("10.0.0.2",)), HostInterface("eno2", ("10.8.0.2",)))
    for bridges, says in ((False, "it answers"), (True, "external_interface eno2 has the address 10.8.0.2")):
        deployment = Deployment(world.site, world, EVERYTHING, lambda: NOW)
        sight = deployment.first_look()
        assert sight.kolla is not None
        hosts = {**sight.hosts, "gpu1": replace(sight.hosts["gpu1"], interfaces=busy)}
        sight = replace(sight, hosts=hosts, kolla=replace(sight.kolla, bridges_hypervisors=bridges))
        assert says in task(list(deployment.plan(sight, DeployJournal())), "look gpu1").verdict.says[0]
    off = bridges_hypervisors(site(), {})
    with_dvr = bridges_hypervisors(site(), {"enable_neutron_dvr": Variable("enable_neutron_dvr", "yes", "globals.yml")})
    deploy = {**json.loads(site().model_dump_json())["deploy"], "variables": {"enable_neutron_provider_networks": True}}
    assert (off, with_dvr, bridges_hypervisors(site(deploy=deploy), {})) == (False, True, True)


@pytest.mark.parametrize("first", ["", "bootstrap-servers", "prechecks", "deploy"])
def test_a_run_that_begins_later_cuts_no_host_off_either(first: str) -> None:
    """Kolla's deploy moves the interface into a bridge, whatever it has (role openvswitch, tasks/post-config.yml)."""
    world = FakeWorld(site())
    deployment = Deployment(world.site, world, DeployRange(first=first), lambda: NOW)
    sight = deployment.first_look()
    busy = (HostInterface("eno1", ("10.0.0.2",)), HostInterface("eno2", ("10.8.0.2",), default_route=True))
    fits = deployment.plan(sight, DeployJournal())
    assert not [fit.title for fit in fits if fit.standing is TaskStanding.BLOCKED]
    sight = replace(sight, hosts={**sight.hosts, "ctl": replace(sight.hosts["ctl"], interfaces=busy)})
    tasks = deployment.plan(sight, DeployJournal())
    titles = ["look ctl", "bootstrap-servers ctl", "prechecks", "deploy"]
    titles = titles[{"": 0, "bootstrap-servers": 1, "prechecks": 2, "deploy": 3}[first] :]
    assert [task.title for task in tasks if task.standing is TaskStanding.BLOCKED] == titles
    with pytest.raises(BlockedError) as raised:
        stop_at_blocked(tasks)
    assert str(raised.value) == (
        f"{', '.join(titles)}: external_interface eno2 has the address 10.8.0.2: Kolla would move it into a bridge, "
        "and cut off whoever reaches the host by it; write one without an address as "
        "deploy.hosts.ctl.external_interface"
    )


def test_a_machine_alone_needs_no_virtual_address() -> None:
    lone_site = site(
        hosts={"gpu1": {"recording": "gpu1.json"}},
        deploy={"interface": "eno1", "external_interface": "eno2", "hosts": {"gpu1": {"address": "192.0.2.7"}}},
    )
    assert lone_site.deploy is not None
    assert lone_site.deploy.api_address == "192.0.2.7"
    assert lone_site.deploy.with_role("compute") == lone_site.deploy.with_role("control") == ["gpu1"]


def test_without_a_load_balancer_the_virtual_address_may_be_the_machines_own() -> None:
    for off in (False, "no"):
        own = {"vip": "192.0.2.7", "variables": {"enable_haproxy": off}, "hosts": {"gpu1": {"address": "192.0.2.7"}}}
        lone_site = site(
            hosts={"gpu1": {"recording": "gpu1.json"}},
            deploy={"interface": "eno1", "external_interface": "eno2", **own},
        )
        assert lone_site.deploy is not None
        assert lone_site.deploy.api_address == "192.0.2.7"
        assert variables_of(lone_site)["enable_proxysql"] is False
        assert variables_of(lone_site)["enable_haproxy"] == off


def test_what_is_run_on_a_host_is_shown_with_what_ssh_connects_to() -> None:
    hosts = {
        "ctl": {"roles": ["control", "network"], "address": "10.0.0.1"},
        "gpu1": {"roles": ["compute"], "address": "10.0.0.11"},
        "gpu2": {"roles": ["compute"], "address": "localhost"},
    }
    machines = {"interface": "eno1", "external_interface": "eno2", "vip": "10.0.0.250", "user": "ada", "hosts": hosts}
    how = {task.title: task.how for task in plan_deployment(site(deploy=machines), DeploymentState(), DeployJournal())}
    assert how["look ctl"] == "gpuyard host check --ssh ada@10.0.0.1"
    assert how["verify gpu1"] == "gpuyard host verify --ssh ada@10.0.0.11"
    assert how["reboot gpu1"] == "ssh ada@10.0.0.11 systemctl reboot"
    assert how["prepare gpu2"] == "gpuyard host apply"
    assert how["reboot gpu2"] == "systemctl reboot"


def test_kolla_that_cannot_be_used_is_in_the_way_from_the_start() -> None:
    world = FakeWorld(site())
    deployment = Deployment(world.site, world, DeployRange(), lambda: NOW)
    sight = replace(deployment.first_look(), kolla=KollaState(problem="kolla-ansible is not there"))
    blocked = [
        deploy_task.title
        for deploy_task in deployment.plan(sight, DeployJournal())
        if deploy_task.standing is TaskStanding.BLOCKED
    ]
    assert blocked[0] == "machines"


def test_a_wrong_word_in_the_file_is_named_with_its_line_and_what_to_write(tmp_path: Path) -> None:
    document = json.loads(site().model_dump_json(exclude_none=True, include={"site", "hosts", "pools", "deploy"}))
    document["deploy"]["hosts"]["gpu1"]["address"] = "-oProxyCommand=x"
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps(document, indent=1))
    with pytest.raises(SiteError, match=r"site.yaml:\d+: deploy.hosts.gpu1.address: .* write a name or an address"):
        read_site(path)
