"""The dependencies of gpuyard-lab: gpuyard of the same version, since both are built of one checkout."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):  # type: ignore[misc]  # not there for mypy
    """Adds gpuyard of this version to the dependencies that pyproject.toml gives the hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"gpuyard[server]=={metadata['version']}", *self.config["dependencies"]]
