"""Generates the systemd unit of the portal. It has a user of its own for as long as it runs, and the state folder is
that user's; secrets come as credentials, which only root can read where they are stored."""

from __future__ import annotations

from pathlib import Path

from gpuyard.host.units import HARDENED
from gpuyard.model.errors import UsageError

HIDDEN = ("/home", "/root", "/tmp", "/run/user", "/var/tmp")  # noqa: S108 - only compared with, nothing is written there
"""Folders that the unit does not see."""

PORTAL = """\
# Written by gpuyard: gpuyard serve --unit
[Unit]
Description=gpuyard: the portal of a GPU cloud, and what keeps bookings and cloud together
Wants=network-online.target
After=network-online.target postgresql.service
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
EnvironmentFile=-/etc/default/gpuyard
LoadCredential=gpuyard:/etc/gpuyard/credentials
ExecStart={program} serve --site /etc/gpuyard/site.yaml $GPUYARD_OPTIONS
ExecReload=/bin/kill -HUP $MAINPID
# A user that has no home, and where nothing can look one up, would end OpenStack's library before it has begun.
Environment=GPUYARD_LOG_FORMAT=json HOME=%S/gpuyard
# While Keystone is away it tries again; what is written wrong does not come right by that.
Restart=always
RestartSec=5
RestartPreventExitStatus=2
# Tables of an older release are brought up to date before it is ready; requests and loops end what they are at.
TimeoutStartSec=15min
TimeoutStopSec=60
WatchdogSec=120
LimitNOFILE=65536
MemoryMax=2G
TasksMax=512
# Nothing of the machine but its state, its port and its cloud.
User=gpuyard
StateDirectory=gpuyard
StateDirectoryMode=0700
CapabilityBoundingSet=
PrivateDevices=yes
ProcSubset=pid
ProtectKernelLogs=yes
PrivateUsers=yes
KeyringMode=private
{hardened}
[Install]
WantedBy=multi-user.target
"""


def portal_unit(program: Path) -> str:
    """Return ``gpuyard.service``. Raises UsageError for a program in a folder that the unit does not see."""
    return PORTAL.format(program=_seen(program), hardened=HARDENED)


def _seen(program: Path) -> Path:
    """The program as the unit names it."""
    where = program.absolute()
    for folder in HIDDEN:
        if any(path.is_relative_to(folder) for path in (where, where.resolve())):
            raise UsageError(
                f"{where} cannot be run by a service that sees nothing of {folder}; install gpuyard elsewhere, as in "
                "python3 -m venv /opt/gpuyard, and take the unit of that one"
            )
    if any(not (letter.isalnum() or letter in "/._-+") for letter in str(where)):
        raise UsageError(f"{where}: a unit cannot have that in its command line")
    return where
