"""The command line. Thin: every command calls one function of the packages below it."""
