"""Gateways of sites for tests, and what their nginx would let through, by the file that is rendered for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuyard.deployment.gateway.nginx import nginx_conf
from gpuyard.deployment.gateway.tunnel import reached
from gpuyard.site.gateway_rules import SiteGateway

KEY_OF_GATEWAY = "x2y8sXFZx6Yc0V6Ij0XSfNUAQnXc0gDRbFZ1JqM8nTA="
KEY_OF_CLOUD = "rT0iJ5g4O6c6oN4gJmYxw2u3m0lqYb1mQpY8m4f3XzI="
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKm5G3YtV1mYvO2mHkqRrJkqzYb8v1kX2m2dQ2z8ZqkZ"
WIREGUARD: dict[str, Any] = {
    "endpoint": "gateway.example.org:51820",
    "gateway": {"address": "10.99.0.1", "key": KEY_OF_GATEWAY},
    "cloud": {"address": "10.99.0.2", "key": KEY_OF_CLOUD},
}
SSH: dict[str, Any] = {"endpoint": "gateway.example.org:22", "host_key": SSH_KEY, "key": f"{SSH_KEY} of the cloud"}
PORTAL: dict[str, Any] = {"public": "gpus.example.org", "behind": "10.99.0.2:8080"}
SERVICES: dict[str, Any] = {
    "identity": {"public": "cloud.example.org:5000", "behind": "10.20.0.250:5000"},
    "compute": {"public": "cloud.example.org:8774", "behind": "10.20.0.250:8774"},
    "image": {"public": "cloud.example.org:9292", "behind": "10.20.0.250:9292"},
    "network": {"public": "cloud.example.org:9696", "behind": "[fd00::9]:9696"},
    "placement": {"public": "cloud.example.org:8780", "behind": "10.20.0.250:8780"},
}
DASHBOARD: dict[str, Any] = {"public": "dashboard.example.org", "behind": "10.20.0.250:80"}
CINDER: dict[str, Any] = {"public": "cloud.example.org:8776", "behind": "10.20.0.250:8776"}
CONSOLES: dict[str, Any] = {
    "novnc": {"public": "cloud.example.org:6080", "behind": "10.20.0.250:6080"},
    "spice": {"public": "cloud.example.org:6082", "behind": "10.20.0.250:6082"},
    "serial": {"public": "cloud.example.org:6083", "behind": "10.20.0.250:6083"},
}
BROWSERS: dict[str, Any] = {"dashboard": DASHBOARD, "consoles": CONSOLES}
"""What a site that wants them says more."""
VARIANTS: dict[str, dict[str, Any]] = {
    "portal": {"portal": PORTAL},
    "all": {"portal": PORTAL, "services": SERVICES, "wireguard": WIREGUARD},
    "browsers": {"services": SERVICES | {"block-storage": CINDER}, "wireguard": WIREGUARD, **BROWSERS},
    "dashboard alone": {"dashboard": DASHBOARD},
    "console alone": {"consoles": {"novnc": CONSOLES["novnc"]}},
    "ssh": {"portal": {**PORTAL, "behind": "127.0.0.1:8080"}, "services": SERVICES, "ssh": SSH},
    "one api": {"services": {"compute": {"public": "nova.example.org", "behind": "10.20.0.250:8774"}}},
    "everything said": {
        "portal": {**PORTAL, "allow": ["2001:db8::/32", "192.0.2.0/24"]},
        **BROWSERS,
        "services": SERVICES
        | {"block-storage": CINDER}
        | {"identity": SERVICES["identity"] | {"allow": [], "more": ["GET,POST /v3/OS-X/{name}"]}},
        "wireguard": {**WIREGUARD, "mtu": 1280},
        "allow": ["203.0.113.7"],
        "operators": ["198.51.100.0/24", "2001:db8:1::7"],
        "webhooks_from": ["140.82.112.0/20"],
        "single_sign_on": True,
        "limits": {"requests": 7, "without_token": 1, "connections": 3, "streams": 2, "body": "2 MiB"},
    },
}  # fmt: skip
RULE = re.compile(r'^ {8}"~(\^\S.*\$?)" ([01]);$', re.MULTILINE)


def gateway(document: Mapping[str, Any]) -> SiteGateway:
    """As the site file has it."""
    return SiteGateway.model_validate(json.loads(json.dumps(document)))


def rendered(document: Mapping[str, Any], webhook: bool = False) -> str:
    site_gateway = gateway(document)
    return nginx_conf(site_gateway, reached(site_gateway), webhook)


def lets_through(conf: str, door: str) -> Callable[..., bool]:
    """(method, path, operator?) -> whether nginx would, by its maps: the first rule that matches."""
    ((clean),) = re.findall(r'^ {8}"~(\^/.*\$)" 1;$', conf.partition("$gpuyard_clean {")[2], re.MULTILINE)[:1]
    name = door.replace("-", "_")
    (rules,) = re.findall(rf"\$gpuyard_passes_{name} \{{\n(.*?)^    \}}$", conf, re.MULTILINE | re.DOTALL)
    table = [(re.compile(pattern), value == "1") for pattern, value in RULE.findall(rules)]

    def passes(method: str, path: str, operator: bool = False) -> bool:
        state = f"{int(re.search(clean, path) is not None)}{int(operator)} {method} {path}"
        return next((value for pattern, value in table if pattern.search(state)), False)

    return passes


def with_nginx(folder: Path, conf: str) -> Path:
    """The folder of nginx.conf, with a certificate of nobody's, and beside it the one to start nginx in."""
    conf_folder = folder / "conf"
    (conf_folder / "tls").mkdir(parents=True)
    (folder / "state" / "acme").mkdir(parents=True)
    (conf_folder / "nginx.conf").write_text(conf)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "9",
    ]
    command += ["-subj", "/CN=none", "-keyout", "privkey.pem", "-out", "fullchain.pem"]
    subprocess.run(command, cwd=conf_folder / "tls", check=True, capture_output=True)
    return conf_folder


def nginx(folder: Path, *more: str) -> list[str]:
    """The command, for what `with_nginx` has made."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert program
    return [program, "-e", "stderr", "-p", f"{folder}/state/", "-c", f"{folder}/conf/nginx.conf", *more]
