"""What the tests see of the environment that they are started in.

`make` may be told ports and folders by variables, and people who operate a cloud have its `OS_*` set. None of that may
reach a test, nor a program that a test starts: it is taken away before the first test module is imported. What tests
themselves are told remains, and so do caches.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

OURS = ("GPUYARD_TEST_", "GPUYARD_CHROMIUM", "GPUYARD_VHOST", "XDG_CACHE_HOME")
"""What tests read: said in CONTRIBUTING.md and tests/virtual_hypervisor/README.md."""

READ = (
    *("GPUYARD_", "STATE_DIRECTORY", "OS_", "XDG_", "PG", "ANSIBLE_", "KOLLA_"),
    *("MAKE", "MFLAGS", "PYTEST_ADDOPTS"),
    *("TZ", "LANG", "LC_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TERMINAL_WIDTH"),
)
"""How the names begin that the program reads, or what it is made of: its libraries, make, a terminal's settings."""


def clean(environment: MutableMapping[str, str], home: Path) -> None:
    """Take away what would change a result, and have state and configuration looked for in an empty folder, `home`."""
    for name in [name for name in environment if name.startswith(READ) and not name.startswith(OURS)]:
        del environment[name]
    environment.update(XDG_STATE_HOME=str(home / "state"), XDG_CONFIG_HOME=str(home / "config"))
    environment.update(TZ="UTC", LANG="C.UTF-8")
