"""Adopts secrets from the service manager: systemd's ``LoadCredential`` puts them into a folder that nobody else reads,
and names it in ``CREDENTIALS_DIRECTORY``."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from gpuyard.model.errors import UsageError

FOLDER = "CREDENTIALS_DIRECTORY"
CLOUDS = ("clouds.yaml", "OS_CLIENT_CONFIG_FILE")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
PREFIX = "gpuyard_"
"""Prefix of the names of files when systemd is given a folder, ``LoadCredential=gpuyard:/etc/...``."""
MOST = 64 * 1024
"""Most bytes of a variable."""


def adopt(environment: MutableMapping[str, str]) -> None:
    """Add the credentials to the environment, with a variable for each that is named like one: ``GPUYARD_DATABASE``,
    ``GPUYARD_SMTP_PASSWORD``. A credential ``clouds.yaml`` becomes OS_CLIENT_CONFIG_FILE. Variables that the
    environment has already stay. Raises UsageError for a credential that cannot be read."""
    folder = environment.get(FOLDER, "")
    if not folder:
        return
    try:
        for path in sorted(Path(folder).iterdir()):
            name = path.name.removeprefix(PREFIX)
            if name == CLOUDS[0]:
                environment.setdefault(CLOUDS[1], str(path))
            elif VARIABLE.fullmatch(name):
                environment.setdefault(name, _text(path))
    except OSError as error:
        raise UsageError(f"the credentials in {folder} cannot be read: {error.strerror}") from None


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise UsageError(f"the credential {path.name} is larger than {MOST} bytes")
    try:
        return content.decode().rstrip("\n")
    except UnicodeDecodeError:
        raise UsageError(f"the credential {path.name} is no text") from None
