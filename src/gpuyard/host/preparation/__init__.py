"""Prepares a host to give its GPUs to servers, and brings it back: plan, apply, undo.

`choice.py` chooses the functions that go to servers; `kernel_options.py`, `files.py` and `distribution.py` determine
the boot configuration that this takes; `plan.py` plans the difference. `apply.py` carries it out through
`host/local_host.py` and writes `journal.py` before each step, from which `plan_undo.py` plans the way back.
`pending.py` says which settings wait for a reboot.
"""
