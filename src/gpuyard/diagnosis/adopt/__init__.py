"""Takes over a cloud that was set up by hand: makes a site file of it whose plan changes nothing.

``adopt`` in planner.py ties the parts together, and is pure: config.py parses the operator's nova.conf and says which
devices it offers, pools.py, flavors.py and others.py describe aliases, flavors and other devices as a site does,
servers.py compares what runs with what the site would offer, report.py writes the report. Around it, read.py reads the
cloud, recordings.py the recordings, and document.py writes the file.
"""
