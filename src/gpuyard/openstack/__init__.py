"""The client of OpenStack: counted requests with time limits, typed rows, and the snapshot of all GPUs.

`reader.py` asks and `rows.py` parses, for every capability. `snapshot.py` reads all GPUs in a number of calls that
does not grow with them. What one capability alone reads or changes stands with that capability.
"""
