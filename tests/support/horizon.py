"""The real Horizon, from its released wheel in a virtual environment of its own, served by Python's own web server.

Its settings are those of Kolla's _9998-kolla-settings.py.j2 (kolla-ansible 22.0.0) as far as a login and pages need
them, and then those that README.txt of a gateway names. In the place of memcached is the memory of the one process,
which must have room for what compressing styles keeps there, or it forgets sessions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import uv
from tests.support.gateway_net import until

PACKAGES = ("horizon==27.0.0",)
CACHE = "GPUYARD_TEST_KOLLA"
SETTINGS = """
from openstack_dashboard.settings import *
DEBUG = False
WEBROOT = '/'
ALLOWED_HOSTS = ['*']
COMPRESS_OFFLINE = False
STATIC_ROOT = {static!r}
SECRET_KEY = 'of a test' * 9
MEMORY = 'django.core.cache.backends.locmem.LocMemCache'
CACHES = {{'default': {{'BACKEND': MEMORY, 'OPTIONS': {{'MAX_ENTRIES': 100000}}}}}}
OPENSTACK_API_VERSIONS = {{"identity": 3}}
OPENSTACK_KEYSTONE_URL = {keystone!r}
# Kolla has internalURL, which the lab has not.
OPENSTACK_ENDPOINT_TYPE = "publicURL"
{more}
LOGGING = {{
    "version": 1,
    "handlers": {{"console": {{"class": "logging.StreamHandler"}}}},
    "root": {{"handlers": ["console"], "level": "INFO"}},
}}
"""
SERVER = """
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application
class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
class Static(StaticFilesHandler):  # as Apache or uWSGI serve them in Kolla's container
    def serve(self, request):
        from django.views.static import serve
        from django.conf import settings
        return serve(request, self.file_path(request.path), document_root=settings.STATIC_ROOT)
server = make_server("127.0.0.1", 0, Static(get_wsgi_application()), server_class=Server)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


class NoHorizon(Exception):
    """It cannot be installed here."""


def install() -> Path:
    """Its Python. Raises NoHorizon when the index cannot be reached."""
    home = Path(os.environ.get(CACHE) or Path.home() / ".cache/gpuyard-tests")
    folder = home / f"{'-'.join(PACKAGES).replace('==', '-')}-python3.{sys.version_info.minor}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = ["pip", "install", "--quiet", "--python", str(folder / "bin/python"), *PACKAGES]
        for command in ([sys.executable, "-m", "venv", "--without-pip", str(folder)], [uv.program(), *words]):
            try:
                done = subprocess.run(command, capture_output=True, text=True)
            except FileNotFoundError as error:
                raise NoHorizon(str(error)) from None
            if done.returncode:
                raise NoHorizon(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        (folder / "complete").touch()
    return folder / "bin/python"


@contextmanager
def horizon(folder: Path, keystone: str, more: str) -> Iterator[int]:
    """Its port. `folder`: empty; `keystone`: the URL with its version; `more`: lines of settings."""
    python = install()
    settings = SETTINGS.format(static=str(folder / "static"), keystone=keystone, more=more)
    (folder / "horizon_settings.py").write_text(settings)
    environment = {**os.environ, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "horizon_settings"}
    environment["PYTHONWARNINGS"] = "ignore"
    collect = [str(python), "-m", "django", "collectstatic", "--noinput"]
    done = subprocess.run(collect, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    log = folder / "horizon.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(python), "-c", SERVER], env=environment, cwd=folder, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: bool(re.search(r"^port \d+$", log.read_text(), re.MULTILINE)), "Horizon does not start", 120)
        yield int(re.findall(r"^port (\d+)$", log.read_text(), re.MULTILINE)[0])
    finally:
        process.terminate()
        process.wait()
