"""Generates the tunnel between the gateway and a machine of the cloud: WireGuard, or SSH.

Private keys are made where they are used, and are in none of these files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuyard.deployment.gateway.units import OF_ITS_USER
from gpuyard.host.units import HARDENED
from gpuyard.site.gateway_rules import PublicEndpoint, SiteGateway, Socket, SshTunnel, WireGuardTunnel

INTERFACE = "gpuyard0"
FOLDER = "/etc/gpuyard/tunnel"
USER = "gpuyard-tunnel"
UNIT = "etc/systemd/system/gpuyard-tunnel.service"
DROP_IN = "etc/systemd/system/nftables.service.d/gpuyard-tunnel.conf"
LOOPBACK = "127.0.0.1"
LAST_WAY = 4000000
"""Metric of the route that is taken when there is no other."""
ALIVE_S = 25
"""Seconds of silence after which a firewall on the way may forget a connection."""

FILTER = f"/usr/sbin/nft -f {FOLDER}/filter.nft"
WITH_NFTABLES = """\
# The unit of nftables stops with 'flush ruleset', which takes our filter, too: where it is stopped there is no tunnel.
After=nftables.service
PartOf=nftables.service
"""
FIREWALL = f"""\
# Debian's nftables.conf begins with 'flush ruleset', which takes the filter of gpuyard's tunnel, too: it is made again
# in the same job. Where that fails there is no tunnel; nftables itself goes on.
[Service]
ExecStartPost=-/bin/sh -c '{FILTER} || /usr/bin/systemctl --no-block stop gpuyard-tunnel.service'
ExecReload=-/bin/sh -c '{FILTER} || /usr/bin/systemctl --no-block stop gpuyard-tunnel.service'
"""
"""Drop-in for the unit of nftables. systemd passes on that a unit is stopped, restarted (PartOf) or reloaded
(ReloadPropagatedFrom), but not that it is started; systemd.unit(5)."""
WIREGUARD = """\
[Unit]
Description=gpuyard: the tunnel between gateway and cloud
Wants=network-online.target
After=network-online.target
{firewall}
[Service]
Type=oneshot
RemainAfterExit=yes
Restart=on-failure
RestartSec=10
LoadCredential=key:{folder}/key
ExecStartPre=-/usr/sbin/ip link delete dev {interface}
{before}ExecStart=/usr/sbin/ip link add dev {interface} type wireguard
ExecStart=/usr/bin/wg setconf {interface} {folder}/wireguard.conf
ExecStart=/usr/bin/wg set {interface} private-key ${{CREDENTIALS_DIRECTORY}}/key
ExecStart=/usr/sbin/ip address add {address}/{bits} dev {interface}
ExecStart=/usr/sbin/ip link set dev {interface} mtu {mtu} up
{after}{reload}# Unlike ExecStop it is also run after a start that failed, or was broken off.
ExecStopPost=-/usr/sbin/ip link delete dev {interface}
# It makes an interface, and then there is no process.
AmbientCapabilities=CAP_NET_ADMIN
CapabilityBoundingSet=CAP_NET_ADMIN
RestrictAddressFamilies=AF_NETLINK
{hardened}
[Install]
WantedBy=multi-user.target
"""

SSH = """\
[Unit]
Description=gpuyard: the tunnel from the cloud to its gateway
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
LoadCredential=key:{folder}/key
ExecStart=/usr/bin/ssh -F {folder}/ssh_config -i ${{CREDENTIALS_DIRECTORY}}/key -N gateway
Restart=always
RestartSec=5
MemoryMax=128M
TasksMax=16
User={user}
CapabilityBoundingSet=
PrivateDevices=yes
ProtectKernelLogs=yes
{hardened}
[Install]
WantedBy=multi-user.target
"""


def reached(gateway: SiteGateway) -> dict[str, Socket]:
    """Return where each endpoint leads, as the gateway reaches it."""
    if gateway.ssh is None:
        return {name: endpoint.behind for name, endpoint in gateway.endpoints.items()}
    ports = _ports(gateway.endpoints, gateway.ssh)
    return {name: Socket(LOOPBACK, ports[endpoint.behind]) for name, endpoint in gateway.endpoints.items()}


def _ports(endpoints: Mapping[str, PublicEndpoint], tunnel: SshTunnel) -> dict[Socket, int]:
    """What is in the cloud -> the port of the gateway's loopback at which it comes out."""
    behind = dict.fromkeys(endpoint.behind for endpoint in endpoints.values())
    return {socket: tunnel.first_port + number for number, socket in enumerate(behind)}


def tunnel_files(gateway: SiteGateway) -> dict[str, str]:
    """Return path below the folder, ``gateway/`` or ``cloud/`` first -> text."""
    if gateway.wireguard is not None:
        return _wireguard(gateway.endpoints, gateway.wireguard)
    if gateway.ssh is not None:
        return _ssh(_ports(gateway.endpoints, gateway.ssh), gateway.ssh)
    return {}


def _wireguard(endpoints: Mapping[str, PublicEndpoint], tunnel: WireGuardTunnel) -> dict[str, str]:
    sockets = list(dict.fromkeys(endpoint.behind for endpoint in endpoints.values()))
    beyond = list(dict.fromkeys([tunnel.cloud.address, *(socket.address for socket in sockets)]))
    gateway = f"""\
[Interface]
ListenPort = {tunnel.endpoint.port}

# The cloud's end, and what is behind it: nothing else comes out of the tunnel, or goes into it.
[Peer]
PublicKey = {tunnel.cloud.key}
AllowedIPs = {", ".join(_one(address) for address in beyond)}
"""
    cloud = f"""\
[Interface]

# The gateway.
[Peer]
PublicKey = {tunnel.gateway.key}
AllowedIPs = {_one(tunnel.gateway.address)}
Endpoint = {tunnel.endpoint}
PersistentKeepalive = {ALIVE_S}
"""
    return {
        f"gateway{FOLDER}/wireguard.conf": gateway,
        # While there is no tunnel nothing that is meant for the cloud may take another way.
        f"gateway/{UNIT}": _unit(
            tunnel,
            tunnel.gateway.address,
            before=[f"/usr/sbin/ip route replace blackhole {_one(address)} metric {LAST_WAY}" for address in beyond],
            after=[_route(address) for address in beyond],
        ),
        f"cloud{FOLDER}/wireguard.conf": cloud,
        f"cloud{FOLDER}/filter.nft": _filter(sockets),
        f"cloud/{DROP_IN}": FIREWALL,
        # What the gateway may is said before it can come.
        f"cloud/{UNIT}": _unit(
            tunnel,
            tunnel.cloud.address,
            before=[FILTER],
            after=[_route(tunnel.gateway.address)],
            filtered=True,
        ),
    }


def _unit(
    tunnel: WireGuardTunnel, address: str, before: Sequence[str], after: Sequence[str], filtered: bool = False
) -> str:
    return WIREGUARD.format(
        folder=FOLDER,
        interface=INTERFACE,
        address=address,
        bits=_one(address).rpartition("/")[2],
        mtu=tunnel.mtu,
        before="".join(f"ExecStart={command}\n" for command in before),
        after="".join(f"ExecStart={command}\n" for command in after),
        firewall=WITH_NFTABLES if filtered else "",
        reload=f"ExecReload={FILTER}\n" if filtered else "",
        hardened=HARDENED,
    )


def _route(address: str) -> str:
    return f"/usr/sbin/ip route replace {_one(address)} dev {INTERFACE}"


def _one(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def _filter(sockets: Sequence[Socket]) -> str:
    """For the cloud's end: whoever has the gateway has these ports, and no other, of it and of what it forwards to."""
    passes = "".join(
        f"        {'ip6' if ':' in socket.address else 'ip'} daddr {socket.address} tcp dport {socket.port} accept\n"
        for socket in sockets
    )
    return f"""\
table inet gpuyard_tunnel
delete table inet gpuyard_tunnel
table inet gpuyard_tunnel {{
    chain passes {{
        ct state established,related accept
{passes}        drop
    }}
    chain input {{
        type filter hook input priority -10; policy accept;
        iifname "{INTERFACE}" jump passes
    }}
    chain forward {{
        type filter hook forward priority -10; policy accept;
        iifname "{INTERFACE}" jump passes
    }}
}}
"""


def _ssh(ports: Mapping[Socket, int], tunnel: SshTunnel) -> dict[str, str]:
    listens = [f"{LOOPBACK}:{port}" for port in ports.values()]
    permitted = ",".join(f'permitlisten="{listen}"' for listen in listens)
    return {
        "gateway/etc/ssh/sshd_config.d/50-gpuyard-tunnel.conf": SSHD.format(
            user=USER, folder=FOLDER, listens=" ".join(listens)
        ),
        f"gateway{FOLDER}/authorized_keys": f"restrict,port-forwarding,{permitted} {tunnel.key}\n",
        "gateway/etc/sysusers.d/gpuyard-tunnel.conf": SYSUSER,
        f"cloud{FOLDER}/ssh_config": CLIENT.format(
            endpoint=tunnel.endpoint, user=USER, folder=FOLDER,
            forwards="".join(f"    RemoteForward {LOOPBACK}:{port} {behind}\n" for behind, port in ports.items()),
        ),
        f"cloud{FOLDER}/known_hosts": f"{_known(tunnel.endpoint)} {tunnel.host_key}\n",
        "cloud/etc/sysusers.d/gpuyard-tunnel.conf": SYSUSER,
        f"cloud/{UNIT}": SSH.format(folder=FOLDER, user=USER, hardened=OF_ITS_USER),
    }  # fmt: skip


def _known(endpoint: Socket) -> str:
    return endpoint.address if endpoint.port == 22 else f"[{endpoint.address}]:{endpoint.port}"


SYSUSER = f'u {USER} - "The tunnel of gpuyard"\n'
SSHD = """\
# The cloud's end may have these ports listened at here, and nothing else: no session, no way on from here.
Match User {user}
    AuthorizedKeysFile {folder}/authorized_keys
    AuthenticationMethods publickey
    AllowTcpForwarding remote
    PermitListen {listens}
    GatewayPorts no
    AllowStreamLocalForwarding no
    AllowAgentForwarding no
    X11Forwarding no
    PermitTunnel no
    PermitTTY no
    MaxSessions 0
    ForceCommand /usr/sbin/nologin
    ClientAliveInterval 15
    ClientAliveCountMax 3
Match all
"""
CLIENT = """\
Host gateway
    HostName {endpoint.address}
    Port {endpoint.port}
    User {user}
    IdentitiesOnly yes
    PreferredAuthentications publickey
    StrictHostKeyChecking yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    BatchMode yes
    ConnectTimeout 10
    # A connection of which nothing is heard any more ends, and the unit begins another.
    ServerAliveInterval 15
    ServerAliveCountMax 3
    ExitOnForwardFailure yes
    ForwardAgent no
    ForwardX11 no
    PermitLocalCommand no
{forwards}"""
