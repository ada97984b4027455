"""Explains files and clouds: what is wrong in nova.conf, why a server would not start, how many would, what has
drifted.

`lint/` reads any nova.conf, `why/` explains one flavor, `capacity/` says how many servers of each could be started,
`drift/` compares the cloud with the site file, and `adopt/` makes a site file of a cloud that is there.
"""
