"""The releases of OpenStack that a lab can run, and how another than the lab's own is installed.

``catalogue`` has a list of them, with their Python; ``plan`` the commands that install one; ``install`` carries them
out; ``code`` adds what the lab's own code needs to run there.
Beside them each release's packages with their exact versions: `tools/release_locks.py` writes those.
"""
