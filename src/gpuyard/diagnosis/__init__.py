"""Explains files and clouds: faults in nova.conf, refusals of servers, free capacity, drift, and how to adopt a cloud.

`lint/` reads any nova.conf, `why/` explains why a flavor would not start, `capacity/` counts how many servers of each
flavor would, `drift/` compares the cloud with the site file, and `adopt/` makes a site file of a cloud that is there.
`rollout.py` judges whether the next stage of PCI devices in Placement may be deployed.
"""
