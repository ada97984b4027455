"""Why a server of a flavor would not start now: facts in, an explanation with remedies out. Pure."""
