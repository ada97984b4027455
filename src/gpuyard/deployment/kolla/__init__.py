"""Writes configuration for OpenStack deployments: into Kolla's folder, or a plain tree for /etc; and runs
kolla-ansible.

Planners are pure; ``files.py`` and ``run.py`` are the edges.
"""
