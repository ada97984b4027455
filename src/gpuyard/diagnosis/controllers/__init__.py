"""The service that keeps answers to "what could be started now" fresh."""
