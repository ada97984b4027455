"""Commands of `gpuyard` and `openstack gpu` about inventory."""
