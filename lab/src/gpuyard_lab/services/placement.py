"""Placement, which shares a process with Keystone: it keeps its configuration in an object of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpuyard_lab.settings import Lab


def prepare(lab: Lab) -> None:
    os.environ["OS_PLACEMENT_CONFIG_DIR"] = str(lab.etc / "placement")
    import placement.wsgi  # noqa: F401


def create(lab: Lab) -> None:
    """Make the schema, as ``placement-manage db sync`` does."""
    from oslo_config import cfg
    from placement import conf, db_api
    from placement.db.sqlalchemy import migration

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    config([], project="placement", default_config_files=[str(lab.etc / "placement" / "placement.conf")])
    db_api.configure(config)
    migration.upgrade("head")


def serve(lab: Lab, serve_wsgi: Callable[[Any, Lab, str], None]) -> None:
    try:
        from placement.wsgi.api import application
    except ModuleNotFoundError:  # before 2025.1
        from placement.wsgi import init_application

        application = init_application()
    serve_wsgi(application, lab, "placement")
