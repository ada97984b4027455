"""Records who had which GPU from when to when, and derives sums, budgets and costs from it.

`tracks.py` says what one snapshot shows of each GPU and `lives.py` when a server had its GPUs by Nova's records;
`recorder.py` makes intervals of both. `reckoning.py` adds intervals up, `controllers/rolling.py` keeps the sums of days
that are over, and `controllers/reading.py` answers reports from both.
"""
