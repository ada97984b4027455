"""Servers that are to leave a host: where each can go, when, and what it loses; and what they leave behind. Pure."""
