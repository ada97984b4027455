"""Instructions for setting up a gateway: what to do with its files, in which order, and what Keystone must know."""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.deployment.gateway.nginx import TLS_HEADER, TLS_VALUE
from gpuyard.deployment.gateway.tunnel import FOLDER as TUNNEL
from gpuyard.deployment.gateway.tunnel import INTERFACE, LOOPBACK
from gpuyard.deployment.gateway.units import FOLDER, STATE, USER
from gpuyard.model.text import counted
from gpuyard.site.gateway_rules import DASHBOARD, SiteGateway
from gpuyard.site.schema import Site

CATALOGUE = {"identity": "/v3", "compute": "/v2.1", "block-storage": "/v3"}
"""Paths of services behind their addresses in the catalogue; the others have none."""
PORTAL_TYPE = "gpu"
KOLLA = {
    "identity": "keystone_public_url",
    "compute": "nova_public_base_endpoint",
    "image": "glance_public_endpoint",
    "network": "neutron_public_endpoint",
    "placement": "placement_public_endpoint",
    "block-storage": "cinder_public_base_endpoint",
    DASHBOARD: "horizon_public_endpoint",
}
"""Kolla's variables of public addresses. Cinder's is for both its types; by Horizon's, Glance and Keystone know its
pages."""
OLD_VOLUMES, OLD_VOLUMES_PATH = "volumev3", "/v3/%(project_id)s"
HORIZON_SETTINGS = f"""\
SECURE_PROXY_SSL_HEADER = ('HTTP_{TLS_HEADER.upper().replace("-", "_")}', '{TLS_VALUE}')
"""
"""Settings of Horizon behind the gateway: it must know that its pages were requested by TLS, or Django refuses each
form."""
SELF_SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=none"
    f" -keyout {FOLDER}/tls/privkey.pem -out {FOLDER}/tls/fullchain.pem"
)


def whether_needed(site: Site) -> str:
    """Return one sentence for readers who only want GitHub's jobs to find their runners."""
    if site.runners is None:
        return "GitHub jobs need no gateway: runner scale sets ask GitHub, and nothing has to come in."
    hooked = [enrolment.name for enrolment in site.runners.enrolments if enrolment.webhook_secrets_file]
    if not hooked:
        return (
            "GitHub jobs do not need this gateway: no enrolment of the site takes webhooks, scale sets and looks at "
            "queues go out. It is for people and for programs that use the cloud."
        )
    return (
        f"GitHub delivers webhooks to {counted(len(hooked), 'enrolment')} ({', '.join(hooked)}). Runner scale sets do "
        "without: with them nothing has to come in for GitHub jobs."
    )


def takes_webhooks(site: Site) -> bool:
    return site.runners is not None and any(enrolment.webhook_secrets_file for enrolment in site.runners.enrolments)


def endpoint_commands(gateway: SiteGateway) -> list[str]:
    """Return the commands of an administrator when the cloud is not Kolla's."""
    urls: dict[str, str] = {
        name: endpoint.public.url + CATALOGUE.get(name, "") for name, endpoint in gateway.services.items()
    }
    if (volumes := gateway.services.get("block-storage")) is not None:
        urls[OLD_VOLUMES] = f"'{volumes.public.url}{OLD_VOLUMES_PATH}'"
    if gateway.portal is not None:
        urls[PORTAL_TYPE] = gateway.portal.public.url
    return [
        f"openstack endpoint set --url {url} "
        f"$(openstack endpoint list --service {kind} --interface public -f value -c ID)"
        for kind, url in urls.items()
    ]


def kolla_variables(gateway: SiteGateway) -> str:
    """Return the text for ``/etc/kolla/globals.d``, or an empty one."""
    endpoints = ((name, endpoint) for name, endpoint in gateway.endpoints.items() if name in KOLLA)
    return "".join(f'{KOLLA[name]}: "{endpoint.public.url}"\n' for name, endpoint in endpoints)


def steps(site: Site, gateway: SiteGateway) -> str:
    """Return ``README.txt``."""
    return "\n".join(_steps(site, gateway)) + "\n"


def _steps(site: Site, gateway: SiteGateway) -> Iterator[str]:
    yield f"The gateway of {site.site}. {whether_needed(site)}"
    yield ""
    yield "What is in gateway/ goes to the public machine (Debian 12 or newer), what is in cloud/ to a machine of the"
    yield "cloud, each below /. No private key is in here: each is made where it is used."
    yield from _tunnel(gateway)
    yield ""
    yield "# On the gateway, as root"
    yield "apt-get install --no-install-recommends nginx certbot && systemctl disable --now nginx"
    yield "cp -r gateway/etc/. /etc/"
    yield "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload"
    yield f"{SELF_SIGNED} && chgrp {USER} {FOLDER}/tls/privkey.pem && chmod 640 {FOLDER}/tls/privkey.pem"
    yield "systemctl enable --now gpuyard-gateway"
    names = " ".join(f"-d {name}" for name in sorted({endpoint.public.name for endpoint in gateway.endpoints.values()}))
    yield (
        f"certbot certonly --webroot -w {STATE}/acme --cert-name gpuyard {names}"
        " --deploy-hook 'systemctl start gpuyard-gateway-certificate'"
    )
    yield "# Its firewall lets in: " + ", ".join(_ports(gateway))
    yield "# After a change: gpuyard gateway render, cp again, and: systemctl reload gpuyard-gateway"
    yield from _catalogue(gateway)
    if gateway.dashboard is not None:
        yield from _dashboard()
    if gateway.consoles:
        yield from _consoles()
    if gateway.portal is not None:
        yield from _portal(gateway)


def _ports(gateway: SiteGateway) -> Iterator[str]:
    yield "TCP 80"
    yield from (f"TCP {port}" for port in sorted({endpoint.public.port for endpoint in gateway.endpoints.values()}))
    if gateway.wireguard is not None:
        yield f"UDP {gateway.wireguard.endpoint.port}"
    if gateway.ssh is not None:
        yield f"TCP {gateway.ssh.endpoint.port} (SSH)"


def _tunnel(gateway: SiteGateway) -> Iterator[str]:
    if gateway.wireguard is not None:
        yield ""
        yield "# On both machines, as root, with what is in gateway/ or cloud/; the cloud's needs nftables, too"
        yield "apt-get install --no-install-recommends wireguard-tools iproute2 nftables"
        yield f"wg pubkey < {TUNNEL}/key  # is the key that the site file has of this machine"
        yield "cp -r gateway/etc/. /etc/  # or cloud/etc/."
        yield "systemctl daemon-reload && systemctl enable --now gpuyard-tunnel"
        yield f"wg show {INTERFACE}  # 'latest handshake' on both, or UDP does not get out"
        yield "# The cloud's end is best the machine that has the services' addresses. Another one must forward"
        yield "# (net.ipv4.ip_forward=1), and those behind it must find their way back to the gateway through it."
    if gateway.ssh is not None:
        yield ""
        yield "# On the machine of the cloud, as root"
        yield f"ssh-keygen -y -f {TUNNEL}/key  # is the key that the site file has"
        yield "# On the gateway, as root"
        yield "cp -r gateway/etc/. /etc/ && systemd-sysusers && sshd -t && systemctl reload ssh"
        yield "# On the machine of the cloud again"
        yield "cp -r cloud/etc/. /etc/ && systemd-sysusers"
        yield "systemctl daemon-reload && systemctl enable --now gpuyard-tunnel"


def _catalogue(gateway: SiteGateway) -> Iterator[str]:
    if not gateway.services and gateway.dashboard is None:
        return
    yield ""
    yield "# Keystone's catalogue must have these public addresses. With Kolla, in /etc/kolla/globals.d/gateway.yml:"
    yield from kolla_variables(gateway).splitlines()
    yield "# and then: kolla-ansible reconfigure. Its toolbox logs in at the public address of Keystone, and so may"
    yield "# Horizon: the cloud's machines must reach the gateway by these names, or find Keystone itself by them."
    yield "# What runs inside, as gpuyard itself, must not go that way: 'interface: internal' in its clouds.yaml."
    yield "# Without Kolla, as administrator:"
    yield from endpoint_commands(gateway)
    if "block-storage" in gateway.services:
        yield f"# (A cloud without the service {OLD_VOLUMES} says that there is none: that is well.)"
    yield "# What services say of themselves (versions, next pages) follows what the gateway tells them, where they"
    yield "# have enable_proxy_headers_parsing = true in [oslo_middleware]; Kolla sets it."


def _dashboard() -> Iterator[str]:
    yield ""
    yield "# Horizon must know that the gateway speaks TLS, or it refuses each form. With Kolla, in"
    yield "# /etc/kolla/config/horizon/_9999-custom-settings.py, and then: kolla-ansible reconfigure --tags horizon."
    yield "# Without Kolla, in its local_settings.py."
    yield from HORIZON_SETTINGS.splitlines()


def _consoles() -> Iterator[str]:
    yield ""
    yield "# Nova must give people the gateway's addresses of consoles; hypervisors' nova-compute makes them."
    yield "gpuyard site render --kolla /etc/kolla && gpuyard site deploy"
    yield "# Without Kolla: 'gpuyard site render' shows the options, below [vnc], [spice] and [serial_console]."


def _portal(gateway: SiteGateway) -> Iterator[str]:
    assert gateway.portal is not None
    behind = gateway.portal.behind
    public = "" if behind.address.startswith("127.") else "--public "
    yield ""
    yield "# The portal, in /etc/default/gpuyard on its machine"
    yield f"GPUYARD_PUBLIC_URL={gateway.portal.public.url}"
    yield f"GPUYARD_HOST={behind.address}"
    yield f"GPUYARD_PORT={behind.port}"
    yield f"GPUYARD_OPTIONS='{public}--gateway {_seen_from(gateway) or 'ADDRESS'}'"
    if not _seen_from(gateway):
        yield "# ADDRESS: the one from which the gateway's requests come to the portal"


def _seen_from(gateway: SiteGateway) -> str:
    """The address from which the portal sees the gateway's requests come; empty where that is not known."""
    assert gateway.portal is not None
    if gateway.wireguard is not None:
        return gateway.wireguard.gateway.address
    return LOOPBACK if gateway.ssh is not None and gateway.portal.behind.address.startswith("127.") else ""
