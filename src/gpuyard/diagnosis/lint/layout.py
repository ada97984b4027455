"""Finds out which service and host read a file, and which files are read together.

Name and folders of a file say it; where they do not, its content does. Four layouts of configuration are known:

- ``/etc/nova``: ``nova.conf`` for every service of the machine, ``nova-compute.conf`` on top of it for one.
- An override folder of Kolla, and what ``gpuyard site render`` writes: ``nova.conf`` for every service,
  ``nova/nova-compute.conf`` for one, ``nova/HOST/nova.conf`` and ``nova/HOST/nova-compute.conf`` for one host.
- What Kolla makes of that: ``nova-compute/nova.conf`` is all that the service reads.
- Devstack's ``local.conf``, with a section for each file of a service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from gpuyard.diagnosis.lint.model import LintInput
from gpuyard.model.host import Inventory
from gpuyard.nova.alias import aliases
from gpuyard.nova.config import API, COMPUTE, PLACEMENT, SERVICES, ConfigFile, View
from gpuyard.nova.device_spec import device_specs
from gpuyard.nova.ini import DEFAULT, read_ini, read_template
from gpuyard.nova.options import AVAILABLE_FILTERS, ENABLED_FILTERS

COMMON = ("global.conf", "nova.conf")
LOCAL = "local.conf"
"""Devstack's."""


def service_of(name: str) -> str | None:
    """Return the service of a name, as of ``nova-compute-ironic``, ``nova_compute``, ``nova-super-conductor``; None for
    other names."""
    dashed = name.lower().replace("_", "-").removesuffix(".conf").replace("nova-super-conductor", "nova-conductor")
    if dashed.startswith("placement"):
        return PLACEMENT
    return next((service for service in SERVICES if dashed == service or dashed.startswith(service + "-")), None)


def concerns_nova(path: str) -> bool:
    """Return whether a file of a folder is worth reading: configuration of Nova or Placement by its name or folder."""
    parts = PurePosixPath(path).parts
    name, folders = parts[-1], parts[:-1]
    return (
        name in (*COMMON, LOCAL)
        or name.startswith(("nova-", "nova_", PLACEMENT))
        or any(service_of(folder) for folder in folders[-1:])
    )


def config_files(path: str, text: str, service: str | None = None, base: str = "") -> list[ConfigFile]:
    """Return a file with the service and host that its path, seen from the folder `base`, names; `service` where it
    names none.

    Devstack's local.conf has the files of several services in it.
    """
    pure = PurePosixPath(base, path)
    parts = _devstack(text)
    if parts is not None:
        return [
            ConfigFile(path, read_ini(part), str(pure.parent), reader) for reader, part in parts.items() if part.strip()
        ] or [ConfigFile(path, read_ini(""), str(pure.parent))]
    ini, template = read_template(text)
    folder, reader, host, alone = _place(pure)
    return [ConfigFile(path, ini, str(folder), reader or service, host, template, alone)]


DEVSTACK = {"$NOVA_CONF": None, "$NOVA_CPU_CONF": COMPUTE, "$PLACEMENT_CONF": PLACEMENT}
"""Files that sections of devstack's local.conf go to, and who reads them: nova-cpu.conf is a copy of nova.conf, and
more."""


def _devstack(text: str) -> dict[str | None, str] | None:
    """``[[post-config|$NOVA_CONF]]`` and the like: what goes to whom, each line where it was; None for other files."""
    lines = text.split("\n")
    if not any(_meta(line) for line in lines):
        return None
    parts: dict[str | None, list[str]] = {reader: [] for reader in DEVSTACK.values()}
    current = ""
    for line in lines:
        current = _meta(line) or current
        for file, reader in DEVSTACK.items():
            parts[reader].append(line if file == current and not _meta(line) else "")
    return {reader: "\n".join(part) for reader, part in parts.items()}


def _meta(line: str) -> str:
    """The file that a section of local.conf is for; empty for any other line."""
    inner = line.strip().removeprefix("[[").removesuffix("]]")
    phase, bar, file = inner.partition("|")
    if not bar or len(inner) != len(line.strip()) - 4:
        return ""
    return file.strip().replace("${", "$").removesuffix("}") if phase.strip() != "local" else "localrc"


def _place(path: PurePosixPath) -> tuple[PurePosixPath, str | None, str | None, bool]:
    """The folder whose files are read together, the service, the host, and whether the file is a whole in itself."""
    name, above = path.name, path.parent
    by_name, by_folder = service_of(name), service_of(above.name)
    if PLACEMENT in (by_name, by_folder):
        return above, PLACEMENT, None, False
    if by_folder is not None:  # all that this service reads
        return above, by_folder, None, False
    if above.name.endswith(".d"):  # /etc/nova/nova.conf.d
        by_name = by_name or service_of(above.name.removesuffix(".d"))
        above, alone = above.parent, False
    else:
        alone = name not in COMMON and by_name is None
        if above.parent.name == "nova":
            return above.parent.parent, by_name, above.name, alone
    return (above.parent if above.name == "nova" else above), by_name, None, alone


def views(files: Iterable[ConfigFile]) -> tuple[View, ...]:
    """Return the files that each service reads, folder by folder, without Placement's."""
    folders: dict[str, list[ConfigFile]] = {}
    for file in files:
        if file.service != PLACEMENT:
            folders.setdefault(file.folder, []).append(file)
    return tuple(view for members in folders.values() for view in _folder(members))


def placement_views(files: Iterable[ConfigFile]) -> tuple[View, ...]:
    return tuple(View(PLACEMENT, None, (file,)) for file in files if file.service == PLACEMENT)


def _folder(members: Sequence[ConfigFile]) -> Iterable[View]:
    yield from (View(file.service, file.host, (file,)) for file in members if file.alone)
    layered = sorted((file for file in members if not file.alone), key=_layer)
    services = [service for service in SERVICES if any(file.service == service for file in layered)]
    hosts = list(dict.fromkeys(file.host for file in layered if file.host))
    common = tuple(file for file in layered if file.service is None and file.host is None)
    if not services and not hosts:
        if common:
            yield View(None, None, common)
        return
    for service in SERVICES if common else services:
        own = tuple(file for file in layered if file.service in (None, service) and file.host is None)
        if own and not (service == COMPUTE and hosts):
            yield View(service, None, own)
    for host in hosts:
        own = tuple(file for file in layered if file.service in (None, COMPUTE) and file.host in (None, host))
        if own:
            yield View(COMPUTE, host, own)


def _layer(file: ConfigFile) -> tuple[int, int, int, int]:
    """Files that are read later win: general ones first, those of a host last."""
    path = PurePosixPath(file.path)
    return (file.host is not None, file.service is not None, path.name != "global.conf", len(path.parts))


def with_inventories(views: Sequence[View], recorded: Mapping[str, Inventory]) -> tuple[tuple[View, ...], list[str]]:
    """Put each recorded host into the view of its nova-compute; and return the recordings that fit none.

    A view fits a recording when it is of that host, or its folder has the host's name. One recording alone goes to
    every nova-compute whose host is not known, because the files say nothing that speaks against it.
    """
    used: set[str] = set()
    result = []
    for view in views:
        name = _host_name(view, recorded) if view.serves(COMPUTE) else None
        if name is not None:
            used.add(name)
            view = replace(view, inventory=recorded[name])
        result.append(view)
    return tuple(result), [name for name in recorded if name not in used]


def _host_name(view: View, recorded: Mapping[str, Inventory]) -> str | None:
    hosts = (view.host,) if view.host else (view.text(DEFAULT, "host"), PurePosixPath(view.files[-1].folder).name)
    for host in filter(None, hosts):
        for name, inventory in recorded.items():
            names = (name, inventory.facts.hostname, inventory.facts.hostname.split(".")[0])
            if host in names or host.split(".")[0] in names:
                return name
    if len(recorded) == 1 and view.host is None:
        return next(iter(recorded))
    return None


# Of these, a file that is only a hypervisor's has none.
OF_CONTROLLER = (
    ENABLED_FILTERS,
    AVAILABLE_FILTERS,
    ("quota", "driver"),
    ("quota", "unified_limits_resource_list"),
)


def looks_like(view: View) -> str | None:
    """Return the service that a view is of, or that it seems to be of: with a device_spec nova-compute, with aliases or
    options of the scheduler or of quotas nova-api; None when it has neither."""
    if view.service is not None:
        return view.service
    if device_specs(view).set:
        return COMPUTE
    if aliases(view).set or any(view.last(*place) for place in OF_CONTROLLER):
        return API
    return None


def of_controller(subject: LintInput, service: str) -> list[View]:
    """Return the views that one of the controller's services may read, without those of hypervisors where there are
    others."""
    views = subject.of(service)
    return [view for view in views if looks_like(view) in (service, API)] or views
