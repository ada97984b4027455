"""Generates a tree of configuration files for deployments without Kolla, by service and host, ready to be copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuyard.runtime.config_files import Change, plan_tree
from gpuyard.site.compile import CompiledSite
from gpuyard.site.options import file_name, render_ini
from gpuyard.site.provider_config import render_provider_config

OURS = "# Written by 'gpuyard site render'"
HEADER = f"{OURS}; what is changed in here is lost.\n"
PATTERNS = ("placement.conf", "nova/*.conf", "nova/*/*.conf", "nova/*/provider_config/*.yaml")
"""Patterns of paths below the folder where files of ours may be."""


def plain_files(compiled: CompiledSite) -> dict[str, str]:
    """Return path below the folder -> text."""
    files = {
        file_name(options): HEADER + render_ini(options.options) for options in compiled.options if options.options
    }
    for config in compiled.provider_configs:
        if not config.empty:
            files[f"nova/{config.host}/provider_config/gpuyard.yaml"] = HEADER + render_provider_config(config)
    return files


def plan_plain(files: Mapping[str, str], folder: Path) -> tuple[Change, ...]:
    """Plan the changes in a folder. Raises BlockedError when a file there is not gpuyard's."""
    return plan_tree(files, folder, OURS, PATTERNS)
