"""Code that runs on hypervisors: it scans, judges, checks, prepares, watches and scrubs a host, and records what it
saw.

`scan.py` reads sysfs and procfs, `judge.py` says which IOMMU groups can be given away, `checks/` says what is wrong and
why, `preparation/` changes the host, and `recording.py` makes a file of it that can be replayed anywhere. Standard
library only, Python 3.9 or newer, and the root of ``/sys`` and ``/proc`` is always an argument, so that the same code
reads the live machine, a folder and a recording.
"""
