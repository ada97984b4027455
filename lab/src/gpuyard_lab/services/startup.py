"""Common steps of the lab's processes while they start: wait for the databases, make the schema, serve an API."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waitress

from gpuyard_lab.catalog import ADDRESS
from gpuyard_lab.services.threads import after_fork, green, serve_green
from gpuyard_lab.settings import Lab

PATIENCE_S = 180.0
WSGI_THREADS = 8
# Clients keep connections open for minutes after their last request. At its own limit, 100, waitress would not look at
# new ones until then.
CONNECTIONS = 2000


def log(message: str) -> None:
    """Write a line of our own to the log of the process."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {os.getpid()} gpuyard: {message}", file=sys.stderr, flush=True)


def quieten(*loggers: str) -> None:
    """Keep a library that warns at every request from filling the log."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)


def wait_until(ready: Path) -> None:
    """Wait for a file; exit when it does not come, because then nobody waits for this process any more."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{ready} was not there after {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def prepare_database(lab: Lab, name: str, create: Callable[[Lab], None]) -> None:
    """Wait for the databases, and make the schema when this process has not done so for this lab.

    In a forked child: what makes a schema fills oslo.config's global object with values that the service must not see,
    and a child has all the imports, which take longer than the work.
    """
    wait_until(lab.databases_ready)
    done = lab.data / f"{name}.schema"
    if done.exists():
        return
    log("making the schema")
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            after_fork()
            create(lab)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit("the schema could not be made")
    done.touch()
    log("schema made")


def serve_wsgi(application: Any, lab: Lab, name: str) -> None:
    """Serve an API on its port; does not return."""
    quieten("waitress.queue")
    log(f"{name} listens on port {lab.port(name)}")
    if green():
        serve_green(application, ADDRESS, lab.port(name), CONNECTIONS)
        return
    waitress.serve(
        application, host=ADDRESS, port=lab.port(name), threads=WSGI_THREADS, ident=None,
        connection_limit=CONNECTIONS, asyncore_use_poll=True,
        clear_untrusted_proxy_headers=False, channel_timeout=300,  # the services read them, as Kolla's do
    )  # fmt: skip


def serve_wsgi_in_background(application: Any, lab: Lab, name: str) -> None:
    """Serve an API as serve_wsgi does, in a thread. The process ends when it cannot."""

    def run() -> None:
        try:
            serve_wsgi(application, lab, name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=run, name=f"{name}-wsgi", daemon=True).start()
