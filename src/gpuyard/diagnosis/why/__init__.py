"""Explains why a server of a flavor would not start now, with remedies.

read.py and read_closer.py read facts from the cloud; causes.py, quota.py, remedies.py and explain.py are pure, and turn
them into an explanation.
"""
