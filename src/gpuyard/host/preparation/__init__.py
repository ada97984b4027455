"""From a bare host to one whose GPUs can be given to servers, and back: plan, apply, undo.

`choice.py` says which functions go to servers; `kernel_options.py`, `files.py` and `distribution.py` what the boot
configuration must be for that; `plan.py` plans the difference. `apply.py` carries it out through `host/local_host.py`
and writes `journal.py` before each step, from which `plan_undo.py` plans the way back. `pending.py` says what waits for
a reboot."""
