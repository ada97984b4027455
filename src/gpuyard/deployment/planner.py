"""Plans the tasks of a deployment, each with its reason and standing. Pure: site, state and journal in, tasks out.

Stages come in a fixed order (STAGES). A task is done when the observed state says so. The journal decides only where
that cannot be observed: a run of Kolla that was begun and has not ended is run again, which Kolla is made for;
prechecks are run in each run, until all is deployed. After the first stage that is not done, due tasks count as
later; so do all unfinished tasks that are judged by the cloud or the service, whose state means nothing before the
deployment is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuyard.deployment.journal import DeployJournal
from gpuyard.deployment.judges import (
    judge_accept,
    judge_apply,
    judge_bootstrap,
    judge_collection,
    judge_deploy,
    judge_image,
    judge_limits,
    judge_look,
    judge_machines,
    judge_passwords,
    judge_post_deploy,
    judge_prechecks,
    judge_prepare,
    judge_reboot,
    judge_record,
    judge_render,
    judge_restart,
    judge_serve,
    judge_verify,
)
from gpuyard.deployment.state import DeploymentState
from gpuyard.deployment.tasks import EVERYTHING, DeployRange, DeployStage, DeployTask, Part, TaskStanding, command_of
from gpuyard.model.errors import UsageError
from gpuyard.site.schema import Site


def plan_deployment(
    site: Site, state: DeploymentState, journal: DeployJournal, deploy_range: DeployRange = EVERYTHING
) -> tuple[DeployTask, ...]:
    """Return all tasks in their order. Raises UsageError for a stage or a host that there is not."""
    assert site.deploy is not None
    hosts = _hosts(site, deploy_range)
    tasks: list[DeployTask] = []
    waits_for = ""
    for stage in stages(deploy_range):
        first = ""
        for name in _objects(site, stage, hosts):
            verdict = stage.judge(site, state, journal, name, hosts)
            if waits_for and (verdict.standing is TaskStanding.DUE or not stage.of_parts & {HOSTS, KOLLA}):
                # What a cloud says before it is deployed to its end counts for nothing.
                verdict = (
                    verdict if verdict.standing is TaskStanding.DONE else replace(verdict, standing=TaskStanding.LATER)
                )
            task = DeployTask(stage.name, name, stage.reason, command_of(site.deploy, stage.how, name), verdict)
            tasks.append(task)
            if not first and task.standing is not TaskStanding.DONE:
                first = task.title
        waits_for = waits_for or first
    return tuple(tasks)


def stages(deploy_range: DeployRange = EVERYTHING) -> tuple[DeployStage, ...]:
    """Return the stages of a range. Raises UsageError."""
    names = [stage.name for stage in STAGES]
    for name in (deploy_range.first, deploy_range.last):
        if name and name not in names:
            raise UsageError(f"there is no step {name!r}; there are {', '.join(names)}")
    start = names.index(deploy_range.first) if deploy_range.first else 0
    end = names.index(deploy_range.last) + 1 if deploy_range.last else len(names)
    if start >= end:
        raise UsageError(f"step {deploy_range.first} comes after {deploy_range.last}; exchange --from and --until")
    chosen = STAGES[start:end]
    return tuple(stage for stage in chosen if not (stage.whole_cloud and deploy_range.hosts))


def _hosts(site: Site, deploy_range: DeployRange) -> tuple[str, ...]:
    assert site.deploy is not None
    for name in deploy_range.hosts:
        if name not in site.deploy.hosts:
            raise UsageError(f"deploy.hosts has no {name}; it has {', '.join(site.deploy.hosts)}")
    return tuple(name for name in site.deploy.hosts if not deploy_range.hosts or name in deploy_range.hosts)


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


HOSTS, KOLLA, CLOUD, SERVICE = Part.HOSTS, Part.KOLLA, Part.CLOUD, Part.SERVICE
STAGES = (
    DeployStage(
        "look",
        "each host must answer, and be what the site file says",
        "gpuyard host check{by_ssh}",
        judge_look,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "prepare",
        "GPUs must have their VFIO driver from boot on",
        "gpuyard host apply{by_ssh}",
        judge_prepare,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "reboot",
        "kernel options count from the next boot on",
        "{ssh}systemctl reboot",
        judge_reboot,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "record",
        "Nova's options are made from what a host has",
        "gpuyard host record -o RECORDING, on {name}",
        judge_record,
        "hypervisors",
        again=frozenset({HOSTS, KOLLA}),
    ),
    DeployStage(
        "verify",
        "a GPU that cannot be opened must not be offered",
        "gpuyard host verify{by_ssh}",
        judge_verify,
        "hypervisors",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "machines",
        "Kolla's inventory and variables say what the site file says",
        "(written by gpuyard)",
        judge_machines,
        again=frozenset({KOLLA}),
    ),
    DeployStage("passwords", "each service has its own", "kolla-genpwd", judge_passwords, again=frozenset({KOLLA})),
    DeployStage(
        "render",
        "Nova and Placement read the site's options from their first start on",
        "gpuyard site render --kolla",
        judge_render,
        again=frozenset({KOLLA}),
    ),
    DeployStage(
        "install-deps",
        "Kolla's own role for bare hosts does not come with its package",
        "kolla-ansible install-deps",
        judge_collection,
        again=frozenset({KOLLA}),
    ),
    DeployStage(
        "bootstrap-servers",
        "what Kolla needs on the hosts: a container engine, users, time",
        "kolla-ansible bootstrap-servers --limit {name}",
        judge_bootstrap,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "restart",
        "what the packages of the last step changed counts from the next boot on",
        "{ssh}systemctl reboot",
        judge_restart,
        "hosts",
        again=frozenset({HOSTS}),
    ),
    DeployStage(
        "prechecks",
        "Kolla's own checks, before anything is deployed",
        "kolla-ansible prechecks",
        judge_prechecks,
    ),
    DeployStage("deploy", "all services", "kolla-ansible deploy", judge_deploy, again=frozenset({HOSTS, KOLLA})),
    DeployStage(
        "post-deploy",
        "files for the administrator",
        "kolla-ansible post-deploy",
        judge_post_deploy,
        whole_cloud=True,
        again=frozenset({KOLLA, CLOUD}),
    ),
    DeployStage(
        "limits",
        "Nova reads limits in Keystone as its own user",
        "openstack role add --user nova --user-domain default --system all reader",
        judge_limits,
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "apply",
        "flavors, limits, aggregates and properties of images",
        "gpuyard site apply",
        judge_apply,
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "image",
        "what servers start from",
        "gpuyard image build, check, upload and promote {name}",
        judge_image,
        "images",
        whole_cloud=True,
        again=frozenset({CLOUD}),
    ),
    DeployStage(
        "serve",
        "people see, book and are told; GPUs are watched",
        "systemctl restart gpuyard",
        judge_serve,
        "portal",
        whole_cloud=True,
        again=frozenset({SERVICE}),
    ),
    DeployStage(
        "accept",
        "a GPU that does not work in a server must not be given out",
        "gpuyard gpu accept --wait",
        judge_accept,
        "acceptance",
        whole_cloud=True,
        again=frozenset({SERVICE}),
    ),
)
