"""Code that runs inside the service processes. Nothing here is imported by the ``gpuyard`` command itself.

The module of each service has ``prepare`` (imports everything that takes time), ``create`` (makes the schema, in a
forked child) and ``serve`` (does not return; Placement's hands its API to Keystone's process). Most of the code that
they call is not API of its service; the pins in pyproject.toml and the tests of the lab are what keeps it working.
"""
