"""Drains hosts of servers, and runs campaigns: one change on many hosts, one host after the other.

`planner.py` says where each server can go, when, and what it loses (`losses.py`); `apply.py` moves them; `leftovers.py`
finds what they leave behind. `campaign/` runs a change on many hosts, each in a maintenance of its own.
"""
