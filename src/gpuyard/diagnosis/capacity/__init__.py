"""Counts how many servers of each flavor a project could start now, until when, and why not more.

read.py reads the cloud and the rest is pure: facts.py has the facts, reckon.py reckons flavor by flavor, packing.py
host by host, and answer.py makes rows for people.
"""
