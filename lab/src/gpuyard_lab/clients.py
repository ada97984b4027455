"""Writes the files that users of a lab read: ``clouds.yaml`` and a small shell file that points to it."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gpuyard.openstack.config import ELSEWHERE
from gpuyard_lab.catalog import REGION
from gpuyard_lab.credentials import ADMIN, DEMO, passwords
from gpuyard_lab.files import write_private
from gpuyard_lab.releases.catalogue import OWN
from gpuyard_lab.settings import Lab

ADMIN_CLOUD = "gpuyard-lab"
SYSTEM_CLOUD = "gpuyard-lab-system"
DEMO_CLOUD = "gpuyard-lab-demo"


def write_client_files(lab: Lab) -> None:
    """Write ``clouds.yaml`` and ``openrc``."""
    text = io.StringIO()
    YAML().dump({"clouds": clouds(lab)}, text)
    write_private(lab.clouds_file, text.getvalue())
    write_private(lab.state / "openrc", openrc(lab))


def clouds(lab: Lab) -> dict[str, Any]:
    """Return the entries of ``clouds.yaml``: admin of a project, admin of the system, and a user like any other."""
    secrets = passwords(lab)

    def cloud(user: str, scope: dict[str, str]) -> dict[str, Any]:
        login = {"auth_url": lab.endpoint("keystone"), "username": user, "password": secrets[user]}
        return {
            "auth": {**login, "user_domain_id": "default", **scope},
            "region_name": REGION,
            "identity_api_version": 3,
        }

    admin = cloud(ADMIN, {"project_name": "admin", "project_domain_id": "default"})
    if lab.release != OWN:
        # Keystone of before 2026.1 shows limits of other projects to a token of the system only.
        admin[ELSEWHERE] = {"limits": SYSTEM_CLOUD}
    return {
        ADMIN_CLOUD: admin,
        SYSTEM_CLOUD: cloud(ADMIN, {"system_scope": "all"}),
        DEMO_CLOUD: cloud(DEMO, {"project_name": "demo", "project_domain_id": "default"}),
    }


def openrc(lab: Lab) -> str:
    """Return the text for ``. openrc``: after it, ``openstack`` and ``gpuyard`` talk to the lab."""
    variables = {
        "GPUYARD_LAB_STATE": str(lab.state),
        "GPUYARD_DATABASE": lab.portal_database,
        "OS_CLIENT_CONFIG_FILE": str(lab.clouds_file),
        "OS_CLOUD": ADMIN_CLOUD,
    }
    if lab.site_file:
        variables["GPUYARD_SITE"] = str(lab.site_file)
    programs = shlex.quote(str(Path(sys.executable).parent))
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    # The programs that belong to the lab, unless the shell has them in its PATH already.
    path = f'case ":$PATH:" in *:{programs}:*) ;; *) PATH={programs}:"$PATH" ;; esac\n'
    return "".join([*exports, path])


def demo_login(clouds_file: Path) -> tuple[str, str]:
    """Return user and password of the demo user; it exists to be told to people."""
    auth = YAML(typ="safe").load(clouds_file)["clouds"][DEMO_CLOUD]["auth"]
    return auth["username"], auth["password"]
