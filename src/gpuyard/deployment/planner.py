"""Plans the tasks of a deployment, each with its reason and standing. Pure: site, state and journal in, tasks out.

Stages come in a fixed order (STAGES). A task is done when the observed state says so. The journal decides only where
that cannot be observed: a run of Kolla that was begun and has not ended is run again, which Kolla is made for;
prechecks are run in each run, until all is deployed. After the first stage that is not done, due tasks count as
later; so do all unfinished tasks that are judged by the cloud or the service, whose state means nothing before the
deployment is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from gpuyard.deployment.interfaces import interface_problem
from gpuyard.deployment.journal import DeployJournal
from gpuyard.deployment.state import DeploymentState, HostState, KollaState, OpenStackState, ServiceState
from gpuyard.model.errors import UsageError
from gpuyard.model.text import counted
from gpuyard.site.deploy_rules import HERE, SiteDeploy
from gpuyard.site.schema import Site

CONTAINERS = {
    "control": ("keystone", "nova_api", "nova_conductor", "nova_scheduler", "placement_api"),
    "compute": ("nova_compute",),
}
"""Kolla's containers without which a host with a role is not deployed. Other roles' depend on Kolla's variables."""
HYPERVISOR = frozenset({"nova_compute", "nova_libvirt"})
"""Containers with one of which a host has servers, which a reboot would end, whether the container runs or not."""


class TaskStanding(StrEnum):
    DONE = "done"
    DUE = "to do"
    LATER = "later"
    """It is to do, or that is not known yet: something else comes first."""
    BLOCKED = "blocked"


class Part(StrEnum):
    """What there is to look at."""

    HOSTS = "hosts"
    KOLLA = "kolla"
    CLOUD = "cloud"
    SERVICE = "service"


@dataclass(frozen=True)
class TaskVerdict:
    """The standing of a task, and its grounds: what is there, what would be changed, or what blocks it."""

    standing: TaskStanding
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeployTask:
    """One task of one stage. `object` is a host, an image, or empty."""

    stage: str
    object: str
    reason: str
    how: str
    """The command it runs, as one would type it."""
    verdict: TaskVerdict

    @property
    def standing(self) -> TaskStanding:
        return self.verdict.standing

    @property
    def title(self) -> str:
        return f"{self.stage} {self.object}".strip()


Judge = Callable[[Site, DeploymentState, DeployJournal, str, Collection[str]], TaskVerdict]
"""Judges the object, in a deployment to these hosts."""
Observed = TypeVar("Observed", KollaState, OpenStackState, ServiceState)
JudgeOf = Callable[[Site, DeploymentState, Observed, str], TaskVerdict]
"""Judges the object, by what was observed of one part of the world."""


@dataclass(frozen=True)
class DeployStage:
    name: str
    reason: str
    how: str
    judge: Judge
    of: str = ""
    """The kind of objects: hosts, hypervisors, images; portal and acceptance where the site has them; empty for one
    task for all."""
    whole_cloud: bool = False
    """Whether it is left out where a run is limited to some hosts."""
    again: frozenset[Part] = frozenset()
    """Parts that it may have changed, and that are observed again."""

    @property
    def of_parts(self) -> frozenset[Part]:
        """Parts that must be observed to judge it."""
        if self.again in ({Part.CLOUD}, {Part.SERVICE}):
            return self.again
        return frozenset({Part.HOSTS, Part.KOLLA})


@dataclass(frozen=True)
class DeployRange:
    """The wanted part of a deployment. Empty: all."""

    first: str = ""
    last: str = ""
    hosts: tuple[str, ...] = ()


EVERYTHING = DeployRange()


def plan_deployment(
    site: Site, sight: DeploymentState, journal: DeployJournal, wanted: DeployRange = EVERYTHING
) -> tuple[DeployTask, ...]:
    """Return all tasks in their order. Raises UsageError for a stage or a host that there is not."""
    assert site.deploy is not None
    hosts = _hosts(site, wanted)
    tasks: list[DeployTask] = []
    waits_for = ""
    for stage in stages(wanted):
        first = ""
        for name in _objects(site, stage, hosts):
            verdict = stage.judge(site, sight, journal, name, hosts)
            if waits_for and (verdict.standing is TaskStanding.DUE or not stage.of_parts & {HOSTS, KOLLA}):
                # What a cloud says before it is deployed to its end counts for nothing.
                verdict = (
                    verdict if verdict.standing is TaskStanding.DONE else replace(verdict, standing=TaskStanding.LATER)
                )
            task = DeployTask(stage.name, name, stage.reason, _typed(site.deploy, stage.how, name), verdict)
            tasks.append(task)
            if not first and task.standing is not TaskStanding.DONE:
                first = task.title
        waits_for = waits_for or first
    return tuple(tasks)


def _typed(deploy: SiteDeploy, how: str, name: str) -> str:
    """`how` for the object `name`."""
    host = deploy.hosts.get(name)
    login = "" if host is None or host.address == HERE else host.login(name, deploy.user)
    return how.format(name=name, ssh=f"ssh {login} " if login else "", by_ssh=f" --ssh {login}" if login else "")


def stages(wanted: DeployRange = EVERYTHING) -> tuple[DeployStage, ...]:
    """Return the stages of a range. Raises UsageError."""
    names = [stage.name for stage in STAGES]
    for name in (wanted.first, wanted.last):
        if name and name not in names:
            raise UsageError(f"there is no step {name!r}; there are {', '.join(names)}")
    start = names.index(wanted.first) if wanted.first else 0
    end = names.index(wanted.last) + 1 if wanted.last else len(names)
    if start >= end:
        raise UsageError(f"step {wanted.first} comes after {wanted.last}; exchange --from and --until")
    chosen = STAGES[start:end]
    return tuple(stage for stage in chosen if not (stage.whole_cloud and wanted.hosts))


def _hosts(site: Site, wanted: DeployRange) -> tuple[str, ...]:
    assert site.deploy is not None
    for name in wanted.hosts:
        if name not in site.deploy.hosts:
            raise UsageError(f"deploy.hosts has no {name}; it has {', '.join(site.deploy.hosts)}")
    return tuple(name for name in site.deploy.hosts if not wanted.hosts or name in wanted.hosts)


def _objects(site: Site, stage: DeployStage, hosts: Sequence[str]) -> tuple[str, ...]:
    if stage.of == "hosts":
        return tuple(hosts)
    if stage.of == "hypervisors":
        return tuple(host for host in hosts if host in site.hosts)
    if stage.of == "portal":
        return ("",) if site.deploy is not None and site.deploy.portal else ()
    if stage.of == "acceptance":
        rules = site.health.acceptance if site.health is not None else None
        return ("",) if site.deploy is not None and site.deploy.portal and rules and rules.project else ()
    if stage.of == "images":
        return tuple(name for name, image in site.images.items() if image.build is not None)
    return ("",)


def _done(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.DONE, says)


def _due(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.DUE, says)


def _later(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.LATER, says)


def _blocked(*says: str) -> TaskVerdict:
    return TaskVerdict(TaskStanding.BLOCKED, says)


def _look(site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]) -> TaskVerdict:
    assert site.deploy is not None
    host = sight.hosts.get(name)
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
    return _cut_off(site, sight, [name]) or _done("it answers")


def _cut_off(site: Site, sight: DeploymentState, hosts: Collection[str]) -> TaskVerdict | None:
    """What is in the way of Kolla's work on the interfaces of these hosts: asked in each step that brings it nearer,
    since a run may begin with any. All of them have been looked at."""
    assert site.deploy is not None
    found = [interface_problem(site.deploy, name, sight.hosts[name], sight.kolla) for name in hosts]
    return _blocked(*filter(None, found)) if any(found) else None


def _unseen(sight: DeploymentState, name: str) -> HostState | None:
    """What is known of a host; None when it is not there to be asked."""
    host = sight.hosts.get(name)
    return None if host is None or host.problem else host


def _prepare(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(sight, name)
    if host is None:
        return _later()
    if host.refusals:
        return _blocked(*host.refusals)
    if host.changes:
        return _due(*host.changes)
    if not host.given:
        assert site.deploy is not None
        check = _typed(site.deploy, "gpuyard host check{by_ssh}", name)
        return _blocked(f"there is no GPU that could be given away; '{check}' says why")
    return _done(f"{counted(len(host.given), 'PCI function')} go to VMs")


def _reboot(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(sight, name)
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
    """What says that a host has servers, or may have: three of its processes, or Kolla's containers."""
    return [*host.hypervisor[:3], *sorted(HYPERVISOR & (host.containers | host.stopped))]


def _reboot_of(host: HostState, why: Sequence[str]) -> TaskVerdict:
    if host.here:
        return _blocked("this is the machine that you type on: reboot it yourself, and then type the same again")
    if host.engine_problem:
        return _blocked(
            f"{host.engine_problem}: whether servers run there is not known; mend that, or reboot it yourself"
        )
    return _due(*why)


def _record(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    recording = site.hosts[name].recording
    if name in sight.recorded:
        return _done(f"{recording} is there")
    host = _unseen(sight, name)
    if host is None or host.changes or host.pending:
        return _later(recording)
    return _due(f"+ {recording}")


def _verify(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(sight, name)
    if host is None or host.changes or host.pending or name not in sight.recorded:
        return _later()
    if host.faults:
        return _blocked(*host.faults)
    return _done(f"{counted(len(host.given), 'PCI function')} can be opened as QEMU does")


def _of(pick: Callable[[DeploymentState], Observed | None]) -> Callable[[JudgeOf[Observed]], Judge]:
    """Of what was picked of the sight, once it was looked at; what is wrong with it as a whole is in the way."""

    def of_seen(judge: JudgeOf[Observed]) -> Judge:
        def verdict(
            site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
        ) -> TaskVerdict:
            seen = pick(sight)
            if seen is None:
                return _later()
            return _blocked(seen.problem) if seen.problem else judge(site, sight, seen, name)

        return verdict

    return of_seen


@_of(lambda sight: sight.kolla)
def _machines(site: Site, sight: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if kolla.machine_refusals:
        return _blocked(*kolla.machine_refusals)
    return _due(*kolla.machines) if kolla.machines else _done("as the site file says")


@_of(lambda sight: sight.kolla)
def _passwords(site: Site, sight: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if kolla.passwords_refusal:
        return _blocked(kolla.passwords_refusal)
    if kolla.passwords_mode:
        return _due(f"their file has mode {kolla.passwords_mode}: others than its owner and group will not read it")
    return _done("each has been made") if kolla.passwords else _due("those that are missing; the others stay")


@_of(lambda sight: sight.kolla)
def _render(site: Site, sight: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if missing := [host for host in site.hosts if host not in sight.recorded]:
        return _later(f"the recording of {', '.join(missing)} comes first")
    if sight.site_problem:
        return _blocked(*sight.site_problem.splitlines())
    if kolla.render_refusals:
        return _blocked(*kolla.render_refusals)
    if kolla.rendered is None:
        return _later("the inventory comes first")
    return _due(*kolla.rendered) if kolla.rendered else _done("as the site file says")


@_of(lambda sight: sight.kolla)
def _collection(site: Site, sight: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    if not kolla.collection:
        return _due("+ openstack.kolla, from its git repository")
    if not kolla.collection_current:
        return _due("~ openstack.kolla: it was not installed by what this kolla-ansible requires")
    return _done("Ansible has openstack.kolla of this release")


def _bootstrap(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    """Each host for itself, since Kolla's bootstrap-servers can restart all containers of a host that runs."""
    host = _unseen(sight, name)
    if host is None:
        return _later()
    if problem := _cut_off(site, sight, [name]):
        return problem
    if host.engine:
        return _open(journal, "bootstrap-servers", [name]) or _done("it has a container engine")
    if others := _running_controllers(site, sight, name):
        return _blocked(
            f"it would be a further control host of a cloud that runs: the other ones ({', '.join(others)}) need it in "
            "their /etc/hosts, and bootstrap-servers can restart their containers; run 'kolla-ansible "
            f"bootstrap-servers --limit {name},{others[0]}' yourself, with one of them at a time"
        )
    return _due("it has no container engine")


def _running_controllers(site: Site, sight: DeploymentState, name: str) -> list[str]:
    """The other control hosts that have containers already, where a host is to be a control host."""
    assert site.deploy is not None
    control = site.deploy.with_role("control")
    return [other for other in control if name in control and (seen := _unseen(sight, other)) and seen.containers]


def _open(journal: DeployJournal, stage: str, hosts: Collection[str]) -> TaskVerdict | None:
    entry = journal.left_open(stage, hosts)
    if entry is not None:
        return _due(f"it was begun, and has not come to a good end ({entry.happening.value} at {entry.at})")
    return None


def _restart(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    host = _unseen(sight, name)
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


def _prechecks(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    deploy = _deploy(site, sight, journal, name, hosts)
    if deploy.standing is TaskStanding.DONE:
        return _done("all is deployed")
    if deploy.standing is TaskStanding.BLOCKED and (problem := _cut_off(site, sight, hosts)):
        return problem
    return _done("passed in this run") if journal.ended_in_this_run("prechecks") else _due("changes nothing")


def _deploy(
    site: Site, sight: DeploymentState, journal: DeployJournal, name: str, hosts: Collection[str]
) -> TaskVerdict:
    if not all(_unseen(sight, host) for host in hosts):
        return _later()
    if problem := _cut_off(site, sight, hosts):
        return problem
    if broken := [f"{host}: {seen.engine_problem}" for host in hosts if (seen := sight.hosts[host]).engine_problem]:
        return _blocked(*broken)
    if old := [
        f"{host} runs {release}" for host in hosts for release in sorted(sight.hosts[host].releases - {site.release})
    ]:
        return _blocked(
            f"{', '.join(old)}, and the site file says 'release: {site.release}': Kolla has 'upgrade' for that, which "
            "gpuyard does not run. Type 'gpuyard deploy run --until install-deps', then 'kolla-ansible upgrade' with "
            "gpuyard-inventory, then this again"
        )
    if missing := list(_missing(site, sight, hosts)):
        return _due(*missing)
    return (
        _open(journal, "deploy", hosts)
        or _changed_since(sight.kolla, journal, hosts)
        or _done("the services that a host needs for its roles run")
    )


def _changed_since(kolla: KollaState | None, journal: DeployJournal, hosts: Collection[str]) -> TaskVerdict | None:
    """What a host was deployed from is not what is there now, or gpuyard has written it since. Changes that others have
    made are seen by the digest alone, which only the journal keeps."""
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


def _missing(site: Site, sight: DeploymentState, hosts: Collection[str]) -> Iterator[str]:
    assert site.deploy is not None
    for host in hosts:
        wanted = [name for role in site.deploy.hosts[host].roles for name in CONTAINERS.get(role, ())]
        if lost := [name for name in wanted if name not in sight.hosts[host].containers]:
            yield f"{host}: {', '.join(lost)}"


@_of(lambda sight: sight.kolla)
def _post_deploy(site: Site, sight: DeploymentState, kolla: KollaState, name: str) -> TaskVerdict:
    return _done("clouds.yaml is there") if kolla.credentials else _due("+ clouds.yaml, for the administrator")


@_of(lambda sight: sight.cloud)
def _limits(site: Site, sight: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    if not site.gpu_quotas:
        return _done("gpu_quotas is off")
    return _done("it may") if cloud.reads_limits else _due("+ role reader on the system for user nova")


@_of(lambda sight: sight.cloud)
def _apply(site: Site, sight: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    if cloud.refusals:
        return _blocked(*cloud.refusals)
    return _due(*cloud.steps) if cloud.steps else _done("the cloud is as the site file says")


@_of(lambda sight: sight.cloud)
def _image(site: Site, sight: DeploymentState, cloud: OpenStackState, name: str) -> TaskVerdict:
    return _done("servers get one") if cloud.images.get(name) else _due(f"+ image {name}, built, checked and promoted")


@_of(lambda sight: sight.service)
def _serve(site: Site, sight: DeploymentState, service: ServiceState, name: str) -> TaskVerdict:
    if service.changes:
        return _due(*service.changes)
    return _done("it serves what the site file says") if service.active else _due("start it, and at each boot")


@_of(lambda sight: sight.service)
def _accept(site: Site, sight: DeploymentState, service: ServiceState, name: str) -> TaskVerdict:
    if service.waiting is None:
        return _later("the portal knows, once it serves")
    return _due(*service.waiting) if service.waiting else _done("no GPU waits for it")


HOSTS, KOLLA, CLOUD, SERVICE = Part.HOSTS, Part.KOLLA, Part.CLOUD, Part.SERVICE
STAGES = (
    DeployStage(
        "look",
        "each host must answer, and be what the site file says",
        "gpuyard host check{by_ssh}",
        _look,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "prepare",
        "GPUs must have their VFIO driver from boot on",
        "gpuyard host apply{by_ssh}",
        _prepare,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "reboot",
        "kernel options count from the next boot on",
        "{ssh}systemctl reboot",
        _reboot,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "record",
        "Nova's options are made from what a host has",
        "gpuyard host record -o RECORDING, on {name}",
        _record,
        "hypervisors",
        again=frozenset({HOSTS, KOLLA}),
    ),
    DeployStage(
        "verify",
        "a GPU that cannot be opened must not be offered",
        "gpuyard host verify{by_ssh}",
        _verify,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "machines",
        "Kolla's inventory and variables say what the site file says",
        "(written by gpuyard)",
        _machines,
        again=frozenset({KOLLA}),
    ),
    DeployStage("passwords", "each service has its own", "kolla-genpwd", _passwords, again=frozenset({KOLLA})),
    DeployStage(
        "render",
        "Nova and Placement read the site's options from their first start on",
        "gpuyard site render --kolla",
        _render,
        again=frozenset({KOLLA}),
    ),
    DeployStage(
        "install-deps",
        "Kolla's own role for bare hosts does not come with its package",
        "kolla-ansible install-deps",
        _collection,
        again=frozenset({KOLLA}),
    ),
    DeployStage(
        "bootstrap-servers",
        "what Kolla needs on the hosts: a container engine, users, time",
        "kolla-ansible bootstrap-servers --limit {name}",
        _bootstrap,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "restart",
        "what the packages of the last step changed counts from the next boot on",
        "{ssh}systemctl reboot",
        _restart,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage("prechecks", "Kolla's own checks, before anything is deployed", "kolla-ansible prechecks", _prechecks),
    DeployStage("deploy", "all services", "kolla-ansible deploy", _deploy, again=frozenset({HOSTS, KOLLA})),
    DeployStage(
        "post-deploy",
        "files for the administrator",
        "kolla-ansible post-deploy",
        _post_deploy,
        whole_cloud=True,
        again=frozenset({KOLLA, CLOUD}),
    ),
    DeployStage(
        "limits",
        "Nova reads limits in Keystone as its own user",
        "openstack role add --user nova --user-domain default --system all reader",
        _limits,
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "apply",
        "flavors, limits, aggregates and properties of images",
        "gpuyard site apply",
        _apply,
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "image",
        "what servers start from",
        "gpuyard image build, check, upload and promote {name}",
        _image,
        "images",
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "serve",
        "people see, book and are told; GPUs are watched",
        "systemctl restart gpuyard",
        _serve,
        "portal",
        whole_cloud=True,
        again=frozenset({SERVICE}),
    ),
    DeployStage(
        "accept",
        "a GPU that does not work in a server must not be given out",
        "gpuyard gpu accept --wait",
        _accept,
        "acceptance",
        whole_cloud=True,
        again=frozenset({SERVICE}),
    ),
)
