"""Names of the four files by which a hypervisor of the lab and a server's guest communicate, in a folder of the
server's id.

They stand for a config drive, a serial console and a power state. The driver (``services/virt.py``) makes the folder of
a server that has user data and removes it with the server; ``guests.py`` plays the guest.
"""

from __future__ import annotations

USER_DATA = "user-data"
"""File with the text of the user data, written by the driver."""
CONSOLE = "console"
"""File of the console, written by the guest."""
PLACE = "place"
"""File written by the driver: JSON of ``host`` and the addresses of its ``gpus`` there."""
OFF = "off"
"""File that the guest makes when it switches itself off."""
