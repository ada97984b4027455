"""Servers of people: starting one in their own name from a page, and the way into it."""
