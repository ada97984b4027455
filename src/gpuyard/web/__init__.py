"""The portal's shell: login, sessions, limits, layout, errors. It knows no capability.

Reports of agents in guests are answered first (`fast_path.py`), because they are many and carry tokens of their own.
All other requests pass `security.py`, `request_limits.py` and, for webhooks, a fast path too; then `access.py` admits a
person or a token before any handler runs. `others.py` is the rule of what people see of each other."""
