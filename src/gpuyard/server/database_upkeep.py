"""Operators' work on the database of a site: back it up, restore it, upgrade its tables, check it.

A restore first becomes the leader of both roles, so that no portal leads meanwhile, and compares the backup
with the present data. Before anything is replaced, the present data is kept in a file beside the backup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard import installed_version
from gpuyard.database.backup import (
    BackupNote,
    back_up,
    note_of,
    open_tool,
    refuse_in_use,
    replace_all,
    set_aside,
    unpack,
)
from gpuyard.database.check import SchemaVersion, problems, versions
from gpuyard.database.engine import Database, parse_url
from gpuyard.database.errors import StoreError
from gpuyard.database.leader_election import LeaderElection
from gpuyard.database.migrate import migrate
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.text import counted
from gpuyard.runtime.leader_roles import BOOKINGS, RUNNERS
from gpuyard.server.schema_modules import SCHEMA_MODULES
from gpuyard.server.since import kept, lost_since

STAMP = "%Y%m%dT%H%M%SZ"
STAMPED = r"-\d{8}T\d{6}Z\.db"


def make_backup(url: str, site: str, target: Path, now: datetime, keep: int | None = None) -> Path:
    """Back up a database, and return the file: `target`, or in it when it is a folder, with the site and the time in
    its name. Only the newest `keep` of those in the folder stay; with it the folder is made when it is not there, for
    its owner alone, since a backup holds everybody's bookings. Raises StoreError, and UsageError."""
    if keep is not None:
        try:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise UsageError(f"--keep is about a folder of backups, and {target} is a file") from None
        except OSError as error:
            raise UsageError(f"cannot make the folder {target}: {error.strerror}") from None
    path = target / f"{site}-{now:{STAMP}}.db" if target.is_dir() else target
    with closing(open_tool(url)) as database:
        back_up(database, SCHEMA_MODULES, path, BackupNote(now, installed_version()))
    if keep is not None:
        ours = re.compile(re.escape(site) + STAMPED)
        old = sorted(entry for entry in target.iterdir() if ours.fullmatch(entry.name))
        for backup in old[:-keep]:
            backup.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class Restoration:
    """A restore that is prepared and not begun: the backup, and what would be lost."""

    url: str
    backup: Path
    unpacked: Database
    note: BackupNote | None
    lost: list[str] | None
    """Lines about what has been written since; None when the present data cannot be read."""
    unreadable: str = ""
    """Why it cannot be read."""
    empty: bool = False
    """Whether there is no present data."""

    def words(self, now: datetime) -> Iterator[str]:
        when = (
            f"of {self.note.made:%Y-%m-%d %H:%M} UTC, by gpuyard {self.note.release}"
            if self.note
            else "of unknown time"
        )
        yield f"{self.backup} is a backup {when}"
        if self.lost is None:
            yield f"what has been written since cannot be compared: {self.unreadable}"
            yield "bookings, holds and quarantines made since will be unknown; their servers go on"
        elif self.lost:
            yield from self.lost
        else:
            yield "nothing that is there now would be lost"


@contextmanager
def prepared(url: str, backup: Path, now: datetime) -> Iterator[Restoration]:
    """Unpack a backup and compare it with the present data. Raises StoreError when the backup cannot be used, and
    BlockedError while a portal serves."""
    with TemporaryDirectory(prefix="gpuyard-restore-") as folder, _nobody_serves(url):
        note = note_of(backup) if backup.is_file() else None
        with closing(unpack(backup, Path(folder) / "backup.db", SCHEMA_MODULES)) as unpacked:
            if _is_empty(url):
                yield Restoration(url, backup, unpacked, note, [], empty=True)
                return
            lost, unreadable = _compared(url, unpacked, Path(folder), now)
            yield Restoration(url, backup, unpacked, note, lost, unreadable)


def _is_empty(url: str) -> bool:
    try:
        return not is_there(url) or not any(site_version.at for site_version in site_versions(url))
    except StoreError:
        return False


def _compared(url: str, unpacked: Database, folder: Path, now: datetime) -> tuple[list[str] | None, str]:
    try:
        with closing(open_tool(url)) as database:
            back_up(database, SCHEMA_MODULES, folder / "present.db", BackupNote(now, installed_version()))
        with closing(unpack(folder / "present.db", folder / "here.db", SCHEMA_MODULES)) as present:
            return lost_since(kept(present, now), kept(unpacked, now), now), ""
    except StoreError as error:
        return None, str(error)


def restore(plan: Restoration, now: datetime) -> Path | None:
    """Apply it; return the file beside the backup that keeps the replaced data. Raises BlockedError and StoreError."""
    aside = plan.backup.with_name(f"{plan.backup.name}.replaced-{now:{STAMP}}")
    replaced_data_path = None if plan.empty else aside
    if plan.empty:
        pass
    elif plan.lost is not None:
        with closing(open_tool(plan.url)) as database:
            back_up(database, SCHEMA_MODULES, aside, BackupNote(now, installed_version()))
    else:
        replaced_data_path = aside if set_aside(parse_url(plan.url), aside) else None
    with closing(Database(plan.url, statement=0)) as database:
        replace_all(database, SCHEMA_MODULES, plan.unpacked)
    return replaced_data_path


@contextmanager
def _nobody_serves(url: str) -> Iterator[None]:
    """As long as the block lasts no portal becomes the leader. Raises BlockedError when one is, or is there."""
    if not is_there(url):
        yield
        return
    database = open_tool(url)
    election = LeaderElection(database, silence=0)  # also while somebody has stopped it with ^Z
    try:
        for name in (BOOKINGS, RUNNERS):
            if not election.try_to_lead(name):
                raise BlockedError(f"a portal keeps {database.name}: stop it first (systemctl stop gpuyard)")
        refuse_in_use(database)
        yield
    finally:
        election.resign()
        database.close()


def is_there(url: str) -> bool:
    """Return whether there is a file, or a server that can be asked."""
    parsed = parse_url(url)
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").is_file()


def upgrade(url: str, say: Callable[[str], None]) -> None:
    """Bring the tables of all schema modules to this release, reporting each step. Raises StoreError."""
    with closing(open_tool(url)) as database:
        before = versions(database, SCHEMA_MODULES)
        for schema_module, was in zip(SCHEMA_MODULES, before, strict=True):
            migrate(database.url, schema_module)
            if was.at != was.newest:
                say(f"{schema_module.name}: {was.at or 'nothing'} -> {was.newest}")
    if not any(version.due for version in before):
        say("nothing to do: the tables are those of this release")


def site_versions(url: str) -> list[SchemaVersion]:
    with closing(open_tool(url)) as database:
        return versions(database, SCHEMA_MODULES)


def checked(url: str) -> tuple[list[str], list[str]]:
    """Return what is broken, and what an upgrade would change. Raises StoreError when the database cannot be read."""
    with closing(open_tool(url)) as database:
        schema_versions = versions(database, SCHEMA_MODULES)
        broken = problems(database, SCHEMA_MODULES)
    broken += [
        f"{version.room}: {version.unknown} ({version.at}; this one knows {version.newest}): {version.unknown.remedy}"
        for version in schema_versions
        if version.unknown
    ]
    due = [
        f"{version.room}: at {version.at or 'nothing'}, this release has {version.newest}"
        for version in schema_versions
        if version.due
    ]
    return broken, due


def refuse_old_tables(url: str) -> None:
    """Raise BlockedError when starting would upgrade tables, which the operator wants to do explicitly."""
    if not is_there(url):
        return
    if due := [site_version for site_version in site_versions(url) if site_version.at is not None and site_version.due]:
        rooms = counted(len(due), "room")
        raise BlockedError(
            f"the tables of {rooms} ({', '.join(old.room for old in due)}) are of an older release: run gpuyard db "
            "backup and gpuyard db upgrade, or start without --no-upgrade"
        )
