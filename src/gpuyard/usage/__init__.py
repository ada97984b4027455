"""Use of GPUs: who had which one from when to when, and the sums, budgets and costs that follow.

`tracks.py` says what one snapshot shows of each GPU and `lives.py` when a server had its GPUs by Nova's records;
`recorder.py` makes intervals of both. `reckoning.py` adds intervals up, `controllers/rolling.py` keeps the sums of days
that are over, and `controllers/reading.py` answers reports from both.
"""
