"""Single sign-on as a site has it: Keystone in uWSGI behind Apache with mod_auth_openidc, which Kolla's own templates
configure by what docs/how-to/single-sign-on.md says, and a certified OpenID provider.

All listen on loopback; a browser is told by RESOLVER that the names of the documentation are there. This Keystone is a
second process of the lab's: it has the lab's database and keys.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from ruamel.yaml import YAML

from gpuyard_lab.config import keystone, render
from gpuyard_lab.settings import Lab
from tests.support.kolla import KOLLA_USER, Kolla, Merger
from tests.support.ports import free_port_base
from tests.virtual_hypervisor.build import Missing, need_commands, run

PAGE = Path(__file__).parents[2] / "docs/how-to/single-sign-on.md"
PROVIDER = Path(__file__).parent / "openid_provider"
PROGRAMS = {"apache2": "libapache2-mod-auth-openidc", "node": "nodejs", "npm": "npm"}
MODULE = Path("/usr/lib/apache2/modules/mod_auth_openidc.so")
PATIENCE_S = 60.0
PASSWORD = "correct horse"  # noqa: S105 - of nobody
RESOLVER = "--host-resolver-rules=MAP *.example.org 127.0.0.1, MAP *.example.com 127.0.0.1"


@dataclass(frozen=True)
class Addresses:
    """Each of another origin; those of example.com are another site than those of example.org."""

    base: int

    @property
    def provider(self) -> str:
        return f"http://login.example.com:{self.base}"

    @property
    def keystone(self) -> str:
        return f"http://keystone.example.org:{self.base + 1}"

    @property
    def portal(self) -> str:
        return f"http://gpus.example.org:{self.base + 2}"

    def here(self, text: str) -> str:
        """A text of the documentation with these addresses."""
        for name, address in (
            ("https://login.example.com", self.provider),
            ("https://keystone.example.org:5000", self.keystone),
            ("https://gpus.example.org", self.portal),
        ):
            # As it is, in a query, and either in a regular expression.
            for spelt in (str, lambda url: quote(url, safe="")):
                text = text.replace(spelt(name), spelt(address))
                text = text.replace(spelt(name).replace(".", r"\."), spelt(address).replace(".", r"\."))
        return text


def blocks(language: str) -> list[str]:
    """The code of a language that the page shows."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def install(must: bool) -> None:
    """The programs, and in a cache the provider. Raises Missing."""
    need_commands(PROGRAMS, install=must)
    if not MODULE.exists():
        raise Missing(f"{MODULE} is not there; as root: apt-get install libapache2-mod-auth-openidc")
    node_modules()


def node_modules() -> Path:
    """Where npm has put the provider and what it needs, as its lock file says; once for all runs. Raises Missing."""
    home = Path(os.environ.get("GPUYARD_TEST_CACHE") or Path.home() / ".cache/gpuyard-tests") / "openid-provider"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed_lock = home / "package-lock.json"
        package_lock = (PROVIDER / "package-lock.json").read_text()
        if not (home / "complete").exists() or installed_lock.read_text() != package_lock:
            (home / "complete").unlink(missing_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(PROVIDER / name, home)
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home)
            (home / "complete").touch()
    return home


@contextmanager
def running(folder: Path, name: str, command: Sequence[str], ready: Callable[[], bool], **more: Any) -> Iterator[None]:
    """A program, from when it is ready; its log is in the folder."""
    stdin_text = more.pop("stdin_text", "")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **more)
        try:
            assert process.stdin is not None
            process.stdin.write(stdin_text.encode())
            process.stdin.close()
            deadline = time.monotonic() + PATIENCE_S
            while not ready():
                assert process.poll() is None, (folder / f"{name}.log").read_text()
                assert time.monotonic() < deadline, f"{name} does not start"
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(20)


def answers(url: str, host: str = "") -> bool:
    try:
        with urlopen(Request(url, headers={"Host": host} if host else {}), timeout=5):
            return True
    except OSError as error:
        return getattr(error, "code", None) is not None


@contextmanager
def provider(folder: Path, at: Addresses, people: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Gives the client that Keystone is there. `people`: subject -> user, password, claims."""
    client = {"client_id": "keystone", "client_secret": secrets.token_urlsafe(32)}
    full = {**client, "redirect_uris": [f"{at.keystone}/redirect_uri"]}
    full["post_logout_redirect_uris"] = [f"{at.portal}/login"]
    settings = {"issuer": at.provider, "port": at.base, "client": full, "people": people}
    home = node_modules()
    program = home / "provider.mjs"
    shutil.copy(PROVIDER / "provider.mjs", program)
    local = f"http://127.0.0.1:{at.base}"
    command = ["node", str(program)]
    is_ready = partial(answers, f"{local}/.well-known/openid-configuration")
    with running(folder, "provider", command, is_ready, stdin_text=json.dumps(settings)):
        yield client


def metadata(folder: Path, at: Addresses, client: Mapping[str, str]) -> None:
    """What the page has people put into `metadata_folder`."""
    folder.mkdir()
    request = Request(f"http://127.0.0.1:{at.base}/.well-known/openid-configuration")
    request.add_header("Host", at.provider.removeprefix("http://"))
    with urlopen(request, timeout=10) as answer:
        provider_metadata = json.load(answer)
    for name in ("token_endpoint", "jwks_uri", "userinfo_endpoint"):  # Apache itself asks there, and knows no RESOLVER
        provider_metadata[name] = provider_metadata[name].replace(at.provider, f"http://127.0.0.1:{at.base}")
    name = quote(at.provider.removeprefix("http://"), safe="")
    for kind, value in (("provider", provider_metadata), ("client", client), ("conf", {})):
        (folder / f"{name}.{kind}").write_text(json.dumps(value))


def kolla_files(kolla: Kolla, at: Addresses, folder: Path) -> tuple[str, str]:
    """Kolla's httpd-keystone.conf, and what its keystone.conf has for federation, by the page's settings."""
    roles = kolla.ansible / "roles/keystone"
    (folder / "globals.yml").write_text(at.here(blocks("yaml")[0]))
    variables = {
        **KOLLA_USER,
        "kolla_base_distro": "debian",
        "api_interface_address": "127.0.0.1",
        "keystone_public_listen_port": at.base + 1,
        "keystone_public_url": at.keystone,
        "keystone_wsgi_socket_port": at.base + 3,
        "enable_memcached": "no",
        "keystone_federation_openid_certificate_key_ids": [],
        "keystone_federation_openid_crypto_password": secrets.token_hex(16),
        "keystone_container_federation_oidc_metadata_folder": str(folder / "metadata"),
    }
    (folder / "here.yml").write_text(json.dumps(variables))  # which is YAML, too
    files = sorted((kolla.ansible / "group_vars/all").glob("*.yml"))
    files += [roles / "defaults/main.yml", folder / "globals.yml", folder / "here.yml"]
    template = (roles / "templates/keystone.conf.j2").read_text()
    federation = template[template.index("{% if enable_keystone_federation") :]
    merger = Merger(kolla)
    try:
        httpd = merger.template((roles / "templates/httpd-keystone.conf.j2").read_text(), files, {})
        return httpd, merger.template(federation, files, {})
    finally:
        merger.close()


APACHE = """\
ServerRoot {folder}
ServerName keystone.example.org
PidFile {folder}/apache.pid
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authn_core_module /usr/lib/apache2/modules/mod_authn_core.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule authz_user_module /usr/lib/apache2/modules/mod_authz_user.so
LoadModule auth_openidc_module /usr/lib/apache2/modules/mod_auth_openidc.so
{user}
{kolla}
"""


@contextmanager
def apache(folder: Path, at: Addresses, configuration: str) -> Iterator[None]:
    configuration = configuration.replace("/var/log/kolla/keystone", str(folder))
    user = "User www-data\nGroup www-data" if os.geteuid() == 0 else ""
    (folder / "apache.conf").write_text(APACHE.format(folder=folder, user=user, kolla=configuration))
    command = ["/usr/sbin/apache2", "-DFOREGROUND", "-f", str(folder / "apache.conf")]
    with running(folder, "apache", command, lambda: answers(f"http://127.0.0.1:{at.base + 1}/v3")):
        yield


def clouds_file(lab: Lab, folder: Path, at: Addresses) -> Path:
    """The lab's clouds.yaml, with the second process as Keystone."""
    yaml = YAML(typ="safe")
    clouds = yaml.load(lab.clouds_file.read_text())
    for cloud in clouds["clouds"].values():
        cloud["identity_endpoint_override"] = f"http://127.0.0.1:{at.base + 4}/v3"
    path = folder / "clouds.yaml"
    path.touch(mode=0o600)
    path.write_text(json.dumps(clouds))
    return path


@contextmanager
def keystone_of(lab: Lab, folder: Path, at: Addresses, federation: str) -> Iterator[None]:
    """A second process of the lab's Keystone, in uWSGI as Kolla runs it."""
    etc = folder / "etc"
    etc.mkdir(mode=0o700)
    template = Path(sys.prefix) / "etc/keystone/sso_callback_template.html"  # of Keystone's wheel
    assert template.exists()
    federation = federation.replace("/etc/keystone/sso_callback_template.html", str(template))
    (etc / "keystone.conf").write_text(render(keystone(lab)) + federation)
    (etc / "override.conf").write_text(blocks("ini")[0])
    names = {"OS_KEYSTONE_CONFIG_DIR": str(etc), "OS_KEYSTONE_CONFIG_FILES": "keystone.conf;override.conf"}
    command = [f"{sys.prefix}/bin/uwsgi", "--master", "--lazy-apps", "--enable-threads", "--threads", "4"]
    command += ["--die-on-term", "--buffer-size", "65535", "--need-app", "--module", "keystone.wsgi.api:application"]
    command += ["--socket", f"127.0.0.1:{at.base + 3}", "--http", f"127.0.0.1:{at.base + 4}"]
    command += ["--add-header", "Connection: close"]
    ready = partial(answers, f"http://127.0.0.1:{at.base + 4}/v3")
    with running(folder, "keystone", command, ready, env={**os.environ, **names}):
        yield


@contextmanager
def single_sign_on(
    lab: Lab, folder: Path, kolla: Kolla, people: Mapping[str, Mapping[str, Any]]
) -> Iterator[Addresses]:
    """All of it. The folder must be one that all users can get to."""
    at = Addresses(free_port_base())
    if os.geteuid() == 0:
        folder.chmod(0o755)  # Apache's processes are another user's
    with ExitStack() as stack:
        client = stack.enter_context(provider(folder, at, people))
        metadata(folder / "metadata", at, client)
        httpd, federation = kolla_files(kolla, at, folder)
        stack.enter_context(keystone_of(lab, folder, at, federation))
        stack.enter_context(apache(folder, at, httpd))
        yield at
