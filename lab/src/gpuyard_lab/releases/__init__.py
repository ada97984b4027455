"""The releases of OpenStack that a lab can run, and how another than the lab's own is installed.

``catalogue`` which there are, and on which Python; ``plan`` the commands that install one; ``install`` carries them
out; ``code`` what is added so that the lab's own code runs there.
Beside them each release's packages with their exact versions: `tools/release_locks.py` writes those.
"""
