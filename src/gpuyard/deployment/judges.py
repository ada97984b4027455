"""Judges the tasks of a deployment, a function for each stage: done, to do, later or blocked, and why. Pure.

A judge goes by the observed state. The journal counts only where that cannot be observed (see planner.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from gpuyard.deployment.interfaces import interface_problem
from gpuyard.deployment.journal import DeployJournal
from gpuyard.deployment.state import DeploymentState, HostState, KollaState, OpenStackState, ServiceState
from gpuyard.deployment.tasks import Judge, TaskStanding, TaskVerdict, command_of
from gpuyard.model.text import counted
from gpuyard.site.schema import Site

CONTAINERS = {
    "control": ("keystone", "nova_api", "nova_conductor", "nova_scheduler", "placement_api"),
    "compute": ("nova_compute",),
}
"""Kolla's containers without which a host with a role is not deployed. Other roles' depend on Kolla's variables."""
HYPERVISOR = frozenset({"nova_compute", "nova_libvirt"})
"""Containers with one of which a host has servers, which a reboot would end, whether the container runs or not."""
Observed = TypeVar("Observed", KollaState, OpenStackState, ServiceState)
JudgeOf = Callable[[Site, DeploymentState, Observed, str], TaskVerdict]
"""Judges the object, by what was observed of one part of the world."""


def _done(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.DONE, says)


def _due(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.DUE, says)


def _later(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.LATER, says)


def _blocked(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.BLOCKED, says)


def judge_look(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    assert site.deploy is not None
    host = state.hosts.get(name)
    if host is None:
        return _later("nobody has looked at it")
    if host.problem:
        for stage in ("reboot", "restart"):
            entry = journal.last(stage, name)
            if entry is not None and journal.is_open(stage, name):
                return _due(f"a reboot was asked for at {entry.at}: wait until it is back")
        return _blocked(host.problem)
    if host.name.split(".")[0] != name.split(".")[0]:
        return _blocked(
            f"it calls itself {host.name!r}, and so would Nova: write that name in the site file, or there "
            f"'hostnamectl set-hostname {name}'"
        )
    return _cut_off(site, state, [name]) or _done("it answers")


def _cut_off(site: Site, state: DeploymentState, hosts: Collection[str]) -> TaskVerdict | None:
    """Block a step when Kolla could not work on the interfaces of these hosts. Each step on the way there asks, since a
    run may begin with any of them. All hosts have been observed."""
    assert site.deploy is not None
    problems = [interface_problem(site.deploy, name, state.hosts[name], state.kolla) for name in hosts]
    return _blocked(*filter(None, problems)) if any(problems) else None


def _unseen(state: DeploymentState, name: str) -> HostState | None:
    """Return the observed state of a host; None when the host did not answer."""
    host = state.hosts.get(name)
    return None if host is None or host.problem else host


def judge_prepare(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(state, name)
    if host is None:
        return _later()
    if host.refusals:
        return _blocked(*host.refusals)
    if host.changes:
        return _due(*host.changes)
    if not host.given:
        assert site.deploy is not None
        check = command_of(site.deploy, "gpuyard host check{by_ssh}", name)
        return _blocked(f"there is no GPU that could be given away; '{check}' says why")
    return _done(f"{counted(len(host.given), 'PCI function')} go to VMs")


def judge_reboot(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(state, name)
    if host is None:
        return _later()
    if not host.pending:
        return _later(*host.reboot_later) if host.changes and host.reboot_later else _done("nothing waits for one")
    if shown := _shows_servers(host):
        return _blocked(
            f"its servers would go down ({', '.join(shown)}): empty it ('gpuyard host maintenance'), reboot it "
            f"yourself; what waits: {', '.join(host.pending)}"
        )
    return _reboot_of(host, host.pending)


def _shows_servers(host: HostState) -> list[str]:
    """Return signs that a host has servers, or may have: up to three processes, and Kolla's containers."""
    return [*host.hypervisor[:3], *sorted(HYPERVISOR & (host.containers | host.stopped))]


def _reboot_of(host: HostState, why: Sequence[str]) -> TaskVerdict:
    if host.here:
        return _blocked("this is the machine that you type on: reboot it yourself, and then type the same again")
    if host.engine_problem:
        return _blocked(
            f"{host.engine_problem}: whether servers run there is not known; mend that, or reboot it yourself"
        )
    return _due(*why)


def judge_record(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    recording = site.hosts[name].recording
    if name in state.recorded:
        return _done(f"{recording} is there")
    host = _unseen(state, name)
    if host is None or host.changes or host.pending:
        return _later(recording)
    return _due(f"+ {recording}")


def judge_verify(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(state, name)
    if host is None or host.changes or host.pending or name not in state.recorded:
        return _later()
    if host.faults:
        return _blocked(*host.faults)
    return _done(f"{counted(len(host.given), 'PCI function')} can be opened as QEMU does")


def _of(pick: Callable[[DeploymentState], Observed | None]) -> Callable[[JudgeOf[Observed]], Judge]:
    """Make a judge of one observed part of the state. Until the part was observed its tasks come later; a problem of
    the part as a whole blocks them."""

    def of_seen(judge: JudgeOf[Observed]) -> Judge:
        def verdict(
            site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
        ) -> TaskVerdict:
            observed = pick(state)
            if observed is None:
                return _later()
            return _blocked(observed.problem) if observed.problem else judge(site, state, observed, name)

        return verdict

    return of_seen


@_of(lambda state: state.kolla)
def judge_machines(site: Site, state: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if kolla.machine_refusals:
        return _blocked(*kolla.machine_refusals)
    return _due(*kolla.machines) if kolla.machines else _done("as the site file says")


@_of(lambda state: state.kolla)
def judge_passwords(site: Site, state: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if kolla.passwords_refusal:
        return _blocked(kolla.passwords_refusal)
    if kolla.passwords_mode:
        return _due(f"their file has mode {kolla.passwords_mode}: others than its owner and group will not read it")
    return _done("each has been made") if kolla.passwords else _due("those that are missing; the others stay")


@_of(lambda state: state.kolla)
def judge_render(site: Site, state: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if missing := [host for host in site.hosts if host not in state.recorded]:
        return _later(f"the recording of {', '.join(missing)} comes first")
    if state.site_problem:
        return _blocked(*state.site_problem.splitlines())
    if kolla.render_refusals:
        return _blocked(*kolla.render_refusals)
    if kolla.rendered is None:
        return _later("the inventory comes first")
    return _due(*kolla.rendered) if kolla.rendered else _done("as the site file says")


@_of(lambda state: state.kolla)
def judge_collection(site: Site, state: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if not kolla.collection:
        return _due("+ openstack.kolla, from its git repository")
    if not kolla.collection_current:
        return _due("~ openstack.kolla: it was not installed by what this kolla-ansible requires")
    return _done("Ansible has openstack.kolla of this release")


def judge_bootstrap(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    """Each host for itself, since Kolla's bootstrap-servers can restart all containers of a host that runs."""
    host = _unseen(state, name)
    if host is None:
        return _later()
    if problem := _cut_off(site, state, [name]):
        return problem
    if host.engine:
        return _open(journal, "bootstrap-servers", [name]) or _done("it has a container engine")
    if others := _running_controllers(site, state, name):
        return _blocked(
            f"it would be a further control host of a cloud that runs: the other ones ({', '.join(others)}) need it in "
            "their /etc/hosts, and bootstrap-servers can restart their containers; run 'kolla-ansible "
            f"bootstrap-servers --limit {name},{others[0]}' yourself, with one of them at a time"
        )
    return _due("it has no container engine")


def _running_controllers(site: Site, state: DeploymentState, name: str) -> list[str]:
    """The other control hosts that have containers already, where a host is to be a control host."""
    assert site.deploy is not None
    control = site.deploy.with_role("control")
    return [
        host for host in control if name in control and (host_state := _unseen(state, host)) and host_state.containers
    ]


def _open(journal: DeployJournal, stage: str, hosts: Collection[str]) -> TaskVerdict | None:
    entry = journal.left_open(stage, hosts)
    if entry is not None:
        return _due(f"it was begun, and has not come to a good end ({entry.happening.value} at {entry.at})")
    return None


def judge_restart(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(state, name)
    if host is None:
        return _later()
    in_use = bool(host.containers or _shows_servers(host))
    if host.restart_problem and in_use:
        return _done(f"{host.restart_problem}; containers or servers are there, so a reboot is yours")
    if host.restart_problem:
        return _blocked(f"{host.restart_problem}, and then the same again")
    if not host.restart:
        return _done("no package asks for one")
    if in_use:
        return _done("a package asks for one; containers or servers are there, so that is yours")
    return _reboot_of(host, ("a package asks for it",))


def judge_prechecks(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    deploy = judge_deploy(site, state, journal, name, hosts)
    if deploy.standing is TaskStanding.DONE:
        return _done("all is deployed")
    if deploy.standing is TaskStanding.BLOCKED and (problem := _cut_off(site, state, hosts)):
        return problem
    return _done("passed in this run") if journal.ended_in_this_run("prechecks") else _due("changes nothing")


def judge_deploy(
    site: Site, state: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    if not all(_unseen(state, host) for host in hosts):
        return _later()
    if problem := _cut_off(site, state, hosts):
        return problem
    if broken := [
        f"{host}: {host_state.engine_problem}" for host in hosts if (host_state := state.hosts[host]).engine_problem
    ]:
        return _blocked(*broken)
    if old := [
        f"{host} runs {release}" for host in hosts for release in sorted(state.hosts[host].releases - {site.release})
    ]:
        return _blocked(
            f"{', '.join(old)}, and the site file says 'release: {site.release}': Kolla has 'upgrade' for that, which "
            "gpuyard does not run. Type 'gpuyard deploy run --until install-deps', then 'kolla-ansible upgrade' with "
            "gpuyard-inventory, then this again"
        )
    if missing := list(_missing(site, state, hosts)):
        return _due(*missing)
    return (
        _open(journal, "deploy", hosts)
        or _changed_since(state.kolla, journal, hosts)
        or _done("the services that a host needs for its roles run")
    )


def _changed_since(kolla: KollaState | None, journal: DeployJournal, hosts: Collection[str]) -> TaskVerdict | None:
    """Judge a deployment due when what the hosts were deployed from has changed since, by gpuyard or by others. Changes
    of others show only in the digest, which the journal keeps."""
    if kolla is None:
        return None
    if kolla.machines:
        return _due("inventory or variables change before it")
    for host in hosts:
        entry = journal.last_of("deploy", host)
        if entry is not None and entry.about and entry.about != kolla.digest:
            return _due(f"inventory or variables have changed since {host} was deployed to at {entry.at}")
        if entry is None and (written := journal.last("machines")) is not None:
            return _due(f"inventory or variables were written at {written.at}, and {host} was not deployed to since")
    return None


def _missing(site: Site, state: DeploymentState, hosts: Collection[str]) -> Iterator[str]:
    assert site.deploy is not None
    for host in hosts:
        required = [name for role in site.deploy.hosts[host].roles for name in CONTAINERS.get(role, ())]
        if lost := [name for name in required if name not in state.hosts[host].containers]:
            yield f"{host}: {', '.join(lost)}"


@_of(lambda state: state.kolla)
def judge_post_deploy(site: Site, state: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    return _done("clouds.yaml is there") if kolla.credentials else _due("+ clouds.yaml, for the administrator")


@_of(lambda state: state.cloud)
def judge_limits(site: Site, state: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    if not site.gpu_quotas:
        return _done("gpu_quotas is off")
    return _done("it may") if cloud.reads_limits else _due("+ role reader on the system for user nova")


@_of(lambda state: state.cloud)
def judge_apply(site: Site, state: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    if cloud.refusals:
        return _blocked(*cloud.refusals)
    return _due(*cloud.steps) if cloud.steps else _done("the cloud is as the site file says")


@_of(lambda state: state.cloud)
def judge_image(site: Site, state: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    return _done("servers get one") if cloud.images.get(name) else _due(f"+ image {name}, built, checked and promoted")


@_of(lambda state: state.service)
def judge_serve(site: Site, state: DeploymentState, service: ServiceState, name: str) -> TaskVerdict:
    if service.changes:
        return _due(*service.changes)
    return _done("it serves what the site file says") if service.active else _due("start it, and at each boot")


@_of(lambda state: state.service)
def judge_accept(site: Site, state: DeploymentState, service: ServiceState, name: str) -> TaskVerdict:
    if service.waiting is None:
        return _later("the portal knows, once it serves")
    return _due(*service.waiting) if service.waiting else _done("no GPU waits for it")
