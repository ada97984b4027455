"""Chooses the kind of threads that a service runs in: the kind that its release was made for.

Before Nova 33 its services run in eventlet's green threads. Those take the place of modules of the standard library, so
that must happen before anything else is imported. Everything else here runs in the system's threads.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

FIRST_IN_SYSTEM_THREADS = 33
"""The first Nova all of whose services work without eventlet."""
SWITCH = "OS_NOVA_DISABLE_EVENTLET_PATCHING"
"""Variable by which every entry point of Nova decides when it is imported, nova-manage's too."""


def nova_version() -> int:
    """Return the major version of the Nova that is installed here."""
    return int(version("nova").partition(".")[0])


def choose_threads(process: str) -> None:
    """Have a process run in the threads that its services want."""
    if process != "nova":
        return
    if nova_version() >= FIRST_IN_SYSTEM_THREADS:
        os.environ[SWITCH] = "yes"
        return
    from nova import monkey_patch

    if hasattr(monkey_patch, "patch"):  # older ones did it when they were imported
        monkey_patch.patch()


def green() -> bool:
    """Return whether this process runs in green threads."""
    if "eventlet" not in sys.modules:
        return False
    from eventlet import patcher

    return bool(patcher.is_monkey_patched("thread"))


def serve_green(application: object, address: str, port: int, connections: int) -> None:
    """Serve an API as nova-api did then; does not return."""
    import eventlet
    from eventlet import wsgi

    listener = eventlet.listen((address, port), backlog=128)
    wsgi.server(listener, application, max_size=connections, log_output=False, socket_timeout=300, debug=False)


def after_fork() -> None:
    """Give a forked child a loop of its own: it has its parent's, which waits for the parent's files."""
    if green():
        from eventlet import hubs

        hubs.use_hub()
