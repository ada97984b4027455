"""A GitHub that misbehaves: a stand-in that speaks the endpoints that runners need, with faults drawn from a seed.

``server.py`` serves it as a process of its own or inside a test; ``forge.py`` is its state and the life of jobs;
``rest.py``, ``rest_hooks.py``, ``scale_sets.py``, ``runner_sessions.py`` and ``control.py`` answer requests.
docs/how-to has a page for those who want to test something else with it.
"""
