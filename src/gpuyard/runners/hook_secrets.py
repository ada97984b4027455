"""Reads the webhooks' secrets from the files that the site names, and reads a file again when it changes.

So a secret can be replaced while gpuyard runs. The files are looked at every 5 seconds at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuyard.runners.webhook import secrets_of
from gpuyard.site.runner_rules import Enrolment

LOG = logging.getLogger(__name__)
LOOK_EVERY = 5.0
"""Seconds between checks of the files."""
MOST_BYTES = 64 * 1024
"""Bytes that are read of a file."""


class HookSecrets:
    """The secrets of all enrolments that have a file of them. Use it in one thread, such as an event loop."""

    def __init__(self, enrolments: Sequence[Enrolment], clock: Callable[[], float] = time.monotonic) -> None:
        self._files = {
            enrolment.name: Path(enrolment.webhook_secrets_file)
            for enrolment in enrolments
            if enrolment.webhook_secrets_file
        }
        self._clock, self._looked = clock, float("-inf")
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._secrets: dict[str, Sequence[bytes]] = {}
        self._told: dict[str, str] = {}

    def __call__(self) -> Mapping[str, Sequence[bytes]]:
        """Return the secrets that are valid now, by the enrolment's name. While a file cannot be read, its last secrets
        stay."""
        if self._clock() - self._looked >= LOOK_EVERY:
            self._looked = self._clock()
            for name, path in self._files.items():
                self._look(name, path)
        return self._secrets

    def _look(self, name: str, path: Path) -> None:
        try:
            stat = path.stat()
            fingerprint = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._seen.get(name) == fingerprint:
                return
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            self._tell(name, f"{path} with the secrets of its webhook cannot be read: {why}")
            return
        self._seen[name], self._secrets[name] = fingerprint, secrets_of(text)
        self._tell(name, "" if self._secrets[name] else f"{path} has no secret in it; its webhooks are refused")

    def _tell(self, name: str, trouble: str) -> None:
        """Log each trouble once."""
        if trouble and self._told.get(name) != trouble:
            LOG.warning("%s: %s", name, trouble)
        self._told[name] = trouble
