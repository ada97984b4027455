"""Runs with the Python of another release's Nova and Placement, and says as JSON what they make of rendered files.

Usage: python release_probe.py FOLDER, which has nova.conf, placement.conf, flavors.json, and HOST/nova-compute.conf and
HOST/provider_config for each host.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"
warnings.simplefilter("ignore")


def unknown(conf: Any, path: Path) -> list[str]:
    """Options of a file that nothing has registered; oslo.config ignores them without a word."""
    from oslo_config import cfg

    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    return sorted(
        f"[{section}]{key}"
        for section, options in sections.items()
        for key in options
        if key not in (conf if section == "DEFAULT" else conf[section])
    )


def main(folder: Path) -> dict[str, Any]:
    import nova
    import nova.conf
    import oslo_limit.limit
    import placement.conf
    from nova import objects
    from nova.compute import provider_config
    from nova.limit import placement as limits
    from nova.pci import devspec, request, whitelist
    from oslo_config import cfg
    from oslo_messaging import opts as messaging

    conf = nova.conf.CONF
    libvirt = Path(nova.__file__).parent / "virt/libvirt/driver.py"
    for group, options in messaging.list_opts():
        conf.register_opts(options, group)
    objects.register_all()
    hosts = {}
    for file in sorted(folder.glob("*/nova-compute.conf")):
        conf([], project="nova", default_config_files=[str(folder / "nova.conf"), str(file)])
        hosts[file.parent.name] = {
            "unknown": unknown(conf, folder / "nova.conf") + unknown(conf, file),
            "specs": [spec.dev_spec_conf for spec in whitelist.Whitelist(conf.pci.device_spec).specs],
            "providers": sorted(provider_config.get_provider_configs(str(file.parent / "provider_config"))),
        }
    wide = cfg.ConfigOpts()
    placement.conf.register_opts(wide)
    wide([], project="placement", default_config_files=[str(folder / "placement.conf")])
    requested = {}
    for name, specs in json.loads((folder / "flavors.json").read_text()).items():
        requests = request.get_pci_requests_from_flavor(objects.Flavor(extra_specs=specs)).requests
        requested[name] = [
            (request.count, [spec.get("resource_class") for spec in request.spec]) for request in requests
        ]
    return {
        "hosts": hosts,
        "unknown_placement": unknown(wide, folder / "placement.conf"),
        "asked": requested,
        "wide_trees": "workarounds" in wide and "optimize_for_wide_provider_trees" in wide.workarounds,
        "one_time_use": "one_time_use" in inspect.getsource(devspec),
        "pci_quotas": "from_request_spec" in inspect.getsource(limits),
        "required_list": list(getattr(conf.quota, "unified_limits_resource_list", []))[:1] == ["servers"],
        "managed": "live_migratable" in inspect.getsource(devspec),
        "several_vgpus": "for rp_uuid, alloc in vgpu_allocations.items()" in libvirt.read_text(),
        "limits_lookup": "services = list(" in inspect.getsource(oslo_limit.limit),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
