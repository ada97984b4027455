"""On the hypervisor: scan -> judge -> check, and record what was seen so that it can be replayed anywhere.

Standard library only, Python 3.9 or newer, and the root of ``/sys`` and ``/proc`` is always an argument, so that the
same code reads the live machine, a folder and a recording.
"""
