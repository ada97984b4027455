"""The process of Glance."""

from __future__ import annotations

import os
import sys

from gpuyard_lab.services.startup import serve_wsgi
from gpuyard_lab.settings import Lab


def prepare(lab: Lab) -> None:
    os.environ["OS_GLANCE_CONFIG_DIR"] = str(lab.etc / "glance")
    import glance.common.wsgi_app  # noqa: F401


def create(lab: Lab) -> None:
    """Make the schema, as ``glance-manage db_sync`` does."""
    from glance.cmd import manage

    sys.argv = ["glance-manage", "--config-file", str(lab.etc / "glance" / "glance-api.conf"), "db_sync"]
    if manage.main():
        raise RuntimeError("glance-manage db_sync failed")


def serve(lab: Lab) -> None:
    try:
        from glance.wsgi.api import application
    except ModuleNotFoundError:  # before 2025.1
        from glance.common.wsgi_app import init_app

        application = init_app()
    serve_wsgi(application, lab, "glance")
