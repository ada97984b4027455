"""The loop that observes the cloud, and the cache of what it saw last."""
