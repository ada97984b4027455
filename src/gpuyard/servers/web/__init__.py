"""The pages that start a server, and that show one to its owner."""
