"""What keeps the answer to "what could be started now" fresh."""
