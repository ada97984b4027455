"""From bare machines to a cloud: hosts prepared, rebooted and proved, Kolla run step by step, then the site applied.

``planner.py`` is pure: the site, what was seen of hosts, of Kolla's folder and of the cloud, and the journal become
tasks, each with its reason. ``runner.py`` carries out the first that is due and looks again, until none is.
"""
