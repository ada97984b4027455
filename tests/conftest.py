"""Settings of all tests. Warnings are errors; what others' packages warn of while they are imported is theirs."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openstack  # noqa: F401
