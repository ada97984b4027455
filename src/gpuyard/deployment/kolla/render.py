"""Plans the changes in a Kolla folder so that Nova and Placement read the site's options. Pure.

Every override file has two owners: gpuyard writes its marked block, and no key that an operator sets in a file that
is merged with it may be one of gpuyard's, because one of the two would silently be lost. That is refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from gpuyard.deployment.kolla import ini
from gpuyard.deployment.kolla.contradictions import (
    PROVIDER_CONFIG,
    contradictions,
    doubts,
    owner_of_provider_config,
    unreleased,
)
from gpuyard.deployment.kolla.folder import OURS, OWN_VARIABLES, KollaFolder
from gpuyard.deployment.kolla.layers import OLD_NAMES, neighbours, override
from gpuyard.deployment.kolla.operator_inventory import KollaInventory, inventory_names
from gpuyard.deployment.kolla.site_words import in_the_site
from gpuyard.deployment.kolla.variables import Variables
from gpuyard.nova.ini import IniSetting
from gpuyard.nova.release import RELEASES
from gpuyard.runtime.config_files import Change
from gpuyard.site.compile import CompiledSite
from gpuyard.site.options import Option
from gpuyard.site.provider_config import ProviderConfig, render_provider_config

UNIFIED_LIMITS = "nova.quota.UnifiedLimitsDriver"
LIMIT_REASON = "Nova reads limits in Keystone as its own user, on the system"
# Kolla's own variables, so that no secret is written down here.
OSLO_LIMIT = {
    "auth_type": "password",
    "auth_url": "{{ keystone_internal_url }}",
    "username": "{{ nova_keystone_user }}",
    "password": "{{ nova_keystone_password }}",
    "user_domain_id": "{{ default_user_domain_id }}",
    "system_scope": "all",
    "cafile": "{{ openstack_cacert }}",
    "valid_interfaces": "internal",
    "endpoint_service_type": "compute",
    "endpoint_region_name": "{{ openstack_region_name }}",
    "endpoint_interface": "internal",
}
ROLE_NOTE = (
    "limits: Nova's user must be allowed to read them; once, as administrator: "
    "openstack role add --user nova --user-domain default --system all reader"
)
OWN_LIMIT_NOTE = "limits: [oslo_limit] is set by {place}, and left as it is"
OLD_LIMIT_NOTE = (
    "limits: Nova of OpenStack {release} must be told the id of its own endpoint, which only your cloud knows, so "
    "[oslo_limit] is not written; write it into {place}: auth_type, auth_url, username, password, user_domain_id, "
    "system_scope = all, and endpoint_id, which 'openstack endpoint list --service compute --interface internal' says"
)
NAMES_NOTE = (
    "host names were not compared with an inventory, and Kolla ignores override files of a host that it does not know "
    "by exactly that name; --inventory FILE compares them"
)

VARIABLES_HEADER = f"{OURS}; what is changed in here is lost. Kolla gives each nova-compute its own entry.\n"
PROVIDER_CONFIGS = "gpuyard_provider_config"


@dataclass(frozen=True)
class Rendering:
    """Planned changes. With refusals, nothing must be written."""

    changes: tuple[Change, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> str:
        return "\n".join(["nothing was written:", *(f"- {text}" for text in self.refusals)])


@dataclass(frozen=True)
class _DesiredOptions:
    """The options of one override file; values of `templates` are Jinja2."""

    options: tuple[Option, ...] = ()
    templates: tuple[Option, ...] = ()

    def values(self) -> dict[tuple[str, str], list[str]]:
        """By (section, key), as _normal writes them."""
        values_by_key: dict[tuple[str, str], list[str]] = {}
        for option in (*self.options, *self.templates):
            values_by_key.setdefault(_normal(option.section, option.key), []).append(option.value)
        return values_by_key


def plan_kolla(compiled: CompiledSite, folder: KollaFolder, inventory: KollaInventory | None = None) -> Rendering:
    """Compare a Kolla folder with what the site wants there. Raises UsageError for a broken block."""
    variables = Variables(folder.variables, inventory.variables if inventory else {})
    hosts = tuple(compiled.site.hosts)
    names, refusals = {host: host for host in hosts}, list(contradictions(compiled, variables))
    notes = [*doubts(variables), *unreleased(compiled, variables)]
    if inventory is not None:
        group = compute_group(folder)
        names, unknown = inventory_names(hosts, inventory.computes, group)
        refusals += unknown
        names = {host: names.get(host, host) for host in hosts}
    else:
        notes.append(NAMES_NOTE)
    halves = {path: ini.split(text, str(folder.custom / path)) for path, text in folder.overrides.items()}
    desired = _desired_options(compiled, names, folder)
    limit_notes = _add_limits(compiled, desired, halves, folder)
    refusals += _conflicts(desired, halves, folder, set(names.values()))
    refusals += _misplaced(desired, halves, folder)
    stopped, gone = _taken_back(desired, halves, folder, inventory)
    refusals, notes = [*refusals, *stopped], [*notes, *gone]
    changes = [*_override_changes(desired, halves, folder)]
    provider_change, provider_refusals = _provider_change(compiled, names, folder, variables)
    changes += provider_change
    return Rendering(tuple(changes), (*refusals, *provider_refusals), (*notes, *limit_notes))


def compute_group(folder: KollaFolder) -> str:
    """Return the inventory's group of hypervisors."""
    variable = folder.variables.get("nova_cell_compute_group")
    return "compute" if variable is None else str(variable.value)


def _desired_options(
    compiled: CompiledSite, names: Mapping[str, str], folder: KollaFolder
) -> dict[str, _DesiredOptions]:
    """Override file -> its options."""
    cells = folder.variables.get("enable_cells")
    desired: dict[str, _DesiredOptions] = {}
    for options in compiled.options:
        if not options.options:
            continue
        services = [options.service]
        if options.service == "nova-conductor" and cells is not None and cells.truth:
            services.append("nova-super-conductor")  # the conductor that schedules, then
        for service in services:
            path = override(service, None if options.host is None else names[options.host])
            before = desired.get(path, _DesiredOptions()).options
            desired[path] = _DesiredOptions((*before, *options.options))
    return desired


def _add_limits(
    compiled: CompiledSite, desired: dict[str, _DesiredOptions], halves: Mapping[str, ini.Halves], folder: KollaFolder
) -> list[str]:
    """Add Nova's credentials for limits, which Kolla knows nothing of. Returns notes."""
    common = compiled.options_of("nova")
    if UNIFIED_LIMITS not in common.values("quota", "driver"):
        return []
    if any(option.section == "oslo_limit" for option in common.options):
        return [ROLE_NOTE]
    for path in ("nova.conf", "global.conf"):
        if path in halves:
            for setting in ini.settings(halves[path].own):
                if setting.section.lower() == "oslo_limit":
                    place = f"{folder.custom / path} line {halves[path].line(setting.line)}"
                    return [ROLE_NOTE, OWN_LIMIT_NOTE.format(place=place)]
    if not RELEASES[compiled.site.release].limits_lookup:
        own = folder.custom / "nova.conf"
        return [ROLE_NOTE, OLD_LIMIT_NOTE.format(release=compiled.site.release, place=own)]
    path = override("nova", None)
    templates = tuple(Option("oslo_limit", key, value, LIMIT_REASON) for key, value in OSLO_LIMIT.items())
    desired[path] = _DesiredOptions(desired.get(path, _DesiredOptions()).options, templates)
    return [ROLE_NOTE]


def _conflicts(
    desired: Mapping[str, _DesiredOptions], halves: Mapping[str, ini.Halves], folder: KollaFolder, hosts: set[str]
) -> Iterator[str]:
    """Keys that gpuyard and the operator would both set for one service."""
    hosts = hosts | set(folder.hosts)
    complained: set[tuple[str, int]] = set()
    for path, want in desired.items():
        ours = want.values()
        others: dict[str, bool | None] = {path: None, **neighbours(path, hosts)}
        for other in (name for name in others if name in halves):
            own = ini.settings(halves[other].own)
            for setting in own:
                key = _normal(setting.section, setting.key)
                hit, old = (key, False) if key in ours else (_new_name(key), True)
                if hit not in ours or (other, setting.line) in complained:
                    continue
                if others[other] is not None and not old and _values(own, key) == ours[hit]:
                    continue  # the same values: whichever is read
                complained.add((other, setting.line))
                place = f"{folder.custom / other} line {halves[other].line(setting.line)}"
                why = _why(hit, folder.custom / path, others[other], old)
                host = path.split("/")[1] if path.count("/") == other.count("/") == 2 else "HOST"
                yield f"{place} sets [{setting.section}]{setting.key}: {why}; {in_the_site(*hit, host)}"


def _why(ours: tuple[str, str], file: Path, later: bool | None, old: bool) -> str:
    """`later` is whether the operator's file is read after gpuyard's `file`; None when it is the same one."""
    section, key = ours
    if old:
        return f"it is an old name of [{section}]{key}, which gpuyard sets in {file}, and Nova knows both"
    return {
        None: "gpuyard sets it in the same file",
        True: f"this hides what gpuyard sets in {file}",
        False: f"what gpuyard sets in {file} hides this",
    }[later]


def _normal(section: str, key: str) -> tuple[str, str]:
    """oslo.config does not tell [PCI] from [pci]."""
    return ("DEFAULT" if section.upper() == "DEFAULT" else section.lower(), key)


def _new_name(key: tuple[str, str]) -> tuple[str, str]:
    return next((new for new, old in OLD_NAMES.items() if key in old), key)


def _values(own: Sequence[IniSetting], key: tuple[str, str]) -> list[str]:
    return [setting.value for setting in own if _normal(setting.section, setting.key) == key]


def _misplaced(
    desired: Mapping[str, _DesiredOptions], halves: Mapping[str, ini.Halves], folder: KollaFolder
) -> Iterator[str]:
    for path in desired:
        if path in halves:
            trouble = ini.trouble_below_a_block(halves[path].own)
            if trouble is not None:
                line, why = trouble
                yield f"{folder.custom / path} line {halves[path].line(line)}: gpuyard's block goes on top, and {why}"


def _taken_back(
    desired: Mapping[str, _DesiredOptions],
    halves: Mapping[str, ini.Halves],
    folder: KollaFolder,
    inventory: KollaInventory | None,
) -> tuple[list[str], list[str]]:
    """Hosts on which nova-compute would no longer report PCI devices: it does not start then. Refusals, and notes."""
    refusals, notes = [], []
    for path, half in halves.items():
        reports = any(setting.key == "report_in_placement" for setting in ini.settings(half.block))
        if not reports or ("pci", "report_in_placement") in desired.get(path, _DesiredOptions()).values():
            continue
        host = path.split("/")[1] if path.count("/") == 2 else ""
        text = (
            f"{folder.custom / path}: [pci]report_in_placement would go, and a nova-compute that has reported PCI "
            "devices does not start without it"
        )
        if inventory is not None and host in inventory.computes:
            refusals.append(
                f"{text}; take {host} out of the inventory if it is no hypervisor any more, or keep it in the site file"
            )
        elif inventory is None:
            notes.append(f"{text}; right if {host or 'every host'} is no hypervisor any more")
    return refusals, notes


def _override_changes(
    desired: Mapping[str, _DesiredOptions], halves: Mapping[str, ini.Halves], folder: KollaFolder
) -> Iterator[Change]:
    for path in sorted({*desired, *(path for path, half in halves.items() if half.block)}):
        want = desired.get(path, _DesiredOptions())
        own = halves[path].own if path in halves else ""
        after = ini.join(ini.block(want.options, want.templates), own) or None
        before = folder.overrides.get(path)
        if before != after:
            yield Change(folder.custom / path, before, after)


def _provider_change(
    compiled: CompiledSite, names: Mapping[str, str], folder: KollaFolder, variables: Variables
) -> tuple[list[Change], tuple[str, ...]]:
    """Kolla takes one provider configuration for each host from a variable; gpuyard's own file of globals.d sets it."""
    configs = {names[config.host]: config for config in compiled.provider_configs if not config.empty}
    after = render_variables(configs)
    path, before = folder.path / OWN_VARIABLES, folder.own_variables
    if before is not None and not before.startswith(OURS):
        if after is None:
            return [], ()
        return [], (f"{path} was not written by gpuyard, which needs a file of that name; rename it",)
    refusals = owner_of_provider_config(variables) if after is not None else ()
    return ([Change(path, before, after)] if before != after else []), refusals


def render_variables(configs: Mapping[str, ProviderConfig]) -> str | None:
    """Return globals.d/gpuyard.yml: inventory host -> provider configuration. None when no host has one.

    Extra variables are the same for all hosts, so the one that Kolla reads looks up the host; for a host without an
    entry it is undefined, and Kolla leaves the file out.
    """
    if not configs:
        return None
    yaml = YAML(typ="safe", pure=True)
    entries = {host: yaml.load(render_provider_config(config)) for host, config in sorted(configs.items())}
    text = io.StringIO()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10000
    yaml.dump({PROVIDER_CONFIGS: entries}, text)
    lookup = f'{PROVIDER_CONFIG}: "{{{{ {PROVIDER_CONFIGS}[inventory_hostname] }}}}"\n'
    return VARIABLES_HEADER + text.getvalue() + lookup
