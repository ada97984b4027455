"""Deploys a cloud on bare machines: prepares, reboots and verifies hosts, runs Kolla step by step, then applies the
site.

``planner.py`` is pure: from the site, the observed state of hosts, of Kolla's folder and of the cloud, and the
journal it makes tasks, each with its reason. ``runner.py`` runs the first that is due and observes again, until none
is.
"""
