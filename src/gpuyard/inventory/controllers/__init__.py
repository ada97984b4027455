"""The loop that looks at the cloud, and the cache of what it saw."""
