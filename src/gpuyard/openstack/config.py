"""Finds the cloud to use in clouds.yaml or the OS_* variables, as `openstack` does, with errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keystoneauth1 import exceptions as auth_errors
from openstack import exceptions as sdk_errors
from openstack.config import OpenStackConfig
from openstack.config.cloud_region import CloudRegion
from openstack.config.loader import CONFIG_FILES
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from gpuyard.model.errors import UsageError

WRONG = (sdk_errors.ConfigException, auth_errors.MissingRequiredOptions, auth_errors.MissingAuthPlugin)


ELSEWHERE = "gpuyard"
"""Key of a cloud in clouds.yaml that has its `Elsewhere`."""


@dataclass(frozen=True)
class Elsewhere:
    """Other clouds of the same clouds.yaml, for requests that the credentials of one are not good for. An application
    credential is for one project, and never for the system."""

    limits: str = ""
    """The cloud whose Keystone shows the limits of all projects; empty: this one."""
    projects: Mapping[str, str] = field(default_factory=dict)
    """Project's id -> cloud."""
    clouds_file: Path | None = None
    """The file with these clouds; None: the one that is found by default."""

    @classmethod
    def of(cls, document: object, cloud: str | None, clouds_file: Path | None = None) -> Elsewhere:
        """Parse a cloud's entry. Raises UsageError."""
        if document is None:
            return cls()
        if isinstance(document, dict) and document.keys() <= {"limits", "projects"}:
            parts = {"": document.get("limits", "")}, document.get("projects", {})
            if all(isinstance(part, dict) and all(map(_is_text, (*part, *part.values()))) for part in parts):
                return cls(parts[0][""], dict(parts[1]), clouds_file)
        raise UsageError(
            f"cloud {cloud}: {ELSEWHERE!r} in clouds.yaml has 'limits', a cloud, and 'projects', clouds by the ids of "
            "projects; 'gpuyard site bootstrap' writes it"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class NoCloudError(UsageError):
    """Raised when no cloud is named, and none can be found."""


def find_cloud(cloud: str | None, clouds_file: Path | None, timeout: float | None = None) -> CloudRegion:
    """Return a cloud of clouds.yaml; None means OS_CLOUD or the OS_* variables. Raises UsageError, which is a
    NoCloudError when none is named.

    `clouds_file` is used in place of the clouds.yaml that would be found, and of the environment. `timeout`:
    seconds, also for the requests that get a token.
    """
    try:
        # force_ipv4 is about addresses of servers, and we ask for none. Without it the SDK looks by netlink which ones
        # this machine has, and the unit of the portal forbids netlink.
        config = OpenStackConfig(
            config_files=[str(clouds_file)] if clouds_file else None, load_envvars=not clouds_file, force_ipv4=True
        )
        return config.get_one(cloud, app_name="gpuyard", api_timeout=timeout)
    except (*WRONG, AttributeError, TypeError) as error:  # the last two: what is no mapping where one should be
        refuse_broken(clouds_file)
        if not isinstance(error, WRONG):
            raise
        do = "name one of clouds.yaml with --os-cloud or OS_CLOUD"
        reason = str(error).rstrip(".")
        if cloud:
            raise UsageError(f"cloud {cloud} cannot be used: {reason}; {do}") from None
        # Without any of the OS_* variables the SDK's words are about one of them that nobody wanted to set.
        raise NoCloudError("no cloud is named" + ("" if "auth_url" in reason else f": {reason}") + f"; {do}") from None


def refuse_broken(clouds_file: Path | None) -> None:
    """Raise UsageError when the clouds.yaml that is used cannot be read as one, which openstacksdk passes over."""
    named = clouds_file or os.environ.get("OS_CLIENT_CONFIG_FILE")
    path = next(
        (Path(candidate) for candidate in ([named] if named else CONFIG_FILES) if os.path.exists(candidate)), None
    )
    if path is None:
        return
    try:
        document = YAML(typ="safe", pure=True).load(path)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line} is not YAML: {error.problem or error.context}") from None
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    clouds = document.get("clouds") if isinstance(document, dict) else None
    if not isinstance(clouds, dict):
        raise UsageError(f"{path} has no 'clouds:' with the clouds by name; see openstacksdk's page on clouds.yaml")
    for name, entry in clouds.items():
        if not isinstance(entry, dict):
            raise UsageError(f"{path}: cloud {name} has no settings; write auth, region_name and so on below its name")
