"""How many servers of a flavor a project could start now, until when, and why not more: facts in, answers out. Pure."""
