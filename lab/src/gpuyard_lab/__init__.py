"""The lab: a real OpenStack in one command, whose hypervisors are recorded hosts.

Keystone, Placement, Glance, Neutron and Nova run from their wheels in four Python processes beside a PostgreSQL that
comes as a wheel too. Scheduler, PCI tracker, quota and all APIs are the real ones. The hypervisor is replaced by a
driver that reports the CPUs, memory, disk and PCI functions of a recorded host; Neutron's agents by a mechanism driver
that binds every port; and the message bus by memory. Nothing here needs root.

``control``    up, down, status; ``start`` the steps of a start; ``status`` the present status of a lab
``settings``   a lab's folder and what it remembers; ``catalog`` its services, ports and processes
``plan``       its hosts and the options that a site compiles to
``config``     the files that the services read; ``credentials`` their passwords; ``clients`` what users read
``processes``  start, find, end; ``ports`` whether they are free
``postgres``   the embedded database; ``databases`` the databases on it or on another server
``identity``   accounts and catalogue in Keystone; ``readiness`` whether a lab is up; ``http`` the client of both
``portal``     the site applied, the portal served; ``images`` its images in Glance; ``example`` the site by default
``hosts``      plays the hosts that report their GPUs: ``host_trees`` their files, ``host_power`` off and on
``guests``     plays the servers: ``machine`` the files between, ``acceptance_guest`` one that accepts GPUs
``jobs``       the GitHub beside the lab, which is in ``github/``
``services/``  the code that runs inside the service processes
``releases/``  other releases of OpenStack than the lab's own: a list of them, and how one is installed
``exercise``   puts a lab's GPUs to the proof; ``site.yaml`` and ``recordings/`` the hosts that it has by default

The lab leans on parts of the services that are not API (each place says which), so their versions are pinned exactly.
"""
