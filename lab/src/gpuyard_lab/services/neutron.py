"""The process of Neutron: the API and ML2, no agent; ml2.py has the mechanism driver that makes do without."""

from __future__ import annotations

import os
import sys

from gpuyard_lab.services.startup import serve_wsgi
from gpuyard_lab.settings import Lab


def prepare(lab: Lab) -> None:
    os.environ["OS_NEUTRON_CONFIG_DIR"] = str(lab.etc / "neutron")
    os.environ["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
    # All models, also of extensions that are off: a query for ports needs relations to some of them.
    import neutron.db.migration.models.head
    import neutron.server  # noqa: F401
    import sqlalchemy.orm

    sqlalchemy.orm.configure_mappers()


def create(lab: Lab) -> None:
    """Make the schema: by Neutron's migrations on MySQL, from its models elsewhere, where the migrations do not run."""
    url = lab.database_url("neutron")
    if url.startswith(("mysql", "mariadb")):
        _migrate(lab)
    else:
        _create_all(url)


def _migrate(lab: Lab) -> None:
    from neutron.db.migration import cli

    config = str(lab.etc / "neutron" / "neutron.conf")
    sys.argv = ["neutron-db-manage", "--config-file", config, "upgrade", "head"]
    if cli.main():
        raise RuntimeError("neutron-db-manage upgrade failed")


def _create_all(url: str) -> None:
    import sqlalchemy
    from neutron.db.migration.models import head

    engine = sqlalchemy.create_engine(url)
    head.get_metadata().create_all(engine)
    engine.dispose()


def serve(lab: Lab) -> None:
    try:
        from neutron.wsgi.api import application
    except ModuleNotFoundError:  # before 2024.2
        from neutron.server import api_eventlet, boot_server

        application = boot_server(api_eventlet.eventlet_api_server)
    serve_wsgi(application, lab, "neutron")
