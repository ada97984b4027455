"""What is between the lab's hypervisors and a server: four files in a folder of the server's id.

They stand for a config drive, a serial console and a power state. The driver (``services/virt.py``) makes the folder of
a server that has user data and removes it with the server; ``guests.py`` plays who lives there.
"""

from __future__ import annotations

USER_DATA = "user-data"
"""Written by the driver: the text."""
CONSOLE = "console"
"""Written by the guest."""
PLACE = "place"
"""Written by the driver: JSON of ``host`` and the addresses of its ``gpus`` there."""
OFF = "off"
"""Made by the guest when it switches itself off."""
