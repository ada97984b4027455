"""The plugin for `openstack`: ``openstack gpu list`` and ``openstack gpu booking ...``. Thin, over client/."""
