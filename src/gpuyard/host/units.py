"""The systemd units of hosts: the watch and the scrub.

The watch has a user of its own for as long as it runs, which may read what everybody may, and the kernel's log. The
scrub is root: it opens whole IOMMU groups, and reads all of the configuration space.
"""

from __future__ import annotations

import re
from typing import Mapping

from gpuyard.model.errors import UsageError

ZIPAPP = "/usr/local/lib/gpuyard/gpuyard-host.pyz"
WATCH_TOKEN = "/etc/gpuyard/watch.token"  # noqa: S105 - a path
SCRUB_TOKEN = "/etc/gpuyard/scrub.token"  # noqa: S105 - a path
PLAIN = re.compile(r"[A-Za-z0-9._:/\[\]@+-]*", re.ASCII)
"""What needs no quoting in a unit; a URL with a percent sign in it is nobody's portal."""

HARDENED = """\
DynamicUser=yes
UMask=0077
NoNewPrivileges=yes
DevicePolicy=closed
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
PrivateTmp=yes
PrivateMounts=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
"""
"""What a service may not do that needs a network and no more of the machine than its own state; it is nobody's user."""

WATCH = """\
# Written by gpuyard: gpuyard host watch --unit
[Unit]
Description=gpuyard: tells the portal how this host's GPUs are
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=/usr/bin/python3 -IB {zipapp} watch --token-file ${{CREDENTIALS_DIRECTORY}}/token {words}
LoadCredential=token:{token}
Restart=always
RestartSec=10
MemoryMax=128M
TasksMax=16
Nice=5
# It only looks. Reading the kernel's log is all that takes a right.
CapabilityBoundingSet=CAP_SYSLOG
AmbientCapabilities=CAP_SYSLOG
DeviceAllow=/dev/kmsg r
{hardened}
[Install]
WantedBy=multi-user.target
"""


SCRUB = """\
# Written by gpuyard: gpuyard host scrub --unit
[Unit]
Description=gpuyard: resets GPUs between two servers
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=/usr/bin/python3 -IB {zipapp} scrub --token-file ${{CREDENTIALS_DIRECTORY}}/token {words}
LoadCredential=token:{token}
Restart=always
RestartSec=10
# It is root and sees all devices and processes, or it could not tell that nobody has a GPU open. It needs nothing else.
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=yes
ProtectControlGroups=yes
ProtectHostname=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
MemoryMax=256M
TasksMax=32

[Install]
WantedBy=multi-user.target
"""


def watch_unit(url: str, host: str, ca_file: str, every: str) -> str:
    """``gpuyard-watch.service``. Raises UsageError for words that a unit cannot have as they are."""
    words = _words({"--url": url, "--host": host, "--ca-file": ca_file, "--every": every})
    return WATCH.format(zipapp=ZIPAPP, token=WATCH_TOKEN, words=words, hardened=HARDENED)


def scrub_unit(url: str, host: str, ca_file: str) -> str:
    """``gpuyard-scrub.service``. Raises UsageError for words that a unit cannot have as they are."""
    words = _words({"--url": url, "--host": host, "--ca-file": ca_file})
    return SCRUB.format(zipapp=ZIPAPP, token=SCRUB_TOKEN, words=words)


def _words(options: Mapping[str, str]) -> str:
    for option, value in options.items():
        if not PLAIN.fullmatch(value):
            raise UsageError(f"{option} {value}: a unit cannot have that in its command line")
    return " ".join(f"{option} {value}" for option, value in options.items() if value)
