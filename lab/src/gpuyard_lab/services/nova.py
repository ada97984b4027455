"""The process of Nova: API, conductor, scheduler, and one nova-compute for each host of the lab.

They share a process because the message bus between them is memory. Every part is Nova's own but the driver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuyard_lab.config import NO_MESSAGE_BUS
from gpuyard_lab.files import private_folder, write_json
from gpuyard_lab.host_power import hosts_off
from gpuyard_lab.plan import LabHost, LabPlan
from gpuyard_lab.releases.catalogue import OWN
from gpuyard_lab.services.options import HOST_OPTIONS, SCHEDULER_OPTIONS, mdev_options, options_in_force, read_options
from gpuyard_lab.services.startup import log, quieten, serve_wsgi_in_background, wait_until
from gpuyard_lab.services.threads import green
from gpuyard_lab.settings import Lab

LOOK_S = 0.5
UPDATE_S = 3.0


def prepare(lab: Lab) -> None:
    os.environ["OS_NOVA_CONFIG_DIR"] = str(lab.etc / "nova")
    from nova import monkey_patch

    if not green():
        monkey_patch.patch(backend="threading")
    monkey_patch.patch = lambda backend="": None  # a second decision is an error
    # Some options are read while a module is imported, such as the intervals of nova-compute's periodic tasks.
    import nova.conf

    nova.conf.CONF([], project="nova", default_config_files=[str(lab.etc / "nova" / "nova.conf")])
    import nova.compute.manager

    nova.conf.CONF.clear()  # each part of Nova parses its own
    import nova.api.openstack.wsgi_app
    import nova.cmd.manage
    import nova.conductor.manager
    import nova.scheduler.manager


def create(lab: Lab) -> None:
    """Make the schemas and cells, as ``nova-manage api_db sync``, ``cell_v2 map_cell0``, ``cell_v2 create_cell`` and
    ``db sync`` do."""
    from nova import config, objects
    from nova.cmd import manage
    from nova.db import migration

    config.parse_args(["nova-manage"], default_config_files=[str(lab.etc / "nova" / "nova.conf")])
    objects.register_all()
    migration.db_sync(database="api")
    cells = manage.CellV2Commands()
    cells.map_cell0(lab.database_url("nova_cell0"))
    failed = cells.create_cell("cell1", lab.database_url("nova_cell1"), NO_MESSAGE_BUS)
    if failed:
        raise RuntimeError(f"nova-manage cell_v2 create_cell failed with {failed}")
    manage.DbCommands().sync()


def serve(lab: Lab) -> None:
    """Start everything in the order in which it depends on each other, then write `Lab.hosts_ready`. Does not
    return."""
    import nova.conf
    import os_vif
    from nova import context, objects
    from nova.objects import host_mapping

    try:
        from nova.wsgi.osapi_compute import application
    except ModuleNotFoundError:  # before 2024.2
        from nova.api.openstack.compute.wsgi import init_application

        application = init_application()

    log("API loaded")
    quieten("neutronclient")  # that it is deprecated, whenever Nova uses it
    objects.register_all()
    os_vif.initialize()
    serve_wsgi_in_background(application, lab, "nova")
    wait_until(lab.identity_ready)  # each of the services below talks to Placement while it starts
    _say_which_endpoint(lab)
    services = [_start("nova-conductor", "conductor")]
    with options_in_force(nova.conf.CONF, lab.etc / "nova" / "scheduler.conf", SCHEDULER_OPTIONS):
        services.append(_start("nova-scheduler", "scheduler"))
    private_folder(lab.guests)
    computes = Computes(lab, LabPlan.load(lab.plan_file).hosts)
    expected = computes.start()
    host_mapping.discover_hosts(context.get_admin_context())
    write_json(lab.hosts_ready, expected)
    log(f"{len(expected)} hosts ready")
    while True:
        computes.look()
        time.sleep(LOOK_S)


def _say_which_endpoint(lab: Lab) -> None:
    """Set the id of the endpoint by which limits are kept: before 2026.2 Nova cannot look it up, whatever is set."""
    import nova.conf
    from oslo_limit import opts

    if lab.release != OWN:
        opts.register_opts(nova.conf.CONF)
        nova.conf.CONF.set_override("endpoint_id", lab.identity_ready.read_text(), "oslo_limit")


class Computes:
    """The nova-compute of each host, in threads of its own."""

    def __init__(self, lab: Lab, hosts: Sequence[LabHost]) -> None:
        self._lab = lab
        self._hosts = {host.name: host for host in hosts}
        self._running: dict[str, Any] = {}
        self._moving: dict[str, float] = {}
        """Host with a move -> when its resources are updated next."""

    def start(self) -> dict[str, list[str]]:
        """Start all of them. Returns host -> names of its providers."""
        for host in self._hosts.values():
            self._running[host.name] = _start_compute(self._lab, host)
        return {name: _providers(self._hosts[name], compute) for name, compute in self._running.items()}

    def look(self) -> None:
        """Tell Nova of servers that have switched themselves off; switch hosts off and on, as `Lab.hosts_wanted_off`
        says."""
        for compute in self._running.values():
            compute.manager.driver.notice_what_is_off()
        self._settle_moves()
        off = hosts_off(self._lab.hosts_wanted_off)
        for name in sorted(off & self._running.keys()):
            _die(self._running.pop(name))
            log(f"nova-compute {name} is off")
        for name in sorted(self._hosts.keys() - off - self._running.keys()):
            self._running[name] = _start_compute(self._lab, self._hosts[name])
            log(f"nova-compute {name} is on again")
        now = self._hosts.keys() - self._running.keys()
        if now != hosts_off(self._lab.hosts_off):
            write_json(self._lab.hosts_off, sorted(now))

    def _settle_moves(self) -> None:
        """Update the resources of hosts with a move. Nova takes what came by a migration for a server of the host only
        at such an update, and gives its GPU back to none before that. The lab has no periodic one (docs/adr/0006)."""
        for name, compute in self._running.items():
            if not compute.manager.rt.tracked_migrations:
                self._moving.pop(name, None)
            elif time.monotonic() > self._moving.setdefault(name, time.monotonic() + UPDATE_S):
                _update_resources(name, compute)
                self._moving[name] = time.monotonic() + UPDATE_S


def _update_resources(name: str, compute: Any) -> None:
    """Do what Nova's periodic task does, whose errors end nothing either: it may meet a move that is being confirmed,
    of whose allocations it has read a part, and Placement refuses what it makes of them."""
    try:
        compute.manager.update_available_resource(context_of_admin())
    except Exception as error:
        log(f"nova-compute {name} could not update its resources, and will try again: {error}")


def context_of_admin() -> Any:
    from nova import context

    return context.get_admin_context()


def _die(compute: Any) -> None:
    """End a nova-compute as the end of its process would: it is not heard of, and what is sent to it waits on the bus.

    Its ``stop`` is not used, which finishes what it is at, and takes down threads that all services of this process
    share.
    """
    for server in (compute.rpcserver, getattr(compute, "rpcserver_alt", None)):  # the second: since 2026.2
        if server is not None:
            server.stop()
            server.wait()
    compute.tg.stop()


def _start(binary: str, topic: str, **more: Any) -> Any:
    """Start one service of Nova in threads of this process, as its command would in a process of its own."""
    from nova import service

    made = service.Service.create(binary=binary, topic=topic, **more)
    made.start()
    # The first heartbeat is due in five seconds. Until then the record of the last run counts, which says "down".
    made.servicegroup_api._driver._report_state(made)
    log(f"{binary} {more.get('host', '')} started")
    return made


def _start_compute(lab: Lab, host: LabHost) -> Any:
    """Start a host's nova-compute with the options of its own file, and make sure that it took them."""
    import nova.conf
    from nova.compute import rpcapi

    file = lab.etc / "nova" / "hosts" / f"{host.name}.conf"
    options = HOST_OPTIONS | mdev_options(nova.conf.CONF, file)
    # Older releases have one queue for everything.
    second = {"topic_alt": rpcapi.RPC_TOPIC_ALT} if hasattr(rpcapi, "RPC_TOPIC_ALT") else {}
    with options_in_force(nova.conf.CONF, file, options), _driver_for(lab, host):
        made = _start("nova-compute", rpcapi.RPC_TOPIC, **second, host=host.name)
    configured = [json.loads(value) for value in read_options(file).get(("pci", "device_spec"), [])]
    taken = [spec.dev_spec_conf for spec in made.manager.rt.pci_tracker.dev_filter.specs]
    if taken != configured:
        raise RuntimeError(f"{host.name}: nova-compute took the device_spec {taken}, its file has {configured}")
    if "update_available_resource" in made.manager._periodic_spacing:
        raise RuntimeError(f"{host.name}: nova-compute updates its resources periodically: docs/adr/0006")
    return made


def _providers(host: LabHost, compute: Any) -> list[str]:
    """Names of the resource providers that Nova makes for a host and for the PCI functions that it tracks."""
    import nova.conf

    if not nova.conf.CONF.pci.report_in_placement:
        return [host.hypervisor]
    tracker = compute.manager.rt.pci_tracker
    # One that a server holds is tracked also after its device_spec is gone, and then has no provider.
    offered = [device for device in tracker.pci_devs if tracker.dev_filter.get_devspec(device) is not None]
    # A virtual function is counted at the provider of its physical one.
    addresses = {device.parent_addr or device.address for device in offered}
    mdevs = compute.manager.driver.mdevs
    makers = mdevs.makers() if mdevs is not None else []
    names = (f"{host.hypervisor}_{name}" for name in (*(address.upper() for address in addresses), *makers))
    return sorted([host.hypervisor, *names])


@contextmanager
def _driver_for(lab: Lab, host: LabHost) -> Iterator[None]:
    """Have Nova load the driver of one host.

    Nova finds a driver by name below ``nova.virt`` and tells it nothing of its host, so the function that loads it is
    replaced while the host's service is created.
    """
    from nova.virt import driver

    from gpuyard_lab.services.virt import RecordedHostDriver

    load = driver.load_compute_driver
    driver.load_compute_driver = lambda virtapi, compute_driver=None: RecordedHostDriver(virtapi, host, lab.guests)
    try:
        yield
    finally:
        driver.load_compute_driver = load
