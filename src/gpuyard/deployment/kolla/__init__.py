"""Configuration files in the folders of those who deploy OpenStack: Kolla's, or a plain tree for /etc; and the run of
``kolla-ansible`` that brings them out. Planners are pure; ``files.py`` and ``run.py`` are the edges."""
