"""Collects all files of a gateway, and plans the changes in a folder that was rendered before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuyard.deployment.gateway.nginx import nginx_conf
from gpuyard.deployment.gateway.steps import steps, takes_webhooks
from gpuyard.deployment.gateway.tunnel import reached, tunnel_files
from gpuyard.deployment.gateway.units import gateway_files
from gpuyard.model.errors import UsageError
from gpuyard.runtime.config_files import Change, plan_tree
from gpuyard.site.gateway_rules import SiteGateway
from gpuyard.site.schema import Site

OURS = "# Written by 'gpuyard gateway render'"
HEADER = f"{OURS}; what is changed in here is lost.\n"
PATTERNS = ("README.txt", "gateway/etc/**/*", "cloud/etc/**/*")
"""Patterns of paths below the folder where files of ours may be."""


def gateway_of(site: Site) -> SiteGateway:
    """Return the site's gateway. Raises UsageError for a site that has none."""
    if site.gateway is None:
        raise UsageError("the site has no gateway; docs/how-to/reach-the-cloud-through-a-gateway.md says what to write")
    return site.gateway


def tree(site: Site) -> dict[str, str]:
    """Return path below the folder -> text. Raises UsageError for a site without a gateway."""
    gateway = gateway_of(site)
    files = {
        "README.txt": steps(site, gateway),
        "gateway/etc/gpuyard/gateway/nginx.conf": nginx_conf(gateway, reached(gateway), takes_webhooks(site)),
        **gateway_files(),
        **tunnel_files(gateway),
    }
    return {name: HEADER + text for name, text in files.items()}


def plan(files: Mapping[str, str], folder: Path) -> tuple[Change, ...]:
    """Plan the changes in a folder. Raises BlockedError when a file there is not gpuyard's."""
    return plan_tree(files, folder, OURS, PATTERNS)
