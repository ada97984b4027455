"""The process of Keystone and Placement."""

from __future__ import annotations

import os

from gpuyard_lab.catalog import REGION
from gpuyard_lab.credentials import ADMIN, passwords
from gpuyard_lab.services import placement
from gpuyard_lab.services.startup import serve_wsgi, serve_wsgi_in_background
from gpuyard_lab.settings import Lab


def prepare(lab: Lab) -> None:
    os.environ["OS_KEYSTONE_CONFIG_DIR"] = str(lab.etc / "keystone")
    import keystone.server.flask.core  # noqa: F401

    placement.prepare(lab)


def create(lab: Lab) -> None:
    """Make the schema and the first accounts, as ``keystone-manage db_sync`` and ``bootstrap`` do, and Placement's
    schema."""
    import keystone.conf
    from keystone.cmd import bootstrap
    from keystone.common import sql
    from keystone.common.sql import upgrades

    keystone.conf.configure()
    sql.initialize()
    keystone.conf.CONF([], project="keystone", default_config_files=[str(lab.etc / "keystone" / "keystone.conf")])
    upgrades.offline_sync_database_to_version()

    work = bootstrap.Bootstrapper()
    work.admin_username = work.project_name = work.admin_role_name = ADMIN
    work.admin_password = passwords(lab)[ADMIN]
    work.service_name = "keystone"
    work.region_id = REGION
    work.immutable_roles = True
    work.public_url = work.internal_url = work.admin_url = lab.endpoint("keystone")
    work.bootstrap()

    placement.create(lab)


def serve(lab: Lab) -> None:
    try:
        from keystone.wsgi.api import application
    except ModuleNotFoundError:  # before 2024.2
        from keystone.server.wsgi import initialize_public_application

        application = initialize_public_application()
    placement.serve(lab, serve_wsgi_in_background)
    serve_wsgi(application, lab, "keystone")
