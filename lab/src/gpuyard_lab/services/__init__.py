"""What runs inside the service processes. Nothing here is imported by the ``gpuyard`` command itself.

Each module has ``prepare`` (imports everything that takes time), ``create`` (makes the schema, in a forked child) and
``serve`` (does not return). The code that they call is mostly not API of its service; the pins in pyproject.toml and
the tests of the lab are what keeps it working.
"""
