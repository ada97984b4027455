"""Takes over a cloud that was set up by hand: what was seen of it in, a site that changes nothing out. Pure.

``adopt`` in planner.py ties the parts together: config.py reads the operator's nova.conf, devices.py says what it
offers, pools.py and flavors.py put that into the words of a site, servers.py looks at what runs, report.py says what to
do next, document.py writes the file.
"""
