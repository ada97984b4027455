"""Generates the gateway's systemd units: nginx with no rights but to its ports, and the copy of its certificate."""

from __future__ import annotations

from gpuyard.host.units import HARDENED

USER = "gpuyard-gateway"
STATE = f"/var/lib/{USER}"
FOLDER = "/etc/gpuyard/gateway"
OF_ITS_USER = HARDENED.replace("DynamicUser=yes\n", "")
"""Hardening for a permanent user: files of others belong to its group."""
NGINX = f"/usr/sbin/nginx -e stderr -p {STATE}/ -c {FOLDER}/nginx.conf"

SERVICE = f"""\
[Unit]
Description=gpuyard: the gateway of a cloud
Wants=network-online.target
After=network-online.target gpuyard-tunnel.service
Conflicts=nginx.service

[Service]
Type=forking
PIDFile={STATE}/nginx.pid
Environment=TZ=UTC
ExecStart={NGINX}
# A configuration that is wrong changes nothing.
ExecReload={NGINX} -t -q
ExecReload=/bin/kill -HUP $MAINPID
# Answers that have begun are finished; open pages are cut off after this time.
KillMode=mixed
KillSignal=SIGQUIT
TimeoutStopSec=30
Restart=on-failure
RestartSec=5
LimitNOFILE=16384
MemoryMax=1G
TasksMax=64
User={USER}
StateDirectory={USER}
StateDirectoryMode=0750
AmbientCapabilities=CAP_NET_BIND_SERVICE
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
PrivateDevices=yes
ProtectKernelLogs=yes
ProcSubset=pid
{OF_ITS_USER}
[Install]
WantedBy=multi-user.target
"""
CERTIFICATE = f"""\
[Unit]
Description=gpuyard: gives the gateway the certificate that certbot has got

[Service]
Type=oneshot
ExecStart=/usr/bin/install -g {USER} -m 0640 /etc/letsencrypt/live/gpuyard/privkey.pem {FOLDER}/tls/privkey.pem
ExecStart=/usr/bin/install -g {USER} -m 0644 /etc/letsencrypt/live/gpuyard/fullchain.pem {FOLDER}/tls/fullchain.pem
ExecStart=+/usr/bin/systemctl reload gpuyard-gateway
# It reads root's files and writes two. Only who may all can ask systemd for a reload where there is no polkit.
CapabilityBoundingSet=CAP_CHOWN
NoNewPrivileges=yes
PrivateNetwork=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={FOLDER}/tls
ProtectHome=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""


def gateway_files() -> dict[str, str]:
    """Return path below the folder -> text."""
    return {
        "gateway/etc/systemd/system/gpuyard-gateway.service": SERVICE,
        "gateway/etc/systemd/system/gpuyard-gateway-certificate.service": CERTIFICATE,
        "gateway/etc/sysusers.d/gpuyard-gateway.conf": f'u {USER} - "The gateway of gpuyard" {STATE}\n',
        "gateway/etc/tmpfiles.d/gpuyard-gateway.conf": "".join(
            f"d {folder} 0755 root root\n" for folder in (f"{STATE}/acme", f"{FOLDER}/tls")
        ),
    }
