"""The portal's shell: login, sessions, limits, layout, errors. It knows no capability.

`requests.py` numbers each request, then reports of agents in guests are answered (`fast_path.py`): they are many and
carry tokens of their own. All other requests pass `security.py` and `request_sizes.py`; GitHub's webhooks are answered
there, by a second fast path. Then `access.py` admits a person or a token before any handler runs. `visibility.py` is
the rule of what people see of each other.
"""
