"""Installs the portal as a service of the machine that runs the deployment, as docs/how-to/run-as-a-service.md
describes.

The operator's own credentials and settings stay: they are written only where there are none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.deployment.programs import said_by
from gpuyard.deployment.state import ServiceState
from gpuyard.model.errors import GpuyardError
from gpuyard.runtime.config_files import Change, read_text, write
from gpuyard.site.schema import Site

SITE, CREDENTIALS, SETTINGS = "etc/gpuyard/site.yaml", "etc/gpuyard/credentials/clouds.yaml", "etc/default/gpuyard"
UNIT_FILE, UNIT = "etc/systemd/system/gpuyard.service", "gpuyard"
PORT = re.compile(r"^GPUYARD_PORT=[\"']?([0-9]{1,5})[\"']?\s*$", re.MULTILINE)
USUAL_PORT = 8080
TO_ACCEPT = "to be accepted"
"""State of a GPU as 'gpuyard gpu health' shows it."""
SECONDS = 1200.0
"""Seconds for a start, which ends when the unit serves: minutes where tables are upgraded."""


@dataclass(frozen=True)
class DeployService:
    """The service below `root`; `systemctl` and `gpuyard` are programs."""

    root: Path
    systemctl: Sequence[str]
    gpuyard: Sequence[str]
    site_file: Path
    site: Site
    clouds: Path
    """The administrator's clouds.yaml, with which it serves until it has credentials of its own."""
    cloud: str

    def look(self) -> ServiceState:
        try:
            changes = self.changes()
            active = self._run([*self.systemctl, "is-active", UNIT], fails=True).strip() == "active"
            waits = self._waiting() if active and not changes else None
            return ServiceState("", tuple(f"{change.sign} {change.path}" for change in changes), active, waits)
        except GpuyardError as error:
            return ServiceState(problem=str(error))

    def start(self) -> None:
        """Write what differs, and start or restart the unit. Raises GpuyardError."""
        if self.root == Path("/") and os.geteuid():
            raise GpuyardError("only root may make a service; type it as root")
        changes = self.changes()
        for folder, mode in (("etc/gpuyard", 0o755), ("etc/gpuyard/credentials", 0o700), ("etc/default", 0o755)):
            self._folder(self.root / folder, mode)
        for change in changes:
            if change.path == self.root / CREDENTIALS:
                self._keep_secret(change)
            else:
                write(change)
                change.path.chmod(0o644)
        self._run([*self.systemctl, "daemon-reload"])
        self._run([*self.systemctl, "enable", UNIT])
        # One that serves already goes on with what has changed.
        self._run([*self.systemctl, "restart" if changes else "start", UNIT])

    def accept(self) -> list[str]:
        """Return the words of the command that has all waiting GPUs accepted."""
        return ["gpu", "accept", "--wait", *self._of_portal]

    def changes(self) -> tuple[Change, ...]:
        """Return the changes of its files. Raises GpuyardError."""
        texts: dict[str, str] = {SITE: self._text(self.site_file)}
        for host in self.site.hosts.values():
            texts[f"etc/gpuyard/{host.recording}"] = self._text(self.site_file.parent / host.recording)
        texts[UNIT_FILE] = self._run([*self.gpuyard, "serve", "--unit"])
        first = {CREDENTIALS: self._text(self.clouds), SETTINGS: f"OS_CLOUD={self.cloud}\n"}
        texts |= {path: text for path, text in first.items() if not _is_there(self.root / path)}
        changes = (Change(self.root / path, read_text(self.root / path), text) for path, text in texts.items())
        return tuple(change for change in changes if change.before != change.after)

    @property
    def _of_portal(self) -> list[str]:
        match = PORT.search(read_text(self.root / SETTINGS) or "")
        return ["--url", f"http://127.0.0.1:{match[1] if match else USUAL_PORT}", "--os-cloud", self.cloud]

    def _waiting(self) -> tuple[str, ...]:
        """GPUs that are kept back until they are accepted. Raises GpuyardError."""
        if not self.accepts:
            return ()
        variables = {"OS_CLIENT_CONFIG_FILE": str(self.clouds.absolute())}
        words = [*self.gpuyard, "gpu", "health", "-f", "json", *self._of_portal]
        try:
            rows = json.loads(self._run(words, variables=variables))
            return tuple(f"{row['Host']}/{row['Address']}" for row in rows if row["State"] == TO_ACCEPT)
        except (ValueError, KeyError, TypeError):
            raise GpuyardError("the portal's list of GPUs is none that this gpuyard knows") from None

    @property
    def accepts(self) -> bool:
        """Whether the site names a project in which servers accept GPUs."""
        return self.site.health is not None and (
            self.site.health.acceptance is not None and self.site.health.acceptance.project is not None
        )

    def _text(self, path: Path) -> str:
        text = read_text(path)
        if text is None:
            raise GpuyardError(f"{path} is not there, and the service needs it")
        return text

    def _keep_secret(self, change: Change) -> None:
        """Nobody else may read it, not for a moment."""
        fresh = change.path.with_name(f".{change.path.name}.gpuyard")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(change.after or "")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(change.path)

    def _folder(self, path: Path, mode: int) -> None:
        if not path.is_dir():
            path.mkdir(parents=True)
            path.chmod(mode)

    def _run(self, words: Sequence[str], fails: bool = False, variables: Mapping[str, str] | None = None) -> str:
        """What it printed. Raises GpuyardError, unless it `fails` as well as it may."""
        missing, more = (
            "the service needs systemd and an installed gpuyard",
            f"; 'systemctl status {UNIT}' may say more",
        )
        return said_by(words, {**os.environ, **(variables or {})}, SECONDS, missing, more, fails)


def _is_there(path: Path) -> bool:
    """Raises GpuyardError for whom the folder does not say."""
    try:
        return path.exists()
    except PermissionError as error:
        raise GpuyardError(f"{path}: {error.strerror}; type it as root") from None
