"""The plugin for `openstack`: registers ``openstack gpu ...``; the commands stand with their capabilities
(`cli/osc.py`)."""
