"""Nova's and Placement's own parsers, as libraries: what the services would make of a configuration.

Importing them warns about their own dependencies; that is not ours to mend, so only the import is excused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import nova.conf
    import nova.exception as nova_exception
    import placement.conf
    from nova import objects
    from nova.api.openstack.common import status_from_state as nova_status
    from nova.compute import task_states, vm_states
    from nova.compute import utils as compute_utils
    from nova.compute.provider_config import get_provider_configs
    from nova.pci import request, whitelist
    from nova.scheduler import utils as scheduler_utils
    from nova.virt.hardware import parse_cpu_spec as cpu_set
    from oslo_config import cfg
    from oslo_messaging import opts as messaging

    objects.register_all()

for group, options in messaging.list_opts():  # the services register these when they begin to listen
    nova.conf.CONF.register_opts(options, group)

nova_conf = nova.conf
__all__ = [
    "compute_utils",
    "cpu_set",
    "get_provider_configs",
    "nova_conf",
    "nova_configuration",
    "nova_exception",
    "nova_status",
    "objects",
    "placement_configuration",
    "request",
    "scheduler_utils",
    "task_states",
    "vm_states",
    "whitelist",
]


@contextmanager
def nova_configuration(folder: Path, text: str) -> Iterator[Any]:
    """Nova's CONF with an ini text in force, read from a file the way the services do. Nova reads aliases once a
    process: what it remembers is forgotten before and after."""
    path = folder / "nova.conf"
    path.write_text(text)
    conf = nova.conf.CONF
    try:
        conf([], project="nova", default_config_files=[str(path)])
        request.get_alias_from_config.cache_clear()
        yield conf
    finally:
        conf.clear()
        request.get_alias_from_config.cache_clear()
        conf([], project="nova", default_config_files=[])


def placement_configuration(folder: Path, text: str) -> Any:
    """Placement's options as it would read them from an ini text."""
    path = folder / "placement.conf"
    path.write_text(f"{text}\n[placement_database]\nconnection = sqlite://\n")
    options = cfg.ConfigOpts()
    placement.conf.register_opts(options)
    options([], project="placement", default_config_files=[str(path)])
    return options
