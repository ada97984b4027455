"""gpuyard's domain types as frozen dataclasses, and small rules.

Pure: no input or output, no clock, no third-party import. Together with ``gpuyard.host`` it travels to hypervisors
that have nothing but Python 3.9, so it keeps to what that version knows.
"""
