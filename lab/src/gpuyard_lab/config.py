"""Writes the configuration files of the services: one function a service, and what they share.

Everything is written anew at every start; to change an option, change it here or in the site. The site's options are
added at the end of a file, so they win over the lab's.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from gpuyard.model.errors import HOW_TO_INSTALL_LAB
from gpuyard_lab.catalog import ADDRESS, APIS, REGION
from gpuyard_lab.credentials import credential_keys, fernet_keys, key_repositories, passwords
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import private_folder, write_private
from gpuyard_lab.plan import LabHost, LabPlan
from gpuyard_lab.releases.catalogue import OWN
from gpuyard_lab.settings import Lab

Section = dict[str, object]
Sections = dict[str, Section]

# Never an agent, never another machine: RPC stays within the process (Nova's services all live in one).
NO_MESSAGE_BUS = "fake://"

PACKAGES = "lib/python3.*/site-packages"
SHARED_NODE_ID = "3d2f9d4e-5e39-4f0e-9a53-9f1f6a3f2a11"


def write_config(lab: Lab, plan: LabPlan) -> None:
    """Write the files of all services into the lab's ``etc``, and make the folders that they name."""
    key_repositories(lab)
    secrets = passwords(lab)
    shutil.rmtree(lab.etc, ignore_errors=True)
    _write(lab, "keystone/keystone.conf", render(keystone(lab)))
    _write(lab, "placement/placement.conf", render(placement(lab, secrets)) + from_site(plan.placement))
    _write(lab, "glance/glance-api.conf", render(glance(lab, secrets)))
    _write(lab, "neutron/neutron.conf", render(neutron(lab, secrets)))
    _write(lab, "nova/nova.conf", render(nova(lab, secrets)) + from_site(plan.nova))
    _write(lab, "nova/scheduler.conf", plan.scheduler)
    for host in plan.hosts:
        _write(lab, f"nova/hosts/{host.name}.conf", host.config + _provider_config(lab, host))
    for service, name in (("glance", "glance-api-paste.ini"), ("neutron", "api-paste.ini"), ("nova", "api-paste.ini")):
        _write(lab, f"{service}/{name}", shipped(lab, service, name).read_text())
    for folder in _folders(lab):
        private_folder(folder)
    # Nova refuses a host that it knows and that has lost its identity file. The hosts of the lab cannot lose theirs,
    # which the driver makes from their names; the one file that they share only has to be there.
    write_private(lab.data / "nova" / "compute_id", SHARED_NODE_ID)


def _provider_config(lab: Lab, host: LabHost) -> str:
    """Write a host's provider.yaml; the option that points to it."""
    if not host.provider_config:
        return ""
    _write(lab, f"nova/provider_config/{host.name}/gpuyard.yaml", host.provider_config)
    location = lab.etc / "nova" / "provider_config" / host.name
    return "\n" + render({"compute": {"provider_config_location": location}})


def _write(lab: Lab, name: str, text: str) -> None:
    path = lab.etc / name
    private_folder(path.parent)
    write_private(path, text)


def _folders(lab: Lab) -> tuple[Path, ...]:
    glance_folders = (lab.data / "glance" / name for name in ("images", "staging", "tasks"))
    return (*glance_folders, lab.data / "nova" / "instances", lab.data / "neutron", lab.data / "locks", lab.log)


def render(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Return an ini file."""
    lines: list[str] = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_text(value)}" for key, value in options.items()]
        lines.append("")
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # '$' would start a reference to another option, and the password of a database may have one.
    return str(value).replace("$", "$$")


def from_site(text: str) -> str:
    return f"\n# From the site.\n{text}" if text else ""


def shipped(lab: Lab, distribution: str, name: str) -> Path:
    """Return a data file that a service's wheel installed, wherever the installation that runs the lab has put it.
    Raises LabError when it is missing."""
    path = sys.path if lab.release == OWN else [str(folder) for folder in lab.python.parents[1].glob(PACKAGES)]
    for installed in distributions(name=distribution, path=path):
        for file in installed.files or ():
            if file.name == name:
                return Path(str(file.locate()))
    again = f"install the lab again: {HOW_TO_INSTALL_LAB}"
    if lab.release != OWN:
        again = f"remove {lab.python.parents[1]}, and it is installed again"
    raise LabError(f"{distribution} is installed without its {name}; {again}")


PROXY_HEADERS: Section = {"enable_proxy_headers_parsing": True}
"""[oslo_middleware], as Kolla has it: services report the addresses at which a gateway says they are."""


def keystone(lab: Lab) -> Sections:
    return {
        "DEFAULT": {"log_options": False},
        "oslo_middleware": PROXY_HEADERS,
        "database": _database(lab, "keystone"),
        "cache": {"enabled": True, "backend": "oslo_cache.dict"},
        "fernet_tokens": {"key_repository": fernet_keys(lab)},
        "fernet_receipts": {"key_repository": fernet_keys(lab)},
        "credential": {"key_repository": credential_keys(lab)},
        "token": {"expiration": 86400},
        # The least that bcrypt takes: with the default each user costs 0.4 s, and these passwords are random.
        # The most that bcrypt uses; without it Keystone warns at each password.
        "identity": {"password_hash_rounds": 4, "max_password_length": 72},
    }


def placement(lab: Lab, secrets: Mapping[str, str]) -> Sections:
    return {
        "DEFAULT": {"log_options": False},
        "oslo_middleware": PROXY_HEADERS,
        "placement_database": _database(lab, "placement"),
        "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": _token_check(lab, "placement", secrets),
        "oslo_concurrency": _locks(lab),
    }


def glance(lab: Lab, secrets: Mapping[str, str]) -> Sections:
    data = lab.data / "glance"
    return {
        "DEFAULT": {
            "log_options": False,
            "enabled_backends": "files:file",
            "worker_self_reference_url": lab.url("glance"),
            "transport_url": NO_MESSAGE_BUS,
        },
        "oslo_middleware": PROXY_HEADERS,
        "database": _database(lab, "glance"),
        "keystone_authtoken": _token_check(lab, "glance", secrets),
        "paste_deploy": {"flavor": "keystone", "config_file": lab.etc / "glance" / "glance-api-paste.ini"},
        "glance_store": {"default_backend": "files"},
        "files": {"filesystem_store_datadir": data / "images"},
        "os_glance_staging_store": {"filesystem_store_datadir": data / "staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": data / "tasks"},
        "oslo_concurrency": _locks(lab),
    }


def neutron(lab: Lab, secrets: Mapping[str, str]) -> Sections:
    return {
        "DEFAULT": {
            "log_options": False,
            "host": "lab",
            "state_path": lab.data / "neutron",
            "transport_url": NO_MESSAGE_BUS,
            "auth_strategy": "keystone",
            "core_plugin": "ml2",
            "service_plugins": "",
            # A port is ACTIVE as soon as it is bound, so there is no event that Nova would have to wait for.
            "notify_nova_on_port_status_changes": False,
            "notify_nova_on_port_data_changes": False,
            "dhcp_agent_notification": False,
        },
        "oslo_middleware": PROXY_HEADERS,
        "database": _database(lab, "neutron"),
        "keystone_authtoken": _token_check(lab, "neutron", secrets),
        "ml2": {
            "type_drivers": "local",
            "project_network_types": "local",
            "mechanism_drivers": "gpuyard_lab",
            "extension_drivers": "port_security",
        },
        "oslo_concurrency": _locks(lab),
    }


def nova(lab: Lab, secrets: Mapping[str, str]) -> Sections:
    client = _service_login(lab, "nova", secrets)
    return {
        "DEFAULT": {
            "log_options": False,
            "host": "lab",
            "my_ip": ADDRESS,
            "state_path": lab.data / "nova",
            "instances_path": lab.data / "nova" / "instances",
            "transport_url": NO_MESSAGE_BUS,
            "compute_driver": "fake.FakeDriver",  # replaced by RecordedHostDriver, see services/nova.py
            "allow_resize_to_same_host": True,
            # The hosts of a lab do not change, and the update has a race with deletions: docs/adr/0006.
            "update_resources_interval": -1,
        },
        "oslo_middleware": PROXY_HEADERS,
        "api": {"auth_strategy": "keystone"},
        "api_database": _database(lab, "nova_api"),
        "database": _database(lab, "nova_cell1"),
        "keystone_authtoken": _token_check(lab, "nova", secrets),
        "placement": client,
        "neutron": client,
        "glance": client,
        "service_user": {"send_service_user_token": True, **client},
        "cinder": {"auth_type": "none"},
        "vnc": {"enabled": False},
        "compute": {"provider_config_location": lab.etc / "nova" / "provider_config"},  # not what this machine has
        # Nova reads it again at every update of a host's inventory, so it cannot be one host's own where hosts share a
        # process. It says nothing about a host that offers no device.
        "pci": {"report_in_placement": True},
        "quota": {"driver": "nova.quota.UnifiedLimitsDriver"},
        "oslo_limit": _system_login(lab, "nova", secrets)
        | {"endpoint_service_type": "compute", "endpoint_region_name": REGION, "endpoint_interface": "public"},
        "conductor": {"workers": 1},
        "wsgi": {"api_paste_config": lab.etc / "nova" / "api-paste.ini"},
        "oslo_concurrency": _locks(lab),
    }


def _database(lab: Lab, name: str) -> Section:
    return {"connection": lab.database_url(name)}


def _locks(lab: Lab) -> Section:
    return {"lock_path": lab.data / "locks"}


def _login(lab: Lab, user: str, secrets: Mapping[str, str]) -> Section:
    return {
        "auth_type": "password",
        "auth_url": lab.endpoint("keystone"),
        "username": user,
        "password": secrets[user],
        "user_domain_id": "default",
        "region_name": REGION,
    }


def _service_login(lab: Lab, user: str, secrets: Mapping[str, str]) -> Section:
    return _login(lab, user, secrets) | {"project_name": "service", "project_domain_id": "default"}


def _system_login(lab: Lab, user: str, secrets: Mapping[str, str]) -> Section:
    """Return a login for limits: reading those of every project takes a role on the system."""
    return _login(lab, user, secrets) | {"system_scope": "all"}


def _token_check(lab: Lab, user: str, secrets: Mapping[str, str]) -> Section:
    return _service_login(lab, user, secrets) | {
        "www_authenticate_uri": lab.endpoint("keystone"),
        "service_token_roles": "service",
        "service_token_roles_required": True,
        # Without it nobody gets in with credentials that have access rules, as those of 'gpuyard site bootstrap' do.
        "service_type": next(api.type for api in APIS if api.name == user),
    }
