"""Rolling campaigns: one change (a kernel, a firmware, a driver) on many hosts, one after the other."""
