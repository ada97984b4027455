"""Decides and publishes the state of every GPU of the site now, with its reason and who has it.

`state.py` decides the state from what the site expects and what the snapshot saw. `controllers/sync.py` takes a
snapshot every few seconds and publishes it in `controllers/cache.py`, from which pages, API, metrics and the other
loops read.
"""
